"""The entry of the solver: chooses the method for a problem, and evaluates its answer independently."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardplan.errors import checks_itself
from shardplan.interruption import GivenUpError
from shardplan.solve.bound.averages import by_averages
from shardplan.solve.budget import Budget, Phase, Progress
from shardplan.solve.constants import (
    AVERAGES_LARGE_UNPROVEN,
    AVERAGES_SOLVES,
    AVERAGES_UNPROVEN,
    AVERAGES_WORK,
    CANDIDATES,
    CLOSED_GAP,
    CLOSED_PAIRS,
    CLOSED_WORK,
    MULTIPLIER_DIGITS,
    SHORTFALL_SECONDS,
    SUMS_BROADEST,
)
from shardplan.solve.evaluate import evaluate
from shardplan.solve.incumbent import Incumbent, Pool
from shardplan.solve.problem import ANYWHERE, Outcome, Problem, Solution, Start, SumMultipliers
from shardplan.solve.prove.exact import close, prove
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.graph import Contradiction, Graph, build
from shardplan.solve.reduce.memory import tighten
from shardplan.solve.reduce.sums import SumsOnNodes, breadth, sums_to_nodes
from shardplan.solve.reduce.tables import Tables
from shardplan.solve.shortfall import least_limit
from shardplan.solve.small_cores import fit
from shardplan.solve.validate import validate

_EXACT, _ROUNDED = 2.0**53, 1e-12
"""Integers above are rounded on their way through the search, by less than this share."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a solve may spend, and what is good enough, as `solve` has it."""

    seconds: float | None = None
    work: float | None = None
    most_work: float = math.inf
    gap: float = 0.0
    unproven: float = 0.0
    below: float = math.inf
    averages: int = 0
    shortfall: bool = True
    is_patient: bool = False
    seed: int = 0
    presolve: bool = True

    @property
    def budget(self) -> Budget:
        """What can be spent, from now on."""
        return Budget(self.seconds, self.work, self.most_work, self.is_patient)


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    work_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    presolve: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    unproven: float = 0.0,
    start: Start = ANYWHERE,
    averages: int = 0,
    below: float = math.inf,
    most_work: float = math.inf,
    shortfall: bool = True,
    closes: bool = False,
    is_patient: bool = False,
) -> Solution:
    """The cheapest assignment that fits in memory, with a proven lower bound.

    `time_limit` in seconds; `work_limit` in units of about a million table entries, which makes a stop reproducible;
    `gap`: with memory rows, the relative gap that is good enough; `seed` moves the search on large cores.
    `presolve=False` gives the whole integer program to HiGHS. `unproven`: a relative gap that may stay open when better
    multipliers of memory close it no further, without a further proof; `start`: what is known before; `averages`:
    maxima are only averaged, by at most so many plain problems, which is fast and leaves the remaining gap open;
    `below`: it ends if no assignment costs less; `most_work`: work after which it ends with what it has, without
    effect on a problem that needs less; `shortfall`: if nothing fits, determine how much memory is missing; `closes`:
    the gap that averages leave in a small problem is closed as far as a little work does it; `is_patient`: a time limit
    does not end a search without maxima before it has an assignment. Ctrl-C ends the search and returns the best
    assignment so far.
    Raises `ShardplanError` for a malformed problem.
    """
    validate(problem)
    limits = Limits(
        time_limit, work_limit, most_work, gap, unproven, below, averages, shortfall, is_patient, seed, presolve
    )  # fmt: skip
    found = search(problem, limits, start, on_progress)
    if not (closes and averages and presolve and problem.maxima and _is_worth_closing(problem, found, gap)):
        return found
    begin = Start(found.sum_multipliers, (), found.memory_multipliers, found.candidates)
    left = None if time_limit is None else max(0.0, time_limit - found.seconds)
    closing = Limits(left, gap=gap, seed=seed, most_work=min(CLOSED_WORK, most_work), shortfall=False)
    return _better_of(found, search(problem, closing, begin))


