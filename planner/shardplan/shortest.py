"""The plan of the shortest step, sought by solving problems of layouts and of what is recomputed.

A step takes the larger of two sums (`shardplan.graph.overlap`). Where both are sums over the choices alone, their
larger one is minimised as it is; otherwise weights of the two are tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.graph.overlap import MOST_SOLVES, shortest_step
from shardplan.graph.remat import Recompute
from shardplan.graph.tensors import PICOSECONDS
from shardplan.plan.assemble import peak_memory, price
from shardplan.plan.trial import PlanTrial, proven, trial_of
from shardplan.recomputing import UNPROVEN, Solved, flags, opened, read
from shardplan.solve import Problem, Solution, evaluate
from shardplan.solve.surplus import between, breadth

BALANCED = 0.01
"""Where compute and what hides behind it are proven to be so well balanced, no integer program is asked for better."""
BROADEST = 5e7
"""Entries of tables that balancing may add; beyond, weights must do."""
CLOSE = 0.01
"""Where what was chosen to recompute leaves more than this share of the step unproven, the flags are tried too."""


class Pose(Protocol):
    """Poses the problem at a weight. `again`: what is recomputed, if that is decided; `complete`: with all strategies
    then, so that problems at several weights have the same choices."""

    def __call__(self, weight: float, again: Recompute | None = None, *, complete: bool = False) -> Solved: ...


class Solve(Protocol):
    """Solves arrays, in so many seconds at most where there is a limit on time, to a gap of `unproven`."""

    def __call__(self, problem: Problem, within_s: float = math.inf, *, unproven: float = 0.0) -> Solution: ...


@dataclass(frozen=True)
class Asked:
    """What is to be planned, as the questions that a planner answers.

    `balances`: whether both sums are sums over choices; `chooses`: whether what is recomputed is to be chosen;
    `solve_at(weight, seconds)`: the best assignment at a weight, or the proof that there is none; `refusal`: what to
    raise for such a proof.
    """

    options: PlanOptions
    limit_bytes: int
    balances: bool
    chooses: bool
    pose: Pose
    solve: Solve
    solve_at: Callable[[float, float], Solved]
    refusal: Callable[[Solved], ShardplanError | KeyboardInterrupt]

    def fits(self, trial: PlanTrial) -> bool:
        """Whether a plan keeps the limit on memory."""
        priced, memory = trial.plan
        return peak_memory(memory.holdings, memory.moments, priced.choice).total <= self.limit_bytes


def shortest(asked: Asked) -> tuple[PlanTrial, float]:
    """The plan of the shortest step found, and the greatest proven lower bound on any, in seconds.

    Raises what `asked.refusal` gives where there is none.
    """
    return _Search(asked).found()


class _Search:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._started = time.monotonic()

    def found(self) -> tuple[PlanTrial, float]:
        asked = self.asked
        found = None
        if asked.balances and (asked.chooses or asked.options.time_limit is None):
            found = self._roomy()
        if found is not None:
            return found
        if not asked.chooses:
            return self._as_it_is()
        if asked.balances:
            found = self._chosen()
        trial, bound_s = found or self._by_weights(asked.solve_at)
        if asked.options.time_limit is None and trial.step_s - bound_s > CLOSE * trial.step_s:
            trial = min([trial, *self._flagged(trial)], key=lambda tried: tried.step_s)
        return proven(*trial.plan, bound_s), bound_s

    def _as_it_is(self) -> tuple[PlanTrial, float]:
        """The plan, where it is given what is recomputed."""
        asked = self.asked
        trial, bound_s = self._by_weights(asked.solve_at, at_once=asked.balances)
        if asked.balances and trial.f1_s < trial.f2_s:
            if (sums := self._sums(trial.plan[0].built.recompute)) is not None:
                return self._balanced(trial, bound_s, sums, self._left_s())
            trial, bound_s = self._by_weights(asked.solve_at)
        if trial.weight == 1.0 and trial.f1_s >= trial.f2_s:
            return trial, bound_s
        return proven(*trial.plan, bound_s), bound_s

    def _left_s(self) -> float:
        limit = self.asked.options.time_limit
        return math.inf if limit is None else max(0.0, limit - (time.monotonic() - self._started))

    def _roomy(self) -> tuple[PlanTrial, float] | None:
        """The plan, where the best one at weight one without a limit on memory leads to it: it fits, or hides more than
        it computes. Where what is recomputed is to be chosen, nothing is: if that fits, it is the answer."""
        asked = self.asked
        posed = asked.pose(1.0)
        roomy = asked.solve(replace(posed.problem, limit=None), self._left_s() / 2)
        if roomy.choices is None:
            return None
        known = trial_of(price(posed.built, roomy, posed.charges), posed.memory, roomy.bound / PICOSECONDS)
        fits = roomy.outcome == "optimal" and asked.fits(known)
        if fits and known.f1_s >= known.f2_s:
            return known, known.bound_s
        sums = self._sums(posed.built.recompute) if known.f1_s < known.f2_s else None
        if sums is None:
            return None
        if asked.chooses:
            sums = replace(sums, problem=replace(sums.problem, limit=None))
        best = self._balanced(known if fits else replace(known, f2_s=math.inf), known.bound_s, sums, self._left_s() / 2)
        return best if asked.fits(best[0]) else None

    def _sums(self, again: Recompute) -> Solved | None:
        """The problem of the larger sum when that is recomputed; `None` where it is too large."""
        first, second = (self.asked.pose(weight, again, complete=True) for weight in (1.0, 0.0))
        problem = between(first.problem, second.problem)
        return replace(first, problem=problem) if breadth(problem) <= BROADEST else None

    def _balanced(self, known: PlanTrial, bound_s: float, posed: Solved, within_s: float) -> tuple[PlanTrial, float]:
        """The plan of the shortest step, or `known`, and the bound on any step, from `bound_s`."""
        priced, memory = known.plan
        if priced.solution.outcome != "interrupted" and within_s > 0:
            found = self.asked.solve(posed.problem, within_s, unproven=BALANCED if self.asked.options.gap else 0.0)
            if found.outcome != "infeasible":
                bound_s = max(bound_s, found.bound / PICOSECONDS)
            if found.choices is not None:
                other = self._priced(posed, found)
                if other.step_s < known.step_s:
                    return replace(other, bound_s=bound_s), bound_s
        return proven(priced, memory, bound_s), bound_s

    def _chosen(self) -> tuple[PlanTrial, float] | None:
        """The plan with what is best recomputed for it; `None` where the problem of both is too large, or its search
        ends before anything is found."""
        asked = self.asked
        once = asked.pose(1.0)

        def pose_at(weight: float) -> Solved:
            posed = asked.pose(weight, once.built.recompute, complete=True)
            return opened(posed, lambda again: asked.pose(weight, again, complete=True))

        first, second = pose_at(1.0), pose_at(0.0)
        problem = between(first.problem, second.problem)
        if breadth(problem) > BROADEST:
            return None
        found = asked.solve(problem, self._left_s(), unproven=UNPROVEN if asked.options.gap else 0.0)
        if found.outcome == "infeasible" or (found.choices is None and found.outcome == "interrupted"):
            raise asked.refusal(replace(opened(once, lambda again: asked.pose(1.0, again)), solution=found))
        if found.choices is None:
            return None
        decided = read(first, found, lambda again: asked.pose(1.0, again, complete=True))
        priced = price(decided.built, decided.solution, decided.charges)
        bound_s = found.bound / PICOSECONDS
        return proven(replace(priced, weight=1.0 - found.multipliers[0][0]), decided.memory, bound_s), bound_s

    def _by_weights(
        self, solve_at: Callable[[float, float], Solved], *, at_once: bool = False
    ) -> tuple[PlanTrial, float]:
        """The plan of the shortest step and the bound on any, where `solve_at(weight, seconds)` solves; `at_once`: that
        of weight one alone."""
        refused: list[Solved] = []
        ended = False
        solves: list[str] = []

        def trial_at(weight: float) -> PlanTrial | None:
            nonlocal ended
            if ended:
                return None
            solved = solve_at(weight, self._left_s() / max(1, MOST_SOLVES - len(solves)))
            solves.append(solved.solution.outcome)
            ended = solved.solution.outcome == "interrupted" or self._left_s() <= 0 or at_once
            if solved.solution.choices is None:
                refused.append(solved)
                return None
            priced = price(solved.built, solved.solution, solved.charges)
            return trial_of(priced, solved.memory, solved.solution.bound / PICOSECONDS)

        found = shortest_step(trial_at)
        if found is None:
            raise self.asked.refusal(refused[0])
        return found

    @staticmethod
    def _priced(posed: Solved, found: Solution) -> PlanTrial:
        """A solution of the problem of the larger sum as a plan."""
        assert found.choices is not None
        cost = float(evaluate(replace(posed.problem, limit=None, maxima=()), found.choices).cost)
        priced = price(posed.built, replace(found, cost=cost), posed.charges)
        priced = replace(priced, weight=1.0 - found.multipliers[0][0], solution=found)
        return trial_of(priced, posed.memory, found.bound / PICOSECONDS)

    def _flagged(self, chosen: PlanTrial) -> Iterator[PlanTrial]:
        """The plans of the flags of rematerialisation that may be faster than what was chosen."""
        for again in flags(self.asked.pose(1.0).built):
            sums = self._sums(again) if self.asked.balances else None
            if sums is not None:
                yield self._balanced(chosen, 0.0, sums, math.inf)[0]
                continue

            def solve_at(weight: float, within_s: float, again: Recompute = again) -> Solved:
                posed = self.asked.pose(weight, again)
                return replace(posed, solution=self.asked.solve(posed.problem, within_s))

            there = solve_at(chosen.weight, math.inf).solution
            if there.choices is not None and there.bound / PICOSECONDS < chosen.step_s:
                yield self._by_weights(solve_at)[0]
