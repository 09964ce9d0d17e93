"""The decisions of a plan as masks over the choices of a cost graph, and their translation to a finer mesh."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.operators import OperatorSpace
from shardplan.layout.layout import Layout
from shardplan.model.types import Block, Model
from shardplan.plan.assemble import PricedAssignment
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.planning.reduction import Allowed, Mask

_UNSPLIT: Final = "-"


@dataclass(frozen=True)
class Decided:
    """The decisions of a plan. `operators`: the split of each, by name. `layouts`: of every tensor, wherever it is
    stored, and of its optimizer state, if that may differ from its weight's."""

    operators: Mapping[str, OperatorDecision]
    layouts: Mapping[Node, Layout]

    @classmethod
    def of_plan(cls, plan: Plan) -> Decided:
        layouts: dict[Node, Layout] = {}
        for tensor in plan.tensors:
            layouts["kept", tensor.name] = tensor.layout
            layouts["served", tensor.name] = tensor.served
            layouts["updated", tensor.name] = tensor.optimizer or tensor.layout
        return cls({operator.name: operator for operator in plan.operators}, layouts)

    @classmethod
    def of_priced(cls, priced: PricedAssignment) -> Decided:
        built, choice = priced.built, priced.choice
        spaces = built.places
        layouts = {node: spaces[node[0]][node[1]].layout(at) for node, at in choice.items() if node[0] in spaces}
        return cls({operator.name: operator for operator in priced.operators}, layouts)

    def on_finer(self, groups: Sequence[Sequence[int]], idle: Container[int] = ()) -> Decided:
        """The same decisions on a finer mesh that has the axes `groups[i]` in place of axis i, major first; `idle`:
        axes of size one."""

        @functools.cache
        def finer(layout: Layout) -> Layout:
            return layout.on_finer(groups, idle)

        operators = {
            name: replace(
                one,
                split=tuple(
                    _UNSPLIT if axis in idle else label
                    for label, group in zip(one.split, groups, strict=True)
                    for axis in group
                ),
                reads=tuple(layout and finer(layout) for layout in one.reads),
                makes=tuple(layout and finer(layout) for layout in one.makes),
            )
            for name, one in self.operators.items()
        }
        return Decided(operators, {node: finer(layout) for node, layout in self.layouts.items()})

    def with_layers_of(self, model: Model, other: Decided, their: Model, kept: Container[str]) -> Decided:
        """The same decisions, except that each copy of a repeated block of `model` takes the decisions of `other` for
        the copy at the same share of the depth of the equal block of `their` model: in a plan whose first copies differ
        from its last ones, as many do in proportion. Values in `kept` keep their layouts."""
        operators, layouts = dict(self.operators), dict(self.layouts)
        weights = {parameter.tensor for parameter in model.parameters}
        for block in model.blocks:
            patterns = _equal_block(model, block, their)
            for place, copy in enumerate(block.copies if patterns else ()):
                pattern = patterns[(2 * place + 1) * len(patterns) // (2 * len(block.copies))]
                for mine, theirs in zip(copy, pattern, strict=True):
                    own, like = model.operators[mine], their.operators[theirs]
                    operators[own.name] = replace(
                        other.operators[like.name], name=own.name, inputs=own.inputs, outputs=own.outputs
                    )
                    called = [*zip(own.outputs, like.outputs, strict=True), *zip(own.inputs, like.inputs, strict=True)]
                    for value, name in called[: len(own.outputs)] + [one for one in called if one[0] in weights]:
                        for kind in ("kept", "served", "updated"):
                            if value not in kept and (kind, name) in other.layouts:
                                layouts[kind, value] = other.layouts[kind, name]
        return Decided(operators, layouts)

    def met(self) -> Mapping[str, frozenset[Layout]]:
        """By tensor, all layouts that it has in any place."""
        found: dict[str, set[Layout]] = {}
        for (_, name), layout in self.layouts.items():
            found.setdefault(name, set()).add(layout)
        for one in self.operators.values():
            for names, layouts in ((one.inputs, one.reads), (one.outputs, one.makes)):
                for name, read in zip(names, layouts, strict=False):
                    if name and read is not None:
                        found.setdefault(name, set()).add(read)
        return {name: frozenset(layouts) for name, layouts in found.items()}

    def masks(self, built: CostGraph) -> dict[Node, Mask]:
        """For every operator and tensor with a decision, the mask of the choices of `built` that agree with it; an
        all-false mask if the cost graph does not offer it."""
        masks: dict[tuple[object, ...], Mask] = {}
        found: dict[Node, Mask] = {}
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            wanted = self.operators.get(operator.name)
            if wanted is None:
                continue
            key = (id(space), wanted.split, wanted.reads, wanted.makes)
            if key not in masks:
                masks[key] = _as_split(space, wanted)
            found["operator", operator.name] = masks[key]
        for kind, spaces in built.places.items():
            for name, tensor_space in spaces.items():
                state = self.layouts.get(("kept", name)) if kind == "updated" else None
                layout = self.layouts.get((kind, name), state)
                if layout is None:
                    continue
                place = (id(tensor_space), layout)
                if place not in masks:
                    choices = range(len(tensor_space))
                    masks[place] = np.array([tensor_space.layout(choice) == layout for choice in choices])
                found[kind, name] = masks[place]
        return found

    def fixed(self, built: CostGraph) -> Allowed:
        """The restriction to the decisions; a decision that the cost graph does not offer leaves no choice."""
        return {node: mask for node, mask in self.masks(built).items() if mask.any()}

    def as_split(self, built: CostGraph) -> Allowed:
        """The restriction to the decisions on operators."""
        return {node: mask for node, mask in self.fixed(built).items() if node[0] == "operator"}


def _equal_block(model: Model, block: Block, their: Model) -> Sequence[Sequence[int]]:
    """The copies of the block of `their` model that equals this one; none if no block does."""

    def kinds(of: Model, copy: Sequence[int]) -> list[tuple[str, int, int]]:
        return [(one.kind, len(one.inputs), len(one.outputs)) for one in (of.operators[index] for index in copy)]

    wanted = kinds(model, block.copies[0])
    return next((one.copies for one in their.blocks if kinds(their, one.copies[0]) == wanted), ())


def _as_split(space: OperatorSpace, wanted: OperatorDecision) -> Mask:
    """Strategies with the same label. Two of them may read and make the same layouts; then either may be meant."""
    strategies = space.strategies
    same = np.array([strategies.labels(number) == wanted.split for number in range(len(strategies))])
    if same.any():
        return same

    def alike(number: int) -> bool:
        reads = tuple(strategies.layout("operands", i, number) for i in range(len(wanted.reads)))
        makes = tuple(strategies.layout("results", i, number) for i in range(len(wanted.makes)))
        return (reads, makes) == (wanted.reads, wanted.makes)

    return np.array([alike(number) for number in range(len(strategies))])
