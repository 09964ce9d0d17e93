"""Losses with sharded samples or classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardplan.program.nodes import Graph
from shardplan.program.operators.common import finish, finite, first_of_part, in_type, index_axes, widened, within
from shardplan.program.types import Local, Site


def likelihood(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`NegativeLogLikelihoodLoss`, `SoftmaxCrossEntropyLoss`: what lies in other classes counts elsewhere."""
    by_class = index_axes(site, 1)
    scores, wide = widened(graph, reads[0])
    is_softmax = site.kind == "SoftmaxCrossEntropyLoss"
    if is_softmax:
        scores = _log_softmax(graph, scores, by_class, wide)
    weights = reads[2] if len(reads) > 2 else ""
    weights = in_type(graph, weights, graph.dtype(weights), wide) if weights else ""
    loss, weight = _of_each(graph, site, local, [scores, reads[1], weights], wide)
    how = local.attributes.get("reduction", "mean")
    if how == "none":
        made = graph.all_reduce(loss, by_class) if is_softmax else loss
    else:
        is_weighted = how == "mean" and bool(weights or "ignore_index" in local.attributes)
        made = _reduced(graph, site, loss, weight if is_weighted else "")
        if how == "mean" and not is_weighted:
            made = graph.op("Div", made, graph.constant(math.prod(site.operand(1)), wide))
    finish(graph, graph.op("Neg", made), makes[0], wide)
    if len(makes) > 1:
        finish(graph, scores, makes[1], wide)


def _reduced(graph: Graph, site: Site, loss: str, weight: str) -> str:
    """The sum of all losses, over the sum of weights where there is one."""
    merged = tuple(axis for axis, option in enumerate(site.options) if option and option.inner)
    dims = range(len(site.operand(1)))
    sums = [graph.reduce("ReduceSum", value, dims, keepdims=0) for value in (loss, weight) if value]
    totals = [graph.all_reduce(value, merged) for value in sums]
    return graph.op("Div", *totals) if weight else totals[0]


def _log_softmax(graph: Graph, scores: str, axes: tuple[int, ...], wide: str) -> str:
    """Over dim 1, of which `axes` split the classes."""
    top = graph.reduce("ReduceMax", scores, [1])
    top = finite(graph, graph.all_reduce(top, axes, "max"), wide)
    shifted = graph.op("Sub", scores, top)
    total = graph.reduce("ReduceSum", graph.op("Exp", shifted), [1])
    return graph.op("Sub", shifted, graph.op("Log", graph.all_reduce(total, axes)))


def _of_each(graph: Graph, site: Site, local: Local, reads: Sequence[str], wide: str) -> tuple[str, str]:
    """Score and weight of every sample, both 0 where its class is not among those of the device, or is ignored."""
    scores, target, weights = reads
    index, classes = graph.dtype(target), site.local_operand(0)[1]
    here = graph.op("Sub", target, first_of_part(graph, index_axes(site, 1), classes, index))
    inside = within(graph, here, classes, index)
    if "ignore_index" in local.attributes:
        ignored = graph.op("Equal", target, graph.constant(local.attributes["ignore_index"], index))
        inside = graph.op("And", inside, graph.op("Not", ignored))
    place = graph.op("Where", inside, here, graph.constant(0, index))
    samples = site.local_operand(1)
    column = graph.reshape(place, [samples[0], 1, *samples[1:]])
    picked = graph.reshape(graph.op("GatherElements", scores, column, axis=1), samples)
    each = graph.op("Gather", weights, place, axis=0) if weights else graph.constant(1, wide)
    nothing = graph.constant(0, wide)  # not a product with 0: a class that is padding has the score minus infinity
    score = graph.op("Where", inside, graph.op("Mul", each, picked), nothing)
    return score, graph.op("Where", inside, each, nothing)
