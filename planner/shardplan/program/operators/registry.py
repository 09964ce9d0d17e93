"""The registry of operator descriptions, shared by the simulated machine and the ONNX export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from shardplan.program.collectives import part
from shardplan.program.localise import refuse
from shardplan.program.nodes import Array, Coordinates, Graph, Kernel, Node, Operands
from shardplan.program.operators.attention import attention
from shardplan.program.operators.bodies import by_body
from shardplan.program.operators.common import Describe, operator_node
from shardplan.program.operators.lookups import LOOKUPS
from shardplan.program.operators.losses import likelihood
from shardplan.program.operators.recurrent import recurrent
from shardplan.program.operators.statistics import STATISTICS
from shardplan.program.operators.windows import windows
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.reference.experts import experts
from shardplan.program.reference.random import DRAWING, draws, results
from shardplan.program.types import Local, Site
from shardplan.rules.body import has_body

_NEVER_DROPS_BETWEEN = range(7, 12)
"""Opset versions in which a `Dropout` is for inference only."""


def describe(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """Append the nodes of the operator at `site` to `graph`. Raises `ShardplanError` where none are known."""
    operands = [*reads, *[""] * (max(local.operands, default=-1) + 1 - len(reads))]
    for position, array in local.operands.items():
        operands[position] = graph.array(array)
    _description(site)(graph, site, local, operands, makes)


def _description(site: Site) -> Describe:
    if site.kind in {"Shape", "Size"}:
        return whole_shape
    if _may_draw(site) or (site.communicates and site.kind in KERNELS):
        return in_numpy
    if not site.communicates:
        return plain
    if site.kind in OPERATORS:
        return OPERATORS[site.kind]
    if has_body(site.kind, site.operator.version):
        return by_body(describe)
    raise refuse(site, "this split needs communication inside the operator, which is not described for this kind")


def plain(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """The operator on what the device holds; of a mean every device has its share."""
    shared = [
        local.shares > 1 and layout is not None and any(p.kind == "P" for p in layout.placements)
        for layout in site.result_layouts
    ]
    named = [graph.name(f"{name}/share") if share else name for name, share in zip(makes, shared, strict=True)]
    operator_node(graph, site, local.attributes, reads, named)
    for part_, name, share in zip(named, makes, shared, strict=True):
        if share:
            graph.op("Div", part_, graph.constant(local.shares, graph.dtype(name)), to=name)


def whole_shape(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Shape`, `Size`: of the whole tensor, which every device knows."""
    del reads
    (found,) = evaluate(site.operator, local.attributes, [np.zeros(site.operand(0), np.bool_)])
    graph.op("Identity", graph.array(found), to=makes[0])


def in_numpy(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """Operators whose part on a device ONNX has no operators for: a function in numpy, which only the machine runs."""
    operator = site.operator
    kernel = KERNELS.get(site.kind, part_of_draw)(site, local)
    graph.nodes.append(
        Node(operator.op_type, tuple(reads), tuple(makes), operator.name, operator.domain, kernel=kernel)
    )


def _may_draw(site: Site) -> bool:
    """Whether the operator draws random numbers, as far as that is known before it runs."""
    if site.kind != "Dropout":
        return site.kind in DRAWING
    if site.operator.version <= max(_NEVER_DROPS_BETWEEN):
        return site.operator.version not in _NEVER_DROPS_BETWEEN and not site.operator.attributes.get("is_test", 0)
    return site.has(2) and (2 not in site.known or bool(site.known[2]))


def part_of_draw(site: Site, local: Local) -> Kernel:
    """Random operators: the part of what is drawn for the whole result that belongs to what the device holds."""
    layout = site.result_layouts[0]
    assert layout is not None

    def run(operands: Operands, coordinates: Coordinates) -> list[Array]:
        if not draws(site.operator, operands):
            return evaluate(site.operator, local.attributes, operands)
        held = partial(part, layout=layout, mesh=site.mesh, coordinates=coordinates)
        return results(site.operator, operands, site.result(), held)

    return run


def some_experts(site: Site, local: Local) -> Kernel:
    """`MoE`, `QMoE`: what the experts that the device holds add to the result."""

    def run(operands: Operands, coordinates: Coordinates) -> list[Array]:
        held = operands[2]
        assert held is not None
        first = site.mesh.number(site.axes("e"), coordinates) * len(held)
        return experts(site.operator, local.attributes, operands, first)

    return run


OPERATORS: Mapping[str, Describe] = {
    **LOOKUPS,
    **STATISTICS,
    "Attention": attention,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"), windows),
    "com.microsoft.FusedConv": windows,
    **dict.fromkeys(("LSTM", "RNN", "GRU"), recurrent),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), likelihood),
}
"""Operators that communicate on shards, by kind."""
KERNELS: Mapping[str, Callable[[Site, Local], Kernel]] = {
    **dict.fromkeys(("com.microsoft.MoE", "com.microsoft.QMoE"), some_experts),
}
"""Operators that know on shards which device they run on, and have no form in ONNX."""
