"""Large cores: a bound by multipliers, assignments by placing, trees and mixing, and a proof when what is left is
small."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise

import numpy as np

from shardplan.solve.budget import Budget
from shardplan.solve.core import Core, core_of, depths
from shardplan.solve.dual import Dual
from shardplan.solve.exact import Incumbent, offer
from shardplan.solve.graph import Contradiction, Graph
from shardplan.solve.integer import Effort, Pressure, integer
from shardplan.solve.memory import Profiles
from shardplan.solve.multipliers import Multipliers
from shardplan.solve.place import place
from shardplan.solve.presolve import presolve
from shardplan.solve.problem import Costs
from shardplan.solve.prune import label_excess, prune
from shardplan.solve.search import Assignment, Space, polish
from shardplan.solve.tree import grow, improve, random_size

PLACED_EVERY = 24
WAVES = 2
STALL, GAIN = 60, 2e-4
"""The bound is left alone when so many sweeps raised it by less than this share."""
BOUND_SHARE = 0.3
"""Share of the time, or of the work, that the bound may take."""
BOUND_WORK = 3e4
MIXING_WORK = 6e4
"""Work of the bound and of the search when no limit is given: about half a minute and a minute."""
SHARES = (0.05, 0.25, 1.0)
PROVABLE = 60_000
"""Pairs of labels that are worth a proof."""
TREES = 150
FLAT = 1e-5
"""So many trees that improve by less than this share end a climb."""
PRICE_WEIGHTS = (0.0, 0.1, 0.3, 1.0)
RAISES = 40
SHAKE = 0.15
WORST = 1.3
HEAT = (3e-5, 2e-3)
KICKS = (20, 120)
MIX_EFFORT: Effort = (4e3, 0.01, 8.0)
NEAR_EFFORT: Effort = (1e4, 0.01, 15.0)
NEAR_PAIRS = 150_000


def search_large(graph: Graph, limit: int, best: Incumbent, budget: Budget, whole: Profiles, seed: int) -> None:
    """Improve assignment and bound of a presolved graph until one meets the other or the budget ends."""
    search = _Search(graph, limit, best, budget, whole, seed)
    try:
        search.raise_bound()
        search.prove()
        while not (best.closed or budget.expired() or search.spent()):
            search.round()
        search.prove()
    except Contradiction:
        best.prove(best.cost)


class _Search:
    """A core, its multipliers, and the assignment that is being improved."""

    def __init__(self, graph: Graph, limit: int, best: Incumbent, budget: Budget, whole: Profiles, seed: int) -> None:
        self.graph, self.limit, self.best, self.budget, self.whole = graph, limit, best, budget, whole
        self.core: Core = core_of(graph)
        profiles = Profiles(self.core.uses, self.core.offsets, graph.tables.arrays, graph.base)
        self.duals = Multipliers(self.core, profiles, limit)
        rows = [[other for other, _, _ in row] for row in self.core.around]
        self.wave = Dual(self.core, depths(rows), self.duals.dual)
        self.space = Space(self.core, profiles, limit)
        self.rng = random.Random(seed)  # noqa: S311 - a search, not a secret
        self.noise = np.random.default_rng(seed)
        self.current: Assignment | None = None
        self.rounds = 0
        self.width = float(NEAR_PAIRS)
        self.began = budget.work

    def spent(self) -> bool:
        """Whether the work of a search without limits is done."""
        free = self.budget.time_limit is None and self.budget.work_limit is None
        return free and self.budget.work - self.began > MIXING_WORK

    def raise_bound(self) -> None:
        """Sweeps and price steps, with assignments placed on the way."""
        budget, duals = self.budget, self.duals
        bounds = [-np.inf]
        end = self._bound_end()
        while not budget.expired() and (budget.seconds < end[0] and budget.work < end[1]):
            self.best.prove(duals.improve())
            budget.spend(3 * self.core.pairs + 20 * len(self.core.costs))
            bounds.append(duals.best.bound)
            if len(bounds) % PLACED_EVERY == 0:
                self._place()
            done = len(bounds) > STALL and bounds[-1] - bounds[-STALL] <= GAIN * abs(bounds[-1])
            if self.best.closed or (done and self.current is not None):
                break
        duals.back()
        self._place()

    def _bound_end(self) -> tuple[float, float]:
        budget = self.budget
        if budget.time_limit is not None:
            return budget.seconds + BOUND_SHARE * budget.seconds_left, np.inf
        if budget.work_limit is not None:
            return np.inf, budget.work + BOUND_SHARE * (budget.work_limit - budget.work)
        return np.inf, budget.work + BOUND_WORK

    def _place(self) -> Assignment | None:
        """An assignment read off the messages, after sweeps in the order in which it is read; these are undone, as
        they would take the bound off its way."""
        messages, theta = self.wave.messages.copy(), self.wave.theta.copy()
        for _ in range(WAVES):
            self.wave.sweep()
        self.best.prove(self.duals.bound())
        self.budget.spend(200 * len(self.core.costs) + 6 * self.core.pairs)
        found = place(self.space, self.duals, self.rng)
        self.wave.messages[:], self.wave.theta[:] = messages, theta
        if found is not None:
            polish(found, rounds=1)
            self._offer(found)
        return found

    def _offer(self, found: Assignment) -> None:
        offer(self.graph, self.core, found.choices(), self.best)
        if self.current is None or found.cost() < self.current.cost():
            self.current = found.copy()

    def climb(self, assignment: Assignment, heat: float = 0.0, trees: int = 10**9) -> None:
        """Tree moves while they pay; with heat, a number of moves of which bad ones may stay."""
        paid = self._paid()
        cost = mark = assignment.cost()
        for count in range(1, trees + 1):
            tree = grow(self.space, self.rng, random_size(self.rng))
            slack = -heat * cost * np.log(max(self.rng.random(), 1e-9)) if heat else 0.0
            cost += improve(assignment, tree, self.rng.choice(PRICE_WEIGHTS), paid, slack)
            self.budget.spend(2000 * len(tree))
            if self.budget.expired():
                return
            if not heat and count % TREES == 0:
                if mark - cost <= FLAT * abs(cost):
                    return
                mark = cost

    def _paid(self) -> list[Costs]:
        offsets = self.core.offsets.tolist()
        return [self.duals.paid[a:b] for a, b in itertools.pairwise(offsets)]

    def round(self) -> None:
        """Climb; make another good assignment by other prices or by heat; mix the two."""
        self.rounds += 1
        if self.current is None:
            self._raised()
            return
        if self.rounds == 1:
            self.climb(self.current)
            self._offer(self.current)
            return
        if self.rounds % 4 == 2:
            self._near(self.current)
            return
        other = (self._raised, self._shaken, self._shaken, self._kicked)[self.rounds % 4]()
        if other is None or other.cost() > WORST * self.current.cost() or self.budget.expired():
            return
        self.climb(other)
        self._offer(other)
        self._mix(self.current, other)

    def _raised(self) -> Assignment | None:
        """An assignment from a bound that was raised some more."""
        self.duals.back()
        for _ in range(RAISES):
            self.best.prove(self.duals.improve())
            self.budget.spend(3 * self.core.pairs + 20 * len(self.core.costs))
            if self.budget.expired():
                return None
        return self._place()

    def _kicked(self) -> Assignment:
        """The current assignment after moves of which bad ones may stay."""
        assert self.current is not None
        other = self.current.copy()
        heat = float(np.exp(self.rng.uniform(*np.log(HEAT))))
        self.climb(other, heat, self.rng.randint(*KICKS))
        return other

    def _shaken(self) -> Assignment | None:
        """An assignment from other prices."""
        duals = self.duals
        duals.back()
        duals.set_prices(duals.prices * np.exp(self.noise.normal(0.0, SHAKE, len(duals.prices))))
        for _ in range(6):
            duals.dual.sweep()
        self.budget.spend(12 * self.core.pairs)
        return self._place()

    def _near(self, assignment: Assignment) -> None:
        """The best assignment of labels that the bound finds least objectionable, as many as a program can take."""
        self.duals.back()
        self.duals.dual.sweep()
        excess = label_excess(self.duals.dual)
        offsets = self.core.offsets
        excess[offsets[:-1] + assignment.choices()] = 0.0
        owner = np.repeat(np.arange(len(self.core.nodes)), self.core.sizes)
        low, high = 0.0, float(excess[np.isfinite(excess)].max())
        for _ in range(40):
            middle = (low + high) / 2
            counts = np.bincount(owner[excess <= middle], minlength=len(self.core.nodes))
            many = float((counts[self.core.first] * counts[self.core.second] - 1).sum()) > self.width
            low, high = (low, middle) if many else (middle, high)
        fits = excess <= low
        labels = [tuple(np.flatnonzero(fits[a:b]).tolist()) for a, b in pairwise(offsets.tolist())]
        before, spent = self.best.cost, self.budget.work
        self._restricted(labels, NEAR_EFFORT)
        if self.best.cost >= before and self.budget.work - spent < NEAR_EFFORT[0] / 2:
            self.width *= 3

    def _mix(self, ours: Assignment, theirs: Assignment) -> None:
        """The best assignment that has a label of one of two at every position."""
        pairs = zip(ours.labels, theirs.labels, strict=True)
        self._restricted([tuple(sorted({a, b})) for a, b in pairs], MIX_EFFORT)

    def _restricted(self, labels: list[tuple[int, ...]], effort: Effort) -> None:
        """The best assignment of some of the labels of every position, as far as `effort` goes."""
        trial = self.graph.copy()
        for node, kept in zip(self.core.nodes, labels, strict=True):
            if len(kept) < trial.sizes[node]:
                trial.keep(node, kept)
        before = self.best.cost
        try:
            integer(trial, self._pressure(), self.best, None, effort)
        except Contradiction:
            return
        if self.best.cost < before:
            self._adopt()

    def _adopt(self) -> None:
        """Go on from the incumbent."""
        assert self.best.choices is not None
        labels = self.graph.labels(self.best.choices, self.core.nodes)
        if labels is not None:
            self.current = Assignment(self.space, labels)

    def _pressure(self) -> Pressure:
        prices = {int(m): float(self.duals.best.prices[m]) for m in np.flatnonzero(self.duals.best.prices)}
        moments = tuple(np.flatnonzero(self.duals.active).tolist())
        return Pressure(self.graph.moments, self.limit, self.budget, self.whole, moments, prices)

    def prove(self) -> None:
        """Forbid what costs more than targets that grow up to the incumbent, and let HiGHS decide what is left if it
        is little."""
        self.duals.back()
        self.duals.dual.sweep()
        held = self.duals.dual.bound() - self.duals.bound()
        for share in SHARES:
            gap = self.best.cost - self.best.bound
            if self.best.closed or self.budget.expired() or not np.isfinite(gap):
                return
            ceiling = self.best.bound + share * gap
            trial = self.graph.copy()
            try:
                prune(trial, self.duals.dual, ceiling + held, adopt=False)
                presolve(trial, self.limit)
                if core_of(trial).pairs > PROVABLE:
                    return
                integer(trial, self._pressure(), self.best, ceiling)
            except Contradiction:
                self.best.prove(ceiling)
        if self.current is not None and self.best.cost < self.current.cost():
            self._adopt()
