"""Branch and bound for one maximum of one sum with ample memory, over parts of the search space by their bounds.

A multiplier of the sum gives a bound, but at the best multiplier two very different assignments are often equally good,
and mixtures of them pay at every seam. So a part is split at the node whose labels distinguish these two best, each
half gets its own multiplier, and what exceeds the incumbent at one of three multipliers is forbidden. That soon leaves
few enough choices for Pareto-front elimination (`pareto.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.bound.ascent import ascend
from shardplan.solve.bound.lagrange import DeadEnd, Relaxation
from shardplan.solve.bound.marginals import Marginals
from shardplan.solve.constants import (
    CUTSET_COMBINATIONS,
    PARETO_PAIRS,
    PART_ASIDE,
    PART_CEILINGS,
    PART_MULTIPLIER_WORK,
    PART_NODE_ENTRIES,
    PART_PAIR_ENTRIES,
    PART_PROGRAM_WORK,
    PART_REDUCED_PAIRS,
    PART_WORK,
    PARTS_WORK,
    SPLIT_LEAST,
)
from shardplan.solve.incumbent import Incumbent
from shardplan.solve.prove.cutset import cutset_branches, forbid
from shardplan.solve.prove.exact import close
from shardplan.solve.prove.integer import Pressure, integer
from shardplan.solve.prove.pareto import TooManyError, View, cheapest
from shardplan.solve.reduce.graph import Contradiction, Gone, Graph
from shardplan.solve.reduce.memory import reduce
from shardplan.solve.reduce.presolve import presolve


@dataclass(frozen=True, slots=True, order=True)
class _Part:
    """A part of the search space; everything cheaper than the incumbent is in one of the parts. `multiplier`: that
    of the sum to start from."""

    bound: float
    number: int
    graph: Graph = field(compare=False)
    multiplier: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Split:
    """The labels of `node` that go to one half, and the bounds of this half and of the other."""

    node: int
    ours: NDArray[np.bool_]
    bounds: tuple[float, float]


def prove_by_parts(relaxation: Relaxation, best: Incumbent, enough: float, most: float = PARTS_WORK) -> None:
    """Proves the incumbent optimal or improves it, for a graph whose only moment is that of the sum and whose
    multipliers are known.

    Ends early with the budget; if a positive gap is good `enough`, also after the work `most`.
    """
    budget = relaxation.budget
    free = budget.free and enough > 0
    if free and _work(relaxation.graph) > 1e6 * PART_WORK:
        return
    search = _Search(relaxation, best)
    end = budget.work + (most if free else budget.proof_work()[0])
    while search.parts and search.parts[0].bound <= best.target and not budget.expired():
        best.prove(min(search.parts[0].bound, search.left))
        if budget.work > end:
            break
        search.step(heappop(search.parts))
    best.prove(min(search.left, search.parts[0].bound if search.parts else np.inf, best.cost))


def _work(graph: Graph) -> float:
    """Entries that a part takes to look at."""
    return PART_NODE_ENTRIES * len(graph.alive) + PART_PAIR_ENTRIES * graph.pairs


class _Search:
    """The open parts. `left`: the lowest bound of the parts that were given up."""

    def __init__(self, relaxation: Relaxation, best: Incumbent) -> None:
        self.whole, self.best = relaxation, best
        self.left = np.inf
        self.parts: list[_Part] = []
        self.number = 0
        assert relaxation.hinge is not None
        for bound, labels in cutset_branches(relaxation, best, CUTSET_COMBINATIONS):
            try:
                part, _ = relaxation.restricted(labels)
                self._add(bound, part.graph, relaxation.known.multipliers.get(relaxation.hinge, 0.0))
            except Contradiction:
                continue

    def _add(self, bound: float, graph: Graph, multiplier: float) -> None:
        self.number += 1
        heappush(self.parts, _Part(bound, self.number, graph, multiplier))

    def step(self, part: _Part) -> None:
        """Solves a part, or replaces it by two halves."""
        self.whole.budget.spend(PART_MULTIPLIER_WORK * _work(part.graph))
        try:
            self._step(part)
        except Contradiction:
            return
        except DeadEnd:  # greedy decoding met a dead end at one of the multipliers
            self._given_up(part.bound)

    def _step(self, part: _Part) -> None:
        best = self.best
        hinge = part.graph.hinge
        if hinge is None:
            return self._closed(part.graph, part.bound)
        relaxation = self._relaxation(part.graph)
        trial = Incumbent(best.scale, cost=best.cost, choices=best.choices)
        ascend(relaxation, trial, {hinge: part.multiplier} if part.multiplier else {})
        best.take(trial)
        if relaxation.best is None:
            return self._whole(part.graph, part.bound, part.multiplier)
        point = relaxation.known
        bound = max(part.bound, point.bound)
        if bound > best.target:
            return None
        multiplier = point.multipliers.get(hinge, 0.0)
        self.whole.budget.spend((1.0 - PART_MULTIPLIER_WORK) * _work(part.graph))
        views = self._views(relaxation, multiplier, best.target - point.bound)
        less = part.graph
        for share in PART_CEILINGS:
            ceiling = float(np.floor((point.bound + share * (best.target - point.bound)) / best.scale)) * best.scale
            if ceiling > bound:
                less, proven = self._below(part.graph, views, ceiling, multiplier)
                bound = max(bound, proven)
                if proven <= ceiling or bound > best.target:
                    break
        if bound > best.target:
            return None
        split = _split(part.graph, views, best.target - point.bound)
        if split is None:
            return self._whole(less, bound, multiplier) if less.pairs <= PART_REDUCED_PAIRS else self._given_up(bound)
        for kept, half in zip((split.ours, ~split.ours), split.bounds, strict=True):
            self._halve(part.graph, views, {split.node: kept}, max(bound, half), multiplier)
        return None

    def _below(self, graph: Graph, views: list[View], ceiling: float, multiplier: float) -> tuple[Graph, float]:
        """What is left of a graph below a ceiling, its cost, and the bound proven for the whole graph: at most the next
        cost."""
        less = graph.copy()
        try:
            forbid(less, [(view.known, ceiling - view.bound) for view in views])
            reduce(less, self.whole.limit)
            if less.hinge is not None and less.pairs <= PART_REDUCED_PAIRS:
                presolve(less, self.whole.limit)
            if less.hinge is None:
                trial = Incumbent(self.best.scale)
                close(less.copy(), trial, self.whole.budget)
                self.best.take(trial)
                return less, min(trial.bound, ceiling + self.best.scale)
            return less, self._fronts(less, ceiling, multiplier) if less.pairs <= PARETO_PAIRS else -np.inf
        except Contradiction:
            return less, ceiling + self.best.scale

    def _halve(
        self, graph: Graph, views: list[View], kept: dict[int, NDArray[np.bool_]], bound: float, multiplier: float
    ) -> None:
        """Adds the part in which a node has the labels `kept`."""
        if bound > self.best.target:
            return
        half = graph.copy()
        try:
            forbid(half, [(view.known, self.best.target - view.bound) for view in views], kept)
            reduce(half, self.whole.limit)
        except Contradiction:
            return
        self._add(bound, half, multiplier)

    def _relaxation(self, graph: Graph) -> Relaxation:
        return Relaxation(graph, self.whole.limit, self.whole.budget, self.whole.whole)

    def _views(self, relaxation: Relaxation, multiplier: float, gap: float) -> list[View]:
        """The graph at the best multiplier, and at one on either side, at which the best assignment of the other side
        is a share of the gap above the bound."""
        hinge = relaxation.hinge
        assert hinge is not None
        views = []
        for at in (multiplier, *_aside(relaxation, multiplier, PART_ASIDE * gap)):
            point, reduced, dual = relaxation.look({hinge: at} if at else {})
            if point.bound > self.best.target:
                raise Contradiction
            order = () if reduced.alive else tuple(step.node for step in reduced.postsolve if isinstance(step, Gone))
            known = Marginals(reduced, dual, self.best.target - point.bound)
            views.append(View(at, point.bound, known, order))
        return views

    def _fronts(self, graph: Graph, ceiling: float, multiplier: float) -> float:
        """The bound proven for a small graph, at most the next cost after the ceiling; its best assignment is offered.
        Raises `Contradiction` if nothing costs so little."""
        relaxation = self._relaxation(graph)
        hinge = graph.hinge
        assert hinge is not None
        point = relaxation.at({hinge: multiplier} if multiplier else {})
        if point.bound > ceiling:
            raise Contradiction
        views = self._views(relaxation, multiplier, ceiling - point.bound)
        if not views[0].order:
            return -np.inf
        try:
            found = cheapest(graph, self.whole.limit, views, ceiling)
        except TooManyError:
            return -np.inf
        self.best.offer(found.cost, lambda: graph.invert(found.labels))
        return min(found.cost, ceiling + self.best.scale) if found.exact else -np.inf

    def _closed(self, graph: Graph, bound: float) -> None:
        """The bound of a part without a maximum."""
        trial = Incumbent(self.best.scale, cost=self.best.cost, choices=self.best.choices)
        close(graph, trial, self.whole.budget)
        self._end(trial, bound)

    def _whole(self, graph: Graph, bound: float, multiplier: float) -> None:
        """Solves a part that cannot be split, or without any known assignment, as an integer program."""
        hinge, limit, budget, whole = graph.hinge, self.whole.limit, self.whole.budget, self.whole.whole
        multipliers = {hinge: multiplier} if hinge is not None and multiplier else {}
        trial = Incumbent(self.best.scale, cost=self.best.cost, choices=self.best.choices)
        pressure = Pressure(graph.moments, limit, budget, whole, (), multipliers, graph.hinges)
        integer(graph, pressure, trial, trial.cost, (PART_PROGRAM_WORK, 0.0, np.inf))
        self._end(trial, bound)

    def _given_up(self, bound: float) -> None:
        self.left = min(self.left, bound)

    def _end(self, trial: Incumbent, bound: float) -> None:
        self.best.take(trial)
        if not trial.closed:
            self._given_up(max(bound, trial.bound))


def _aside(relaxation: Relaxation, multiplier: float, above: float) -> Iterator[float]:
    """Multipliers on either side of the best one; if no assignment on one side is known, at the same distance as on the
    other."""
    hinge = relaxation.hinge
    assert hinge is not None
    points = sorted(relaxation.points, key=relaxation.value)
    slopes = [float(point.excess[hinge]) for point in points]
    up, down = (next((slope for slope in slopes if sign * slope > 0), 0.0) for sign in (1.0, -1.0))
    if not up and not down:
        return
    for at in (
        max(multiplier - above / (up or -down), 0.0),
        min(multiplier - above / (down or -up), relaxation.graph.scale),
    ):
        if float(np.round(at)) != multiplier:
            yield float(np.round(at))


def _split(graph: Graph, views: list[View], room: float) -> _Split | None:
    """The node whose labels the multipliers on either side of the best distinguish most: the labels that are expensive
    at the lower multiplier, and the others."""
    if len(views) < 3:
        return None
    _, low, high = views
    found: tuple[float, _Split] | None = None
    for node in graph.alive:
        dear, cheap = low.known.node[node], high.known.node[node]
        fits = np.all([np.isfinite(view.known.node[node]) for view in views], axis=0)
        ours = low.bound + dear > high.bound + cheap
        one, other = fits & ours, fits & ~ours
        if not one.any() or not other.any():
            continue
        rises = float(dear[one].min()), float(cheap[other].min())
        score = (rises[0] + SPLIT_LEAST * room) * (rises[1] + SPLIT_LEAST * room)
        if found is None or score > found[0]:
            found = score, _Split(node, ours, (low.bound + rises[0], high.bound + rises[1]))
    return None if found is None else found[1]
