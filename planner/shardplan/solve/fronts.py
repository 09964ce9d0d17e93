"""Small graphs whose one moment is that of the surplus: elimination that keeps every pair of cost and surplus of use.

Where elimination minimises a node out, here all ways to label it are kept that none beats in cost and surplus at once,
for every pair of labels of its two neighbours. Prices of the surplus say what the rest of the graph costs at least:
what exceeds the target at any of the prices is dropped. Equal layers give equal sums, so that which of them changes
does not multiply the ways, as it does the nodes of an integer program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.solve.core import Indices
from shardplan.solve.graph import Contradiction, Graph
from shardplan.solve.marginals import Marginals
from shardplan.solve.problem import Costs
from shardplan.solve.tables import NONE

MOST = 1 << 20
"""Ways that are looked at together."""


class TooManyError(Exception):
    """The ways to be kept are too many, or a node has too many neighbours."""


@dataclass(frozen=True, slots=True)
class View:
    """A graph at one price of the surplus, times its scale: the bound, what labels and pairs cost above it, and the
    order in which elimination removes all nodes (empty where it does not)."""

    price: float
    bound: float
    known: Marginals
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Front:
    """Ways to label what has been removed between `nodes`, for labels of these: one per entry of the arrays. `origins`:
    fronts that it was made from, and every way's place there; `settled`: nodes that were removed, with their labels."""

    nodes: tuple[int, ...]
    labels: tuple[Indices, ...]
    costs: Costs
    amounts: Costs
    origins: tuple[tuple[_Front, Indices], ...] = ()
    settled: tuple[tuple[int, Indices], ...] = ()

    def some(self, kept: Indices) -> _Front:
        """Only the ways `kept`."""
        return _Front(
            self.nodes,
            tuple(row[kept] for row in self.labels),
            self.costs[kept],
            self.amounts[kept],
            tuple((front, place[kept]) for front, place in self.origins),
            tuple((node, row[kept]) for node, row in self.settled),
        )

    def without(self, node: int) -> _Front:
        """The same ways, the label of a node no more told apart."""
        at = self.nodes.index(node)
        rest, row = self.labels[:at] + self.labels[at + 1 :], self.labels[at]
        nodes = self.nodes[:at] + self.nodes[at + 1 :]
        return replace(self, nodes=nodes, labels=rest, settled=((node, row),))

    def keys(self, nodes: Sequence[int], sizes: Sequence[int]) -> Indices:
        """The labels of some nodes as one number per way."""
        keys = np.zeros(len(self.costs), dtype=np.int64)
        for node in nodes:
            keys = keys * sizes[node] + self.labels[self.nodes.index(node)]
        return keys


def cheapest(graph: Graph, limit: int, views: Sequence[View], target: float) -> tuple[float, dict[int, int]]:
    """The least cost, surplus included, and labels of all nodes. What costs more than `target` may be missed.

    `views` are of this graph; the order is that of the first. Raises `Contradiction` where nothing costs `target` or
    less, `TooManyError` where this is not the way.
    """
    soft = graph.soft
    assert soft is not None
    if len(views[0].order) < len(graph.alive):
        raise TooManyError
    nodes, pairs = _fronts(graph)
    whole = _Front((), (), np.array([graph.const]), np.array([float(graph.base[soft] - limit)]))
    for node in views[0].order:
        around = sorted(pairs.pop(node).items())
        part = nodes.pop(node)
        if len(around) > 2:
            raise TooManyError
        for other, front in around:
            part = _joined(part, front, graph.sizes)
            del pairs[other][node]
        ends = [other for other, _ in around]
        if len(ends) == 2 and ends[1] in pairs[ends[0]]:
            part = _joined(part, pairs[ends[0]][ends[1]], graph.sizes)
        part = _thinned(part.without(node), graph.sizes, views, target)
        if len(ends) == 2:
            pairs[ends[0]][ends[1]] = pairs[ends[1]][ends[0]] = part
        elif ends:
            nodes[ends[0]] = _thinned(_joined(nodes[ends[0]], part, graph.sizes), graph.sizes, views, target)
        else:
            whole = _thinned(_joined(whole, part, graph.sizes), graph.sizes, (), target)
    return _least(whole, graph.scale)


