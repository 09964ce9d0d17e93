"""Operators that are split as the functions they stand for: the nodes of their bodies, one operator after the other.

The nodes do what `shardplan.program.operators.composed` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardplan.export.onnx.kernel import Writer, cast
from shardplan.layout.legal import local_shape
from shardplan.program.localise import localise
from shardplan.program.operators.composed import combined_before, inner_site, opened
from shardplan.program.steps import Graph
from shardplan.program.types import Local, Site
from shardplan.rules.body import RESULTS, operand_name

WriterFor = Callable[[Site], Writer]


def by_body(writer_for: WriterFor) -> Writer:
    """The writer of a composed operator, whose body's operators are written as `writer_for` says."""

    def write(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
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
            told = localise(inner)
            held = [names[name] if name else "" for name in operator.inputs]
            for place, array in told.operands.items():
                held.extend([""] * (place + 1 - len(held)))
                held[place] = graph.array(array)
            made = [graph.name(f"{makes[0]}/{name}") if name else "" for name in operator.outputs]
            for place, name in enumerate(operator.outputs):
                layout = inner.result_layouts[place]
                if name and layout is not None:
                    shape = local_shape(layout, site.mesh, inner.result(place))
                    graph.describe(made[place], model.tensors[name].dtype, shape)
            writer_for(inner)(graph, inner, told, held, made)
            names |= {name: found for name, found in zip(operator.outputs, made, strict=True) if name}
        for place, name in enumerate(makes):
            if name:
                _finish(graph, names[RESULTS.format(place)], name)

    return write


def _finish(graph: Graph, value: str, to: str) -> None:
    if graph.dtype(value) == graph.dtype(to):
        graph.op("Identity", value, to=to)
    else:
        cast(graph, value, graph.dtype(to), to)
