"""Large cores: a bound by multipliers, primal rounding, tree moves and fusion, and a proof when little is left."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    CLIMB_FLAT,
    CLIMB_MOST_TREES,
    CLIMB_MULTIPLIER_WEIGHTS,
    CLIMB_SHARE,
    CLIMB_TREES,
    CROSSOVER_QUOTA,
    CROSSOVER_WORST,
    KICK_HEAT,
    KICK_RAREST,
    KICK_TREES,
    LARGE_BOUND_SHARE,
    LARGE_BOUND_WORK,
    LARGE_CEILINGS,
    LARGE_CLOSED,
    LARGE_CLOSED_SMALL,
    LARGE_CYCLE,
    LARGE_PROOF_ROUNDS,
    LARGE_PROOF_SHARE,
    LARGE_PROVABLE_PAIRS,
    LARGE_RAISES,
    LARGE_SHAKE,
    LARGE_STALL,
    LARGE_TRIED_PAIRS,
    LARGE_WORK,
    NEAR_PAIRS,
    NEAR_QUOTA,
    NEAR_WIDER,
    PROGRAM_TOLERANCE,
    RAISE_LABEL_ENTRIES,
    RAISE_PAIR_ENTRIES,
    ROUNDING_EVERY,
    ROUNDING_FIRST,
    ROUNDING_LABEL_ENTRIES,
    ROUNDING_PAIR_ENTRIES,
    ROUNDING_POLISH,
    ROUNDING_SWEEPS,
    SHAKE_SWEEPS,
    SHRINK_PAIR_ENTRIES,
    TREE_NODE_ENTRIES,
)
from shardplan.solve.incumbent import Incumbent, offer
from shardplan.solve.prove.integer import Pressure, Quota, integer
from shardplan.solve.reduce.fixing import surviving
from shardplan.solve.reduce.graph import Contradiction, Graph
from shardplan.solve.reduce.memory import Profiles
from shardplan.solve.search.assignment import Assignment, completed, polish
from shardplan.solve.search.rounding import round_primal
from shardplan.solve.search.state import SearchState
from shardplan.solve.search.tree import grow, improve, random_size


def search_large(
    graph: Graph,
    limit: int,
    best: Incumbent,
    budget: Budget,
    whole: Profiles,
    seed: int,
    enough: float,
    multipliers: Mapping[int, float],
) -> None:
    """Improves assignment and bound of a presolved graph until the gap is at most the share `enough` of the cost, or
    the budget ends. `multipliers`: those of memory to start with, by the numbers of moments."""
    search = _Search(graph, limit, best, budget, whole, seed, enough)
    search.state.begin(multipliers, best.scale)
    try:
        search.raise_bound()
        while not (best.within(enough) or budget.expired() or search.spent()):
            search.round()
            if np.isfinite(best.cost) and search.gap <= PROGRAM_TOLERANCE * abs(
                best.cost
            ):  # as close as HiGHS can tell
                best.prove(best.cost)
    except Contradiction:
        best.prove(best.cost)


class _Search:
    """The search: its state, and the assignment under improvement."""

    def __init__(
        self, graph: Graph, limit: int, best: Incumbent, budget: Budget, whole: Profiles, seed: int, enough: float
    ) -> None:
        self.state = SearchState(graph, limit)
        self.limit, self.best, self.budget, self.whole, self.enough = limit, best, budget, whole, enough
        self.rng = random.Random(seed)  # noqa: S311 - a search, not a secret
        self.noise = np.random.default_rng(seed)
        self.current: Assignment | None = None
        self.rounds = 0
        self.width = NEAR_PAIRS
        self.tried, self.proof_rounds = np.inf, 0
        self.began = budget.work

    def spent(self) -> bool:
        """Whether the work limit of a search without explicit limits is spent."""
        free = self.budget.time_limit is None and self.budget.work_limit is None
        return free and self.budget.work - self.began > LARGE_WORK

    @property
    def gap(self) -> float:
        """Cost less bound; infinite without an assignment."""
        return self.best.cost - self.best.bound

    def raise_bound(self) -> None:
        """Sweeps and subgradient steps, with primal rounding on the way."""
        budget, duals = self.budget, self.state.duals
        bounds = [-np.inf]
        end = budget.part(LARGE_BOUND_SHARE, LARGE_BOUND_WORK)
        while not (budget.expired() or budget.past(end)):
            self._raise_once()
            bounds.append(duals.best.bound)
            if len(bounds) % ROUNDING_EVERY == (0 if self.current is not None else ROUNDING_FIRST):
                self._round()
            if self.best.within(self.enough) or self._slow(bounds):
                break
        duals.back()
        self.best.multipliers = {**self.best.multipliers, **self.state.numbered(self.best.scale)}
        self._round()

    def _slow(self, bounds: list[float]) -> bool:
        """Whether other methods are more promising than raising the bound further, given the bounds so far."""
        if not np.isfinite(self.gap):
            return False
        small = self.state.core.pairs <= LARGE_PROVABLE_PAIRS
        sweeps, share = (ROUNDING_EVERY, LARGE_CLOSED_SMALL) if small else (LARGE_STALL, LARGE_CLOSED)
        return len(bounds) > sweeps and bounds[-1] - bounds[-sweeps] <= share * self.gap

    def _raise_once(self) -> None:
        core = self.state.core
        self.best.prove(self.state.duals.improve())
        self.budget.spend(RAISE_PAIR_ENTRIES * core.pairs + RAISE_LABEL_ENTRIES * len(core.costs))

    def _round(self) -> Assignment | None:
        """Primal rounding from the messages, after sweeps in its own order; these are undone, as they would disturb the
        dual ascent."""
        state = self.state
        messages, theta = state.wave.messages.copy(), state.wave.theta.copy()
        for _ in range(ROUNDING_SWEEPS):
            state.wave.sweep()
        self.best.prove(state.duals.bound())
        core = state.core
        self.budget.spend(ROUNDING_LABEL_ENTRIES * len(core.costs) + ROUNDING_PAIR_ENTRIES * core.pairs)
        found = round_primal(state.space, state.duals, self.rng)
        state.wave.messages[:], state.wave.theta[:] = messages, theta
        if found is not None:
            polish(found, ROUNDING_POLISH)
            self._offer(found)
        return found

    def _offer(self, found: Assignment) -> None:
        offer(self.state.graph, self.state.core, found.choices(), self.best)
        if self.current is None or found.cost() < self.current.cost():
            self.current = found.copy()

    def climb(self, assignment: Assignment, heat: float = 0.0, trees: int = CLIMB_MOST_TREES) -> None:
        """Tree moves while they improve; with heat, some moves of which bad ones may stay."""
        state, budget = self.state, self.budget
        paid = state.paid
        cost = mark = assignment.cost()
        end = budget.part(CLIMB_SHARE, np.inf)
        for count in range(1, trees + 1):
            tree = grow(state.space, self.rng, random_size(self.rng))
            slack = -heat * cost * np.log(max(self.rng.random(), KICK_RAREST)) if heat else 0.0
            cost += improve(assignment, tree, self.rng.choice(CLIMB_MULTIPLIER_WEIGHTS), paid, slack)
            budget.spend(TREE_NODE_ENTRIES * len(tree))
            if budget.expired() or budget.past(end):
                return
            if not heat and count % CLIMB_TREES == 0:
                if mark - cost <= CLIMB_FLAT * abs(cost):
                    return
                mark = cost

    def round(self) -> None:
        """One attempt to close the gap: a smaller core, a proof, labels with low reduced costs, tree moves, or a
        fusion."""
        self.shrink()
        if self.best.closed or self.budget.expired():
            return
        self.prove()
        if self.best.closed or self.budget.expired():
            return
        self.rounds += 1
        if self.current is None:
            self._raised()
        elif self.rounds == 2:
            self.climb(self.current)
            self._offer(self.current)
        elif self.rounds % LARGE_CYCLE == 1:
            self._near(self.current)
        else:
            self._crossover(self.current)

    def _crossover(self, current: Assignment) -> None:
        """Makes another good assignment from other multipliers or by heat, and searches the best crossover with the
        current one."""
        sources = (self._raised, self._raised, self._shaken, self._kicked)
        other = sources[self.rounds % len(sources)]()
        if other is None or other.cost() > CROSSOVER_WORST * current.cost() or self.budget.expired():
            return
        self.climb(other)
        self._offer(other)
        if self.current is not None:
            pairs = zip(self.current.labels, other.labels, strict=True)
            self._restricted([tuple(sorted({a, b})) for a, b in pairs], CROSSOVER_QUOTA)

    def _raised(self) -> Assignment | None:
        """An assignment from a bound that was raised further."""
        self.state.duals.back()
        for _ in range(LARGE_RAISES):
            self._raise_once()
            if self.budget.expired():
                return None
        return self._round()

    def _kicked(self) -> Assignment | None:
        """The current assignment after moves of which bad ones may stay."""
        if self.current is None:
            return None
        other = self.current.copy()
        heat = float(np.exp(self.rng.uniform(*np.log(KICK_HEAT))))
        self.climb(other, heat, self.rng.randint(*KICK_TREES))
        return other

    def _shaken(self) -> Assignment | None:
        """An assignment from other multipliers."""
        duals = self.state.duals
        duals.back()
        duals.set_multipliers(duals.multipliers * np.exp(self.noise.normal(0.0, LARGE_SHAKE, len(duals.multipliers))))
        for _ in range(SHAKE_SWEEPS):
            duals.dual.sweep()
        self.budget.spend(2 * SHAKE_SWEEPS * self.state.core.pairs)
        return self._round()

    def _near(self, assignment: Assignment) -> None:
        """The best assignment of the labels with the lowest reduced costs, as many as an integer program can take."""
        labels = self.state.likeliest(assignment.choices(), self.width)
        before, spent = self.best.cost, self.budget.work
        self._restricted(labels, NEAR_QUOTA)
        if self.best.cost >= before and self.budget.work - spent < NEAR_QUOTA[0] / 2:
            self.width *= NEAR_WIDER

    def _restricted(self, labels: list[tuple[int, ...]], quota: Quota) -> None:
        """The best assignment of some of the labels of every position, within `quota`."""
        trial = self.state.graph.copy()
        before = self.best.cost
        try:
            for node, kept in zip(self.state.core.nodes, labels, strict=True):
                if len(kept) < trial.sizes[node]:
                    trial.keep(node, kept)
            integer(trial, self._pressure(), self.best, None, quota)
        except Contradiction:
            return
        if self.best.cost < before:
            self._adopt()

    def _adopt(self) -> None:
        """Continues from the incumbent; labels that reductions removed are replaced by those that dominated them."""
        assert self.best.choices is not None
        labels = self.state.graph.apply(self.best.choices, self.state.core.nodes)
        found = completed(self.state.space, labels)
        if found is not None:
            polish(found)
            self._offer(found)

    def _pressure(self) -> Pressure:
        state = self.state
        moments = tuple(np.flatnonzero(state.duals.active).tolist())
        return Pressure(state.graph.moments, self.limit, self.budget, self.whole, moments, state.multipliers)

    def shrink(self) -> None:
        """Moves to the core of what may be as good as the incumbent, if that is much smaller, and raises the bound
        there."""
        while np.isfinite(self.gap) and not (self.best.closed or self.budget.expired()):
            smaller = self.state.smaller(self.best.cost)
            self.budget.spend(SHRINK_PAIR_ENTRIES * self.state.core.pairs)
            if smaller is None:
                return
            self.state, self.current = smaller, None
            if not smaller.core.nodes:
                offer(smaller.graph, smaller.core, np.zeros(0, dtype=np.int64), self.best)
                raise Contradiction  # what is left is known, and nothing else is better
            self._adopt()
            self.raise_bound()

    def prove(self) -> None:
        """Forbids what costs more than targets that grow up to the incumbent, and lets HiGHS solve what is left if it
        is small."""
        state, best = self.state, self.best
        self.proof_rounds -= 1
        if not np.isfinite(self.gap) or (self.gap > self.tried / 2 and self.proof_rounds > 0):
            return  # not much has changed since the last attempt
        constant = state.restore_best()
        for share in LARGE_CEILINGS:
            ceiling = best.bound + share * self.gap
            if (
                best.closed
                or self.budget.expired()
                or surviving(state.duals.dual, ceiling + constant) > LARGE_TRIED_PAIRS
            ):
                return
            try:
                trial = state.pruned(ceiling + constant)
                if trial.pairs > LARGE_PROVABLE_PAIRS:
                    return
                self.tried, self.proof_rounds = self.gap, LARGE_PROOF_ROUNDS
                integer(trial, self._pressure(), best, ceiling, self.budget.proof(LARGE_PROOF_SHARE))
            except Contradiction:
                best.prove(ceiling)
            self._adopt()