def _is_worth_closing(problem: Problem, found: Solution, gap: float) -> bool:
    """Whether averages leave a gap in a problem that is small enough to be solved with its maxima."""
    is_open = found.choices is not None and found.gap > max(gap, CLOSED_GAP) and found.outcome != "interrupted"
    return is_open and sum(edge.table.size for edge in problem.edges) <= CLOSED_PAIRS


def _better_of(averaged: Solution, exact: Solution) -> Solution:
    """The cheaper assignment and the higher bound of two searches of one problem; all else as averages gave it."""
    bound = max(averaged.bound, exact.bound)
    best = exact if exact.choices is not None and exact.cost < averaged.cost else averaged
    other = averaged if best is exact else exact
    known = dict.fromkeys((*best.candidates, *other.candidates))
    outcome: Outcome = "interrupted" if exact.outcome == "interrupted" else "feasible"
    return replace(
        averaged, choices=best.choices, cost=best.cost, bound=bound, candidates=tuple(known)[:CANDIDATES],
        outcome="optimal" if bound >= best.cost else outcome, seconds=averaged.seconds + exact.seconds,
        work=averaged.work + exact.work, reproducible=averaged.reproducible and exact.reproducible,
        failure=averaged.failure or exact.failure,
    )  # fmt: skip


def search(
    problem: Problem,
    limits: Limits,
    start: Start = ANYWHERE,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """`solve` for a problem that is known to be well formed."""
    if limits.presolve and problem.maxima and (limits.averages or breadth(problem) > SUMS_BROADEST):
        return _averaged(problem, limits, start, on_progress or (lambda _: None))
    with limits.budget as budget:
        best = Incumbent(1.0, pool=Pool() if problem.maxima else None)
        phase: list[Phase] = ["reduce"]
        failure = ""
        if on_progress is not None:
            best.report = lambda: on_progress(
                Progress(budget.seconds, best.cost / best.scale, best.bound / best.scale, phase[0], budget.work)
            )
        wide = sums_to_nodes(problem)
        try:
            graph = build(wide.problem, Tables(budget), wide.amounts, wide.groups)
            best.scale, best.below = graph.scale, limits.below * graph.scale
            phase[0] = "bound"
            if not limits.presolve:
                _whole(graph, best, budget, problem.limit)
            elif problem.limit is None and not graph.groups:
                _offer_known(problem, start.assignments, best)
                close(graph, best, budget, min(limits.unproven, AVERAGES_LARGE_UNPROVEN))
            else:
                fit(graph, problem.limit or 0, best, budget, limits.gap, limits.seed, limits.unproven, start)
        except Contradiction:
            best.bound = np.inf
        except GivenUpError:  # the bound and the assignment so far are the answer
            pass
        except Exception as defect:  # what is known by now is an answer, whatever fails
            if checks_itself():
                raise
            failure = f"{type(defect).__name__}: {defect}"
        missing = 0
        if limits.shortfall and best.bound == np.inf and problem.limit is not None:
            missing = _shortfall(problem, problem.limit, budget)
        return replace(_solution(problem, wide, best, budget, missing), failure=failure)


def _averaged(problem: Problem, limits: Limits, start: Start, on_progress: Callable[[Progress], None]) -> Solution:
    """Plain problems at several multipliers: the only method if the sums are too broad to become sums over nodes."""
    most, gap = limits.averages or AVERAGES_SOLVES, limits.gap
    unproven = max(limits.unproven, AVERAGES_UNPROVEN) if gap else limits.unproven
    with replace(limits, is_patient=False).budget as budget:
        failures, bounds = [""], [-math.inf]

        def plain(averaged: Problem, begin: Start) -> Solution:
            left = None if limits.seconds is None else max(0.0, budget.seconds_left) / 2
            work = None if limits.work is None else limits.work / most
            own = Limits(
                left, work, min(AVERAGES_WORK, budget.most_left), gap, unproven,
                shortfall=limits.shortfall, seed=limits.seed,
            )  # fmt: skip
            found = search(averaged, own, begin)
            budget.work += found.work
            failures.append(found.failure)
            if math.isfinite(found.bound):
                bounds.append(found.bound / 2**MULTIPLIER_DIGITS)
            on_progress(Progress(budget.seconds, np.inf, max(bounds), "bound", budget.work, len(failures) - 1))
            return found

        found = by_averages(problem, plain, start, budget.expired, most, limits.below)
        is_cut = budget.interrupted and found.outcome != "infeasible"  # a proof holds, whatever comes after it
        outcome: Outcome = "interrupted" if is_cut else found.outcome
        reproducible = found.reproducible and budget.reproducible
        return replace(found, outcome=outcome, reproducible=reproducible, work=budget.work, failure=max(failures))


def _shortfall(problem: Problem, limit: int, budget: Budget) -> int:
    """By how much the smallest feasible limit is above the limit, or a lower bound of it; infeasibility is already
    proven, and the caller waits for the message."""
    ends = budget.seconds + SHORTFALL_SECONDS
    budget.time_limit = ends if budget.time_limit is None else min(budget.time_limit, ends)
    needed = least_limit(problem, budget)
    return 0 if needed is None else needed - limit


def _offer_known(problem: Problem, assignments: Sequence[tuple[int, ...]], best: Incumbent) -> None:
    """Assignments that are known before the search: what costs more than they do can be excluded from the start."""
    for choices in assignments:
        known = evaluate(problem, choices)
        if known.feasible:
            best.offer(known.cost * best.scale, partial(tuple[int, ...], choices))


def _whole(graph: Graph, best: Incumbent, budget: Budget, limit: int | None) -> None:
    """The integer program of the whole problem."""
    graph.propagate()
    if limit is not None:
        tighten(graph, limit)
        graph.propagate()
    prove(graph, core_of(graph), best, budget, limit if not graph.groups else limit or 0)


def _solution(problem: Problem, wide: SumsOnNodes, best: Incumbent, budget: Budget, shortfall: int) -> Solution:
    outcome: Outcome
    cost, bound = best.cost / best.scale, best.bound / best.scale
    choices = None if best.choices is None else wide.invert(best.choices)
    if choices is not None:
        priced = evaluate(problem, choices)
        rounded = _ROUNDED if cost > _EXACT else 0.0
        if not (math.isclose(priced.cost, cost, rel_tol=rounded) and priced.feasible):
            raise AssertionError(f"the search priced its answer {cost}, the evaluator {priced}")
        outcome = "interrupted" if budget.interrupted else "optimal" if best.bound >= best.cost else "feasible"
    else:
        outcome = "infeasible" if bound == np.inf else "interrupted" if budget.interrupted else "limit"
    return Solution(
        outcome=outcome,
        choices=choices,
        cost=cost,
        bound=bound,
        shortfall_bytes=shortfall,
        reproducible=budget.reproducible,
        seconds=budget.seconds,
        work=budget.work,
        sum_multipliers=_sum_multipliers(problem, best),
        candidates=_candidates(problem, wide, best),
        memory_multipliers={m: each for m, each in best.multipliers.items() if m < problem.moments and each},
    )


def _sum_multipliers(problem: Problem, best: Incumbent) -> SumMultipliers:
    """The multipliers of the best bound, by maximum; sums that cannot be above zero have none."""
    numbers = iter(range(problem.moments, problem.moments + sum(len(maximum.sums) for maximum in problem.maxima)))
    return tuple(tuple(best.multipliers.get(next(numbers), 0.0) for _ in maximum.sums) for maximum in problem.maxima)


def _candidates(problem: Problem, wide: SumsOnNodes, best: Incumbent) -> tuple[tuple[int, ...], ...]:
    """The cheapest different assignments met that fit."""
    found: dict[tuple[int, ...], None] = {}
    for choices in [] if best.pool is None else best.pool.ranked():
        original = wide.invert(choices)
        if original not in found and evaluate(problem, original).feasible:
            found[original] = None
        if len(found) == CANDIDATES:
            break
    return tuple(found)