def _fronts(graph: Graph) -> tuple[dict[int, _Front], dict[int, dict[int, _Front]]]:
    """A front per node, of its costs and surplus, and one per edge, the same seen from both ends."""
    arrays, nodes = graph.tables.arrays, {}
    pairs: dict[int, dict[int, _Front]] = {node: {} for node in graph.alive}
    for node in graph.alive:
        none = np.zeros(graph.sizes[node])
        costs = none if graph.costs[node] == NONE else arrays[graph.costs[node]]
        amounts = sum((arrays[use.amount] for use in graph.uses[node]), none)
        nodes[node] = _Front((node,), (np.arange(len(none)),), costs, amounts)
        for other, matrix in graph.neighbours[node].items():
            if node < other:
                rows, columns = np.nonzero(np.isfinite(arrays[matrix]))
                front = _Front((node, other), (rows, columns), arrays[matrix][rows, columns], np.zeros(len(rows)))
                pairs[node][other] = pairs[other][node] = front
    return nodes, pairs


def _joined(one: _Front, other: _Front, sizes: Sequence[int]) -> _Front:
    """Every way of one with every way of the other that gives the nodes they share the same labels."""
    shared = [node for node in one.nodes if node in other.nodes]
    ours, theirs = one.keys(shared, sizes), other.keys(shared, sizes)
    order = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs[order], ours, side) for side in ("left", "right"))
    counts = high - low
    total = int(counts.sum())
    if total > MOST:
        raise TooManyError
    first = np.repeat(np.arange(len(ours)), counts)
    second = order[np.arange(total) + np.repeat(low - (np.cumsum(counts) - counts), counts)]
    more = [at for at, node in enumerate(other.nodes) if node not in one.nodes]
    return _Front(
        one.nodes + tuple(other.nodes[at] for at in more),
        tuple(row[first] for row in one.labels) + tuple(other.labels[at][second] for at in more),
        one.costs[first] + other.costs[second],
        one.amounts[first] + other.amounts[second],
        ((one, first), (other, second)),
    )


def _thinned(front: _Front, sizes: Sequence[int], views: Sequence[View], target: float) -> _Front:
    """Without ways that exceed the target at some price, and without those that another one beats."""
    kinds, kind = np.unique(front.keys(front.nodes, sizes), return_inverse=True)
    good = np.ones(len(kind), dtype=bool)
    for view in views:
        priced = front.costs + view.price * front.amounts
        least = np.full(len(kinds), np.inf)
        np.minimum.at(least, kind, priced)
        good &= view.bound + _elsewhere(front, view.known) + (priced - least[kind]) <= target + 1.0
    front, kind = front.some(np.flatnonzero(good)), kind[good]
    if not len(kind):
        raise Contradiction
    order = np.lexsort((front.amounts, front.costs, kind))
    rank = np.unique(front.amounts, return_inverse=True)[1].ravel()
    falling = rank[order] - kind[order] * (len(kind) + 1)  # every kind begins below the one before
    unbeaten = np.ones(len(order), dtype=bool)
    unbeaten[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1]
    return front.some(np.sort(order[unbeaten]))


def _elsewhere(front: _Front, known: Marginals) -> Costs | float:
    """How much dearer than the bound the labels of a front's nodes are at least."""
    if len(front.nodes) == 1:
        return known.node[front.nodes[0]][front.labels[0]]
    if len(front.nodes) == 2:
        (a, b), (rows, columns) = front.nodes, front.labels
        pair = known.pair.get(a, {}).get(b)
        return np.maximum(known.node[a][rows], known.node[b][columns]) if pair is None else pair[rows, columns]
    return 0.0


def _least(whole: _Front, scale: float) -> tuple[float, dict[int, int]]:
    """The cheapest way, followed back to labels of all nodes."""
    paid = whole.costs + scale * np.maximum(0.0, whole.amounts)
    at = int(np.argmin(paid))
    labels: dict[int, int] = {}
    left = [(whole, at)]
    while left:
        front, way = left.pop()
        labels.update((node, int(row[way])) for node, row in front.settled)
        left += [(origin, int(place[way])) for origin, place in front.origins]
    return float(paid[at]), labels
