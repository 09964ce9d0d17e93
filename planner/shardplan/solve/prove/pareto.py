"""Pareto-front elimination on small graphs with one sum: it keeps every non-dominated pair of cost and value of the
sum.

Where elimination minimises a node out, this keeps its Pareto front for every pair of labels of its two neighbours: a
point is a label with its cost and sum, which no other point beats in both. Multipliers of the sum bound
the cost of the rest of the graph: a point that exceeds the target at any of the multipliers is dropped. Equal layers
give equal sums, so the number of points does not multiply with the layers, as the nodes of an integer program do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.solve.bound.marginals import Marginals
from shardplan.solve.constants import PARETO_COARSE, PARETO_POINTS
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.core import Indices
from shardplan.solve.reduce.graph import Contradiction, Graph
from shardplan.solve.reduce.tables import NONE


class TooManyError(Exception):
    """The number of label pairs, or of points, is too large for this method."""


@dataclass(frozen=True, slots=True)
class View:
    """A graph at one multiplier of the sum, times its scale: the bound, the excess of labels and pairs above it, and
    the order in which elimination removes all nodes (empty if it does not)."""

    multiplier: float
    bound: float
    known: Marginals
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Front:
    """Labels, costs and sums of what has been removed between `nodes`, for labels of these nodes: a point per array
    entry. `origins`: the fronts that it was joined from, and each point's index there; `eliminated`: removed nodes,
    with their labels."""

    nodes: tuple[int, ...]
    labels: tuple[Indices, ...]
    costs: Costs
    amounts: Costs
    origins: tuple[tuple[_Front, Indices], ...] = ()
    eliminated: tuple[tuple[int, Indices], ...] = ()
    exact: bool = True

    def some(self, kept: Indices) -> _Front:
        """Only the points `kept`."""
        return _Front(
            self.nodes,
            tuple(row[kept] for row in self.labels),
            self.costs[kept],
            self.amounts[kept],
            tuple((front, place[kept]) for front, place in self.origins),
            tuple((node, row[kept]) for node, row in self.eliminated),
            self.exact,
        )

    def halved(self, sizes: Sequence[int]) -> _Front:
        """Every second point among those with the same labels of `nodes`, by cost."""
        kind = self.keys(self.nodes, sizes)
        order = np.lexsort((self.costs, kind))
        first = np.searchsorted(kind[order], kind[order])
        kept = np.sort(order[(np.arange(len(order)) - first) % 2 == 0])
        if len(kept) == len(order):
            raise TooManyError
        return replace(self.some(kept), exact=False)

    def without(self, node: int) -> _Front:
        """The same points, without distinguishing the label of a node."""
        rows = dict(zip(self.nodes, self.labels, strict=True))
        eliminated = ((node, rows.pop(node)),)
        nodes = tuple(sorted(rows))
        return replace(self, nodes=nodes, labels=tuple(rows[other] for other in nodes), eliminated=eliminated)

    def keys(self, nodes: Sequence[int], sizes: Sequence[int]) -> Indices:
        """The labels of some nodes, encoded as one number per point."""
        keys = np.zeros(len(self.costs), dtype=np.int64)
        for node in nodes:
            keys = keys * sizes[node] + self.labels[self.nodes.index(node)]
        return keys


@dataclass(frozen=True, slots=True)
class Found:
    """The least cost found, with its maximum, and labels of all nodes; `exact`: no point was dropped to save space."""

    cost: float
    labels: dict[int, int]
    exact: bool


def cheapest(graph: Graph, limit: int, views: Sequence[View], target: float) -> Found:
    """The cheapest labels of a graph. Labels that cost more than `target` may be missed.

    `views` belong to this graph; the order is that of the first and has all nodes. Raises `Contradiction` if nothing
    costs `target` or less, and `TooManyError` if there are too many points.
    """
    hinge = graph.hinge
    assert hinge is not None
    fronts = _fronts(graph)
    whole = _Front((), (), np.array([graph.const]), np.array([float(graph.base[hinge] - limit)]))
    for node in views[0].order:
        parts = sorted(fronts.pop(node).values(), key=lambda front: len(front.costs))
        part = parts[0]
        for front in parts[1:]:
            part = _joined(part, front, graph.sizes)
        part = _thinned(part.without(node), graph.sizes, views, target)
        for front in parts:
            for other in front.nodes:
                if other != node:
                    del fronts[other][front.nodes]
        if not part.nodes:
            whole = _thinned(_joined(whole, part, graph.sizes), graph.sizes, (), target)
        elif (held := fronts[part.nodes[0]].get(part.nodes)) is not None:
            part = _thinned(_joined(held, part, graph.sizes), graph.sizes, views, target)
        for other in part.nodes:
            fronts[other][part.nodes] = part
    return _least(whole, graph.scale)


def _fronts(graph: Graph) -> dict[int, dict[tuple[int, ...], _Front]]:
    """One front per node, of its costs and sums, and one per edge; indexed by node, and by the nodes that they join."""
    arrays = graph.tables.arrays
    fronts: dict[int, dict[tuple[int, ...], _Front]] = {node: {} for node in graph.alive}
    for node in graph.alive:
        none = np.zeros(graph.sizes[node])
        costs = none if graph.costs[node] == NONE else arrays[graph.costs[node]]
        amounts = sum((arrays[use.amount] for use in graph.uses[node]), none)
        fronts[node][node,] = _Front((node,), (np.arange(len(none)),), costs, amounts)
        for other, matrix in graph.neighbours[node].items():
            if node < other:
                rows, columns = np.nonzero(np.isfinite(arrays[matrix]))
                front = _Front((node, other), (rows, columns), arrays[matrix][rows, columns], np.zeros(len(rows)))
                fronts[node][front.nodes] = fronts[other][front.nodes] = front
    return fronts


def _joined(one: _Front, other: _Front, sizes: Sequence[int]) -> _Front:
    """All combinations of a point of each front that agree on the labels of the shared nodes."""
    shared = [node for node in one.nodes if node in other.nodes]
    ours, theirs = one.keys(shared, sizes), other.keys(shared, sizes)
    order = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs[order], ours, side) for side in ("left", "right"))
    counts = high - low
    total = int(counts.sum())
    exact = one.exact and other.exact
    if total > (PARETO_POINTS if exact else PARETO_COARSE):
        if len(one.costs) >= len(other.costs):
            return _joined(one.halved(sizes), other, sizes)
        return _joined(one, other.halved(sizes), sizes)
    first = np.repeat(np.arange(len(ours)), counts)
    second = order[np.arange(total) + np.repeat(low - (np.cumsum(counts) - counts), counts)]
    more = [at for at, node in enumerate(other.nodes) if node not in one.nodes]
    return _Front(
        one.nodes + tuple(other.nodes[at] for at in more),
        tuple(row[first] for row in one.labels) + tuple(other.labels[at][second] for at in more),
        one.costs[first] + other.costs[second],
        one.amounts[first] + other.amounts[second],
        ((one, first), (other, second)),
        exact=exact,
    )


def _thinned(front: _Front, sizes: Sequence[int], views: Sequence[View], target: float) -> _Front:
    """The front without points that exceed the target at some multiplier, and without dominated points."""
    kinds, kind = np.unique(front.keys(front.nodes, sizes), return_inverse=True)
    good = np.ones(len(kind), dtype=bool)
    for view in views:
        relaxed = front.costs + view.multiplier * front.amounts
        least = np.full(len(kinds), np.inf)
        np.minimum.at(least, kind, relaxed)
        good &= view.bound + _elsewhere(front, view.known) + (relaxed - least[kind]) <= target + 1.0
    front, kind = front.some(np.flatnonzero(good)), kind[good]
    if not len(kind):
        raise Contradiction if front.exact else TooManyError
    order = np.lexsort((front.amounts, front.costs, kind))
    rank = np.unique(front.amounts, return_inverse=True)[1].ravel()
    falling = rank[order] - kind[order] * (len(kind) + 1)  # every kind begins below the one before
    unbeaten = np.ones(len(order), dtype=bool)
    unbeaten[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1]
    return front.some(np.sort(order[unbeaten]))


def _elsewhere(front: _Front, known: Marginals) -> Costs | float:
    """A lower bound on the excess of the rest of the graph, given the labels of a front's nodes."""
    rows = dict(zip(front.nodes, front.labels, strict=True))
    dearer: Costs | float = 0.0
    for at, a in enumerate(front.nodes):
        dearer = np.maximum(dearer, known.node[a][rows[a]])
        for b in front.nodes[at + 1 :]:
            pair = known.pair.get(a, {}).get(b)
            dearer = dearer if pair is None else np.maximum(dearer, pair[rows[a], rows[b]])
    return dearer


def _least(whole: _Front, scale: float) -> Found:
    """The cheapest point, traced back to labels of all nodes."""
    paid = whole.costs + scale * np.maximum(0.0, whole.amounts)
    at = int(np.argmin(paid))
    labels: dict[int, int] = {}
    left = [(whole, at)]
    while left:
        front, point = left.pop()
        labels.update((node, int(row[point])) for node, row in front.eliminated)
        left += [(origin, int(place[point])) for origin, place in front.origins]
    return Found(float(paid[at]), labels, whole.exact)
