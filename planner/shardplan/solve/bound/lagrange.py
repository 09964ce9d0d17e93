"""Lagrangian relaxation of memory: each list of multipliers (cost of a byte at each moment) gives a bound and an
assignment.

    L(p) = min over x of  cost(x) + sum_t p_t * (usage_t(x) - limit)      <=  optimum,  for every p >= 0

L is concave, and every assignment gives a cutting plane above it. The next multipliers are the maximum of all planes,
pulled towards the best multipliers so far. Amounts times multipliers are rounded down, so that costs stay integers and
equal layers stay equal; the bound remains valid and loses less than one unit per usage.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from shardplan.solve.bound.decoding import condition, cutset, greedy
from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.multipliers import Multipliers, digit, lagrangian, rounded
from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    CUTSET_NODES,
    CUTSET_TRIES,
    FRESH_MOMENTS,
    LAGRANGE_IDLE,
    LAGRANGE_SWEEPS,
    MASTER_LARGEST,
    MASTER_PULL,
    MASTER_STEADY,
    MULTIPLIER_MOMENTS,
)
from shardplan.solve.highs.program import quiet_highs
from shardplan.solve.problem import Bytes
from shardplan.solve.reduce.core import Core, Indices, core_of
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Graph
from shardplan.solve.reduce.memory import Profiles, flat, paid_above, peaks, reduce


class DeadEnd(Exception):  # noqa: N818 - of a heuristic, not an error
    """Greedy decoding met only forbidden pairs."""


@dataclass(frozen=True, slots=True)
class Point:
    """The result at one list of multipliers: a bound, labels of the core, their cost, and their bytes above the limit
    per moment."""

    multipliers: Multipliers
    bound: float
    choices: Indices
    cost: float
    excess: Bytes


class Relaxation:
    """L of a graph whose irrelevant moments and choices are already removed."""

    def __init__(self, graph: Graph, limit: int, budget: Budget, whole: Profiles) -> None:
        self.graph = graph
        self.whole = whole
        self.limit = limit
        self.budget = budget
        self.core = core_of(graph)
        self.profiles = Profiles(self.core.uses, self.core.offsets, graph.tables.arrays, graph.base)
        self.room = limit - graph.base
        self.hinges = graph.hinges
        self.hinge = graph.hinge
        self.points: list[Point] = []
        self.moments: list[int] = flat(self.hinges)
        self.best: tuple[Point, Graph | None, Dual | None] | None = None
        self._dual: Dual | None = None
        self._last: Point | None = None
        self._goal: Multipliers = {}

    @property
    def known(self) -> Point:
        """The point of the best bound."""
        assert self.best is not None
        return self.best[0]

    @property
    def reduction(self) -> tuple[Graph, Dual | None]:
        """The graph that elimination left at the best point, with its postsolve stack, and its dual."""
        assert self.best is not None
        if self.best[1] is None:  # the point was known from elsewhere
            multipliers, self.best = self.known.multipliers, None
            self.at(multipliers)
        assert self.best is not None
        assert self.best[1] is not None
        return self.best[1], self.best[2]

    def constant(self, multipliers: Multipliers) -> float:
        """The constant of the Lagrangian, which a bound has deducted: the multipliers times the available room."""
        return sum(multiplier * float(self.room[moment]) for moment, multiplier in multipliers.items())

    def restricted(self, labels: dict[int, tuple[int, ...]]) -> tuple[Relaxation, Multipliers]:
        """The relaxation with fewer labels, or itself if all are kept; and the best multipliers in its numbering."""
        graph = self.graph.copy()
        fewer = [node for node, rows in labels.items() if len(rows) < graph.sizes[node]]
        if not fewer:
            return self, self.known.multipliers
        for node in fewer:
            graph.keep(node, labels[node])
        reduce(graph, self.limit)
        place = {int(moment): index for index, moment in enumerate(graph.moments)}
        numbers = {moment: place.get(int(self.graph.moments[moment])) for moment in self.moments}
        multipliers = {
            n: self.known.multipliers[m] for m, n in numbers.items() if n is not None and m in self.known.multipliers
        }
        twin = Relaxation(graph, self.limit, self.budget, self.whole)
        twin.moments += [n for n in numbers.values() if n is not None and n not in twin.moments]
        return twin, multipliers

    def value(self, point: Point) -> float:
        """The cost of a point's labels at the best multipliers."""
        return point.cost + sum(
            multiplier * float(point.excess[moment]) for moment, multiplier in self.known.multipliers.items()
        )

    def fits(self, point: Point) -> tuple[bool, float]:
        """Whether a point's labels fit in memory, and the cost of the maxima."""
        excess = point.excess.copy()
        above = self.graph.scale * float(paid_above(excess, self.hinges))
        return bool(excess.max(initial=0) <= 0), above

    def know(self, choices: tuple[int, ...], bound: float, multipliers: Multipliers | None = None) -> None:
        """Uses an assignment of the whole problem as a cutting plane; with `multipliers`, also as the point that
        `at` would give."""
        labels = self.graph.apply(choices, self.core.nodes)
        if min(labels, default=0) < 0:
            return
        found = np.array(labels, dtype=np.int64)
        point = Point(multipliers or {}, bound, found, self.core.cost(found), self.profiles.of(found) - self.limit)
        self.points.append(point)
        if multipliers is not None:
            self.best, self._last = (point, None, None), point

    def at(self, multipliers: Multipliers) -> Point:
        """L at given multipliers. Keeps the best point, and the reduced graph behind its bound."""
        point, reduced, dual = self.look(multipliers)
        self.points.append(point)
        self._last = point
        if self.best is None or point.bound > self.known.bound:
            self.best = point, reduced, dual
        return point

    def look(self, multipliers: Multipliers) -> tuple[Point, Graph, Dual | None]:
        """L at given multipliers, with the graph that elimination left, its postsolve stack, and its dual."""
        reduced = lagrangian(self.graph, multipliers)
        for node in reduced.alive:
            reduced.uses[node] = ()
        eliminate(reduced)
        dual, around = _bounded(reduced, self.budget, self._dual)
        self._dual = dual or self._dual
        found = reduced.invert(around)
        choices = np.array([found[node] for node in self.core.nodes], dtype=np.int64)
        bound = (reduced.const if dual is None else dual.bound()) - self.constant(multipliers)
        point = Point(multipliers, bound, choices, self.core.cost(choices), self.profiles.of(choices) - self.limit)
        return point, reduced, dual

    def propose(self) -> tuple[float, Multipliers]:
        """An upper bound on L by all planes, and the multipliers to try next."""
        assert self._last is not None
        for moment in peaks(self._last.excess.astype(np.float64), FRESH_MOMENTS, 1):
            if moment not in self.moments and len(self.moments) < MULTIPLIER_MOMENTS:
                self.moments.append(moment)
        ceiling, multipliers = self._master()
        before, self._goal = self._goal, multipliers
        if len(self.moments) > 1 and not self._steady(before):
            best = self.known.multipliers
            keys = sorted(multipliers.keys() | best.keys())
            multipliers = {
                k: MASTER_PULL * multipliers.get(k, 0.0) + (1 - MASTER_PULL) * best.get(k, 0.0) for k in keys
            }
        return ceiling, self.capped(rounded(multipliers))

    def _steady(self, before: Multipliers) -> bool:
        """Whether all constraints are sums and the maximum of the planes hardly moved: then that point itself is tried,
        which halfway points would only approach."""
        sums, room = flat(self.hinges), MASTER_STEADY * self.graph.scale
        return self.moments == sums and all(abs(before.get(m, 0.0) - self._goal.get(m, 0.0)) <= room for m in sums)

    def capped(self, multipliers: Multipliers) -> Multipliers:
        """Multipliers such that those of one maximum's sums add up to at most one: where they are more, which is no
        bound, all of them are made smaller by the same factor, and rounded down to as few digits."""
        for group in self.hinges:
            total = sum(multipliers.get(moment, 0.0) for moment in group)
            if total <= self.graph.scale:
                continue
            step = digit(multipliers)
            for moment in group:
                if moment in multipliers:
                    multipliers[moment] = step * np.floor(multipliers[moment] * self.graph.scale / total / step)
        return multipliers

    def _master(self) -> tuple[float, Multipliers]:
        """Max z subject to z <= cost_k + sum_t p_t * excess_k,t. Multipliers are at most twice the largest so far;
        that of a single sum at most halfway between that and one; those of one maximum's sums add up to at most one."""
        money, space = max(min(abs(point.cost) for point in self.points), 1.0), float(max(self.limit, 1))
        sums = set(flat(self.hinges))
        asked = [
            multiplier
            for point in self.points
            for moment, multiplier in point.multipliers.items()
            if moment not in sums
        ]
        largest = max([MASTER_LARGEST, *(2 * multiplier * space / money for multiplier in asked)])
        scale = self.graph.scale
        units = np.array([money / scale if moment in sums else space for moment in self.moments])
        highs = quiet_highs()
        none, count = (np.zeros(0, np.int32), np.zeros(0)), len(self.moments)
        highs.addCol(-1.0, -highspy.kHighsInf, highspy.kHighsInf, 0, *none)
        for moment in self.moments:
            tried = [point.multipliers[moment] / scale for point in self.points if moment in point.multipliers]
            midway = 1.0 if len(sums) > 1 else (1.0 + max(tried, default=0.0)) / 2
            highs.addCol(0.0, 0.0, midway if moment in sums else largest, 0, *none)
        for group in self.hinges:
            if len(group) > 1:
                columns = np.array([1 + self.moments.index(moment) for moment in group], dtype=np.int32)
                highs.addRow(-highspy.kHighsInf, 1.0, len(columns), columns, np.ones(len(columns)))
        index = np.arange(count + 1, dtype=np.int32)
        for point in self.points:
            slopes = point.excess[self.moments].astype(np.float64) / units
            row = np.concatenate([[1.0], -slopes])
            highs.addRow(-highspy.kHighsInf, point.cost / money, count + 1, index, row)
        highs.run()
        values = np.array(highs.getSolution().col_value)
        found = zip(self.moments, values[1:], units, strict=True)
        multipliers = {m: float(value) * money / float(unit) for m, value, unit in found if value > 0}
        return float(values[0]) * money, multipliers


