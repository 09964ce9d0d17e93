"""Problems in files: solve one, or price somebody's solution of one. What the verbs `solve-problem` and
`evaluate-problem` call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.solve.budget import Progress
from shardplan.solve.evaluate import Evaluation, evaluate
from shardplan.solve.iopddl import read_problem
from shardplan.solve.problem import Solution
from shardplan.solve.solver import search

RESERVE_SECONDS = 0.3
RESERVE_PER_ITEM = 1.5e-5
"""Kept back from a time limit for restoring and pricing the answer, in all and per node and edge."""


def run_solve_problem(
    path: Path,
    *,
    time_limit: float | None = None,
    work_limit: float | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The best assignment found for the problem in a file of the contest's format; reading counts towards `time_limit`.

    `time_limit` in seconds; `work_limit` in units of about a million table entries, under which equal runs give equal
    answers. Raises `ShardplanError` for a file that cannot be read.
    """
    started = time.monotonic()
    problem = read_problem(path)
    if time_limit is not None:
        reserve = RESERVE_SECONDS + RESERVE_PER_ITEM * (len(problem.costs) + len(problem.edges))
        time_limit = max(time_limit - (time.monotonic() - started) - reserve, 0.1)
    return search(problem, time_limit, work_limit, gap=0.0, seed=seed, presolve=True, on_progress=on_progress)


def solution_document(solution: Solution) -> dict[str, Any]:
    """What `solution.json` holds. Costs are integers; a bound that is no number (nothing proven, or infeasible) is
    `None`."""
    found = solution.choices is not None
    return {
        "solution": list(solution.choices) if solution.choices is not None else None,
        "cost": int(solution.cost) if found else None,
        "bound": int(solution.bound) if abs(solution.bound) != float("inf") else None,
        "outcome": solution.outcome,
        "reproducible": solution.reproducible,
    }


def run_evaluate_problem(path: Path, solution: Path) -> Evaluation:
    """Cost and peak memory of the solution in a file: `{"solution": [...]}`, or the bare list.

    Raises `ShardplanError` when either file cannot be read or the solution does not fit the problem.
    """
    problem = read_problem(path)
    try:
        return evaluate(problem, _choices(solution))
    except ValueError as fault:
        raise ShardplanError(error("bad-solution", str(fault), file=str(solution))) from None


def _choices(path: Path) -> list[int]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ShardplanError(error("unreadable", fault.strerror or str(fault), file=str(path))) from None
    except json.JSONDecodeError as fault:
        raise ValueError(f"not a JSON document: {fault}") from None
    choices = document.get("solution") if isinstance(document, dict) else document
    if not isinstance(choices, list) or not all(type(choice) is int for choice in choices):
        raise ValueError("a solution is a list of integers, one choice per node")
    return choices
