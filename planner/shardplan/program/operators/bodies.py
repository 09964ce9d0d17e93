"""Operators that are split as their function bodies: the nodes of the body, one operator after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.placement import R
from shardplan.model.types import Model, Operator
from shardplan.program.localise import localise
from shardplan.program.nodes import Graph
from shardplan.program.operators.common import Describe, finish
from shardplan.program.types import Local, Site
from shardplan.rules import rule_for
from shardplan.rules.body import RESULTS, operand_name
from shardplan.rules.composed import BodySplit, inside
from shardplan.rules.signature import Shaped, Signature
from shardplan.rules.types import Rule


def by_body(describe: Describe) -> Describe:
    """The description of a composed operator, whose body's operators are described by `describe`."""

    def described(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
        del local
        model, rules, splits = opened(site)
        names = {name: graph.array(array) for name, array in model.constants.items()}
        for name in model.constants:
            graph.describe(names[name], model.tensors[name].dtype, model.tensors[name].shape)
        names |= {operand_name(place): name for place, name in enumerate(reads) if name}
        for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
            for name, axes in combined_before(splits, index):
                names[name] = graph.alike(graph.all_reduce(names[name], axes), names[name])
            inner = inner_site(model, operator, rule, splits, index, site)
            held = [names[name] if name else "" for name in operator.inputs]
            made = [graph.name(f"{makes[0]}/{name}") if name else "" for name in operator.outputs]
            for place, name in enumerate(operator.outputs):
                layout = inner.result_layouts[place]
                if name and layout is not None:
                    shape = local_shape(layout, site.mesh, inner.result(place))
                    graph.describe(made[place], model.tensors[name].dtype, shape)
            describe(graph, inner, localise(inner), held, made)
            names |= {name: found for name, found in zip(operator.outputs, made, strict=True) if name}
        for place, name in enumerate(makes):
            if name:
                value = names[RESULTS.format(place)]
                finish(graph, value, name, graph.dtype(value))

    return described


def opened(site: Site) -> tuple[Model, list[Rule], list[BodySplit]]:
    """The body of a composed operator, the rules of its operators, and how each mesh axis splits them."""
    return _inside(_signature(site), _factors(site))


@lru_cache(maxsize=256)
def _inside(signature: Signature, factors: tuple[str, ...]) -> tuple[Model, list[Rule], list[BodySplit]]:
    return inside(signature, rule_for, factors)


def _factors(site: Site) -> tuple[str, ...]:
    return tuple(option.factor if option else "" for option in site.options)


def _signature(site: Site) -> Signature:
    """The signature of the whole operator."""
    shapes = (site.operand_shapes, site.result_shapes)
    operands, results = (
        tuple(None if shape is None else Shaped(shape, dtype) for shape, dtype in zip(side, dtypes, strict=True))
        for side, dtypes in zip(shapes, site.dtypes, strict=True)
    )
    attributes = site.operator.attributes
    constants = tuple((place, tuple(array.ravel().tolist())) for place, array in sorted(site.known.items()))
    return Signature(
        site.kind,
        site.operator.version,
        operands,
        results,
        tuple((name, attributes[name]) for name in sorted(attributes)),  # type: ignore[misc]
        constants,
    )


def combined_before(splits: Sequence[BodySplit], index: int) -> list[tuple[str, tuple[int, ...]]]:
    """(value, mesh axes over which it is combined) before the operator `index` of a body."""
    found: dict[str, tuple[int, ...]] = {}
    for axis, split in enumerate(splits):
        for name in split.combined[index]:
            found[name] = (*found.get(name, ()), axis)
    return list(found.items())


def inner_site(
    model: Model, operator: Operator, rule: Rule, splits: Sequence[BodySplit], index: int, outer: Site
) -> Site:
    """Where an operator of the body stands. What the axes around it do not split has no shards along them."""
    options = tuple(split.splits[index] for split in splits)
    tensors, constants = model.tensors, model.constants

    def layout(names: Sequence[str], side: str, place: int) -> Layout | None:
        if not names[place]:
            return None
        return Layout.of(*(getattr(option, side)[place] if option else R for option in options)).forward

    return Site(
        operator,
        rule,
        outer.mesh,
        options,
        tuple(layout(operator.inputs, "operands", place) for place in range(len(operator.inputs))),
        tuple(layout(operator.outputs, "results", place) for place in range(len(operator.outputs))),
        tuple(tensors[name].shape if name else None for name in operator.inputs),
        tuple(tensors[name].shape if name else None for name in operator.outputs),
        {place: constants[name] for place, name in enumerate(operator.inputs) if name in constants},
        (
            tuple(tensors[name].dtype if name else "" for name in operator.inputs),
            tuple(tensors[name].dtype if name else "" for name in operator.outputs),
        ),
    )