def _bounded(reduced: Graph, budget: Budget, last_dual: Dual | None) -> tuple[Dual | None, dict[int, int]]:
    """Bounds the graph that elimination left by sweeps, starting from the messages at other multipliers, and decodes
    labels."""
    if not reduced.alive:
        return None, {}
    core = core_of(reduced)
    dual = Dual(core)
    if last_dual is not None:
        dual.start_from(last_dual)
    last = -np.inf
    for _ in range(LAGRANGE_SWEEPS):
        bound = dual.sweep()
        budget.spend(2 * core.pairs)
        idle = bound - last <= LAGRANGE_IDLE * abs(bound)
        last = bound
        if idle or budget.expired():
            break
    candidates: list[tuple[float, dict[int, int]]] = []
    fixed = cutset(reduced)
    for backward in (False, True):
        choices = greedy(dual, backward=backward)
        if choices is None or any(cost <= last for cost, _ in candidates):
            continue
        labels = dict(zip(core.nodes, choices.tolist(), strict=True))
        candidates.append((core.cost(choices), labels))
        if len(fixed) <= CUTSET_NODES and candidates[-1][0] > last:
            found = condition(reduced, {node: labels[node] for node in fixed})
            if found is not None:
                candidates.append((found[0], dict(zip(reduced.alive, found[1], strict=True))))
    candidates = candidates or _by_cutset(reduced, core, dual, fixed)
    if not candidates:
        raise DeadEnd
    return dual, min(candidates, key=lambda candidate: candidate[0])[1]


def _by_cutset(reduced: Graph, core: Core, dual: Dual, fixed: list[int]) -> list[tuple[float, dict[int, int]]]:
    """For a dead end of greedy decoding: fixes the cutset at the labels that the messages prefer, then one node at a
    time at another label, until elimination finds labels for the rest."""
    if len(fixed) > CUTSET_NODES:
        return []
    place = {node: position for position, node in enumerate(core.nodes)}
    liked = {node: np.argsort(dual.theta[core.offsets[place[node]] : core.offsets[place[node] + 1]]) for node in fixed}
    best = {node: int(order[0]) for node, order in liked.items()}
    others = (
        best | {node: int(order[n])} for n in range(1, CUTSET_TRIES) for node, order in liked.items() if n < len(order)
    )
    for labels in (best, *others):
        found = condition(reduced, labels)
        if found is not None:
            return [(found[0], dict(zip(reduced.alive, found[1], strict=True)))]
    return []
