"""The larger of two sums where memory is roomy: parts of the graph, the most promising first, until one is proven best.

A price of the surplus gives a bound, but at the best price two assignments that have little in common are often
equally good, and what lies between them pays for every seam. So a part is split at the node whose labels tell these two
apart best, each half finds a price of its own, and what exceeds the incumbent at one of three prices is forbidden.
That soon leaves so little that elimination can keep every pair of cost and surplus of use (`fronts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.ascent import ascend
from shardplan.solve.exact import Incumbent, close
from shardplan.solve.fronts import TooManyError, View, cheapest
from shardplan.solve.graph import Contradiction, Gone, Graph
from shardplan.solve.integer import Pressure, integer
from shardplan.solve.lagrange import Relaxation
from shardplan.solve.marginals import Marginals
from shardplan.solve.memory import reduce
from shardplan.solve.presolve import presolve
from shardplan.solve.ways import forbid, ways_to_fix

EXACT_WORK = 2e3
"""Work, about two seconds, after which a gap that is small enough will do, where no limit is given."""
REDUCED, SMALL = 40_000, 8_000
"""Pairs that are worth all reductions, and so few that all ways to settle them may be kept."""
ASIDE = 0.35
"""The other two prices are where the best assignments of either side are this share of the gap above the bound."""
LEAST = 1e-3
"""Share of the gap that a half whose bound does not rise counts for."""
NODE_WORK, PAIR_WORK = 3e5, 50.0
"""Entries looked at in a part, per node and per pair, on average."""


@dataclass(frozen=True, slots=True, order=True)
class _Part:
    """What costs less than the incumbent is in one of the parts; `price`: of the surplus, to start from."""

    bound: float
    number: int
    graph: Graph = field(compare=False)
    price: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Split:
    """The labels of `node` that go to one half, and the bounds of that and of the other."""

    node: int
    ours: NDArray[np.bool_]
    bounds: tuple[float, float]


def balance(relaxation: Relaxation, best: Incumbent, enough: float) -> None:
    """Prove the incumbent or better it, for a graph with no moment but that of the surplus, whose prices are known.

    Ends early with the budget, or with a relative gap of `enough` after some work.
    """
    search = _Search(relaxation, best)
    budget = relaxation.budget
    most, began = budget.efforts()[0], budget.work
    unlimited = budget.time_limit is None and budget.work_limit is None
    while search.parts and search.parts[0].bound <= best.target and not budget.expired():
        best.prove(min(search.parts[0].bound, search.left))
        worked = budget.work - began
        if worked > most or (unlimited and worked > EXACT_WORK and best.within(enough)):
            break
        search.step(heappop(search.parts))
    best.prove(min(search.left, search.parts[0].bound if search.parts else np.inf, best.cost))


class _Search:
    """The parts that are left. `left`: the least bound of those that were given up."""

    def __init__(self, relaxation: Relaxation, best: Incumbent) -> None:
        self.whole, self.best = relaxation, best
        self.left = np.inf
        self.parts: list[_Part] = []
        self.number = 0
        assert relaxation.soft is not None
        for labels in ways_to_fix(relaxation, best):
            try:
                part, _ = relaxation.restricted(labels)
                self._add(relaxation.known.bound, part.graph, relaxation.known.prices.get(relaxation.soft, 0.0))
            except Contradiction:
                continue

    def _add(self, bound: float, graph: Graph, price: float) -> None:
        self.number += 1
        heappush(self.parts, _Part(bound, self.number, graph, price))

    def step(self, part: _Part) -> None:
        """Solve a part, or replace it by two, or by less of it."""
        self.whole.budget.spend(NODE_WORK * len(part.graph.alive) + PAIR_WORK * part.graph.pairs)
        try:
            self._step(part)
        except Contradiction:
            return

    def _step(self, part: _Part) -> None:
        best = self.best
        soft = part.graph.soft
        if soft is None:
            return self._closed(part.graph, part.bound)
        relaxation = self._relaxation(part.graph)
        trial = Incumbent(best.scale, cost=best.cost, choices=best.choices)
        ascend(relaxation, trial, {soft: part.price} if part.price else {})
        best.take(trial)
        if relaxation.best is None:
            return self._whole(part.graph, part.bound, part.price)
        point = relaxation.known
        bound = max(part.bound, point.bound)
        if bound > best.target:
            return None
        price = point.prices.get(soft, 0.0)
        views = self._views(relaxation, price, best.target - point.bound)
        less = part.graph.copy()
        forbid(less, [view.known for view in views])
        pairs = self._reduced(less)
        if less.soft is None or (pairs <= SMALL and self._fronts(less, price)):
            return None if less.soft is not None else self._closed(less, bound)
        split = _split(part.graph, views, point.bound, best.target)
        if split is None:
            return self._whole(less, bound, price)
        for kept, half in zip((split.ours, ~split.ours), split.bounds, strict=True):
            self._halve(part.graph, views, split.node, kept, max(bound, half), price)
        return None

    def _halve(
        self, graph: Graph, views: list[View], node: int, kept: NDArray[np.bool_], bound: float, price: float
    ) -> None:
        """Add the part in which a node has the labels `kept`."""
        if bound > self.best.target:
            return
        half = graph.copy()
        try:
            forbid(half, [view.known for view in views], {node: kept})
            reduce(half, self.whole.limit)
        except Contradiction:
            return
        self._add(bound, half, price)

    def _relaxation(self, graph: Graph) -> Relaxation:
        return Relaxation(graph, self.whole.limit, self.whole.budget, self.whole.whole)

    def _reduced(self, graph: Graph) -> int:
        """The pairs that are left after reductions."""
        reduce(graph, self.whole.limit)
        if graph.soft is not None and graph.pairs <= REDUCED:
            presolve(graph, self.whole.limit)
        return graph.pairs

    def _views(self, relaxation: Relaxation, price: float, gap: float) -> list[View]:
        """The graph at the best price, and at one on either side, at which the best assignment of the other side is
        a share of the gap above the bound."""
        soft = relaxation.soft
        assert soft is not None
        views = []
        for at in (price, *_aside(relaxation, price, ASIDE * gap)):
            point, reduced, dual = relaxation.look({soft: at} if at else {})
            if point.bound > self.best.target:
                raise Contradiction
            order = () if reduced.alive else tuple(step.node for step in reduced.trail if isinstance(step, Gone))
            known = Marginals(reduced, dual, self.best.target - point.bound)
            views.append(View(at, point.bound, known, order))
        return views

    def _fronts(self, graph: Graph, price: float) -> bool:
        """Whether elimination solved a small graph."""
        relaxation = self._relaxation(graph)
        soft = graph.soft
        assert soft is not None
        point = relaxation.at({soft: price} if price else {})
        if point.bound > self.best.target:
            return True
        try:
            views = self._views(relaxation, price, self.best.target - point.bound)
            cost, labels = cheapest(graph, self.whole.limit, views, self.best.target)
        except Contradiction:
            return True
        except TooManyError:
            return False
        self.best.offer(cost, lambda: graph.restore(labels))
        return True

    def _closed(self, graph: Graph, bound: float) -> None:
        """A part without surplus."""
        trial = Incumbent(self.best.scale, cost=self.best.cost, choices=self.best.choices)
        close(graph, trial, self.whole.budget)
        self._end(trial, bound)

    def _whole(self, graph: Graph, bound: float, price: float) -> None:
        """A part that cannot be split, or of which nothing is known, as an integer program."""
        soft, limit, budget, whole = graph.soft, self.whole.limit, self.whole.budget, self.whole.whole
        prices = {soft: price} if soft is not None and price else {}
        trial = Incumbent(self.best.scale, cost=self.best.cost, choices=self.best.choices)
        integer(graph, Pressure(graph.moments, limit, budget, whole, (), prices, soft), trial, trial.cost)
        self._end(trial, bound)

    def _end(self, trial: Incumbent, bound: float) -> None:
        self.best.take(trial)
        if not trial.closed:
            self.left = min(self.left, max(bound, trial.bound))


def _aside(relaxation: Relaxation, price: float, above: float) -> Iterator[float]:
    """Prices on either side of the best, as far as there are assignments that lose there."""
    soft = relaxation.soft
    assert soft is not None
    points = sorted(relaxation.points, key=relaxation.value)
    slopes = [float(point.excess[soft]) for point in points]
    for sign, end in ((1.0, 0.0), (-1.0, relaxation.graph.scale)):
        slope = next((slope for slope in slopes if sign * slope > 0), None)
        if slope is not None:
            at = price - above / slope
            at = max(at, end) if sign > 0 else min(at, end)
            if at != price:
                yield float(np.round(at))


def _split(graph: Graph, views: list[View], bound: float, target: float) -> _Split | None:
    """The node whose labels are told apart best by the prices on either side of the best: those that are dear at the
    lower one, and the others."""
    if len(views) < 3:
        return None
    room = target - bound
    _, low, high = views
    found: tuple[float, _Split] | None = None
    for node in graph.alive:
        below, above = low.bound + low.known.node[node], high.bound + high.known.node[node]
        fits = np.all([np.isfinite(view.known.node[node]) for view in views], axis=0)
        ours = below > above
        if not (fits & ours).any() or not (fits & ~ours).any():
            continue
        bounds = float(below[fits & ours].min()), float(above[fits & ~ours].min())
        rises = [min(max(half - bound, 0.0), room) + LEAST * room for half in bounds]
        if found is None or rises[0] * rises[1] > found[0]:
            found = rises[0] * rises[1], _Split(node, ours, bounds)
    return None if found is None else found[1]
