"""Problems in files: solve one, or price somebody's solution of one. What the verbs `solve-problem` and
`evaluate-problem` call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardplan.errors import ShardplanError, error
from shardplan.extras.contest.iopddl import read_problem
from shardplan.extras.contest.solution_file import read_solution
from shardplan.solve.budget import Progress
from shardplan.solve.evaluate import Evaluation, evaluate
from shardplan.solve.problem import Problem, Solution
from shardplan.solve.solver import Limits, search

RESERVE_SECONDS = 0.3
RESERVE_PER_ITEM = 1.5e-5
"""Kept back from a time limit for restoring and pricing the answer, in all and per node and edge."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A problem that was read and solved. `first_seconds` and `best_seconds`: from the start of reading to the first
    and to the last improvement; `None` without an assignment."""

    problem: Problem
    solution: Solution
    evaluation: Evaluation | None
    first_seconds: float | None
    best_seconds: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Claim:
    """What a solution file says its assignment costs, if it says so, and what it does cost."""

    evaluation: Evaluation
    limit: int | None
    claimed: int | None


def run_solve_problem(
    path: Path,
    *,
    time_limit: float | None = None,
    work_limit: float | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solved:
    """The best assignment found for the problem in a file of the contest's format; reading counts towards `time_limit`.

    `time_limit` in seconds; `work_limit` in units of about a million table entries, under which equal runs give equal
    answers. Raises `ShardplanError` for a file that cannot be read.
    """
    started = time.monotonic()
    problem = read_problem(path)
    if time_limit is not None:
        reserve = RESERVE_SECONDS + RESERVE_PER_ITEM * (len(problem.costs) + len(problem.edges))
        time_limit = max(time_limit - (time.monotonic() - started) - reserve, 0.1)
    improved: list[tuple[float, float]] = []

    def watch(progress: Progress) -> None:
        if progress.best != float("inf") and (not improved or progress.best < improved[-1][1]):
            improved.append((time.monotonic() - started, progress.best))
        if on_progress is not None:
            on_progress(progress)

    solution = search(problem, Limits(time_limit, work_limit, seed=seed), on_progress=watch)
    return Solved(
        problem,
        solution,
        evaluate(problem, solution.choices) if solution.choices is not None else None,
        improved[0][0] if improved else None,
        improved[-1][0] if improved else None,
        time.monotonic() - started,
    )


def run_evaluate_problem(path: Path, solution: Path) -> Claim:
    """Cost and peak memory of the solution in a file: `{"solution": [...], "cost": ...}`, or the bare list.

    Raises `ShardplanError` when either file cannot be read or the solution does not fit the problem.
    """
    choices, claimed = read_solution(solution)
    problem = read_problem(path)
    try:
        return Claim(evaluate(problem, choices), problem.limit, claimed)
    except ValueError as fault:
        raise ShardplanError(error("bad-solution", str(fault), file=str(solution))) from None
