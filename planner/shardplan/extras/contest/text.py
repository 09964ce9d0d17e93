"""Output of `solve-problem` and `evaluate-problem`: costs are plain numbers, written in full."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardplan.render.console import emit
from shardplan.render.solve import facts
from shardplan.units import counted, digits, percent, size

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.extras.contest.files import Claim, Solved
    from shardplan.solve.evaluate import Evaluation
    from shardplan.solve.problem import Problem

_DETERMINED = "reproducible: no clock decided when to stop"
_BY_CLOCK = "not reproducible: a clock or Ctrl-C decided when to stop"


def show_solved(console: Console, name: str, solved: Solved, written: str | None) -> None:
    """The problem, the answer, its proof, when it was found, and the file."""
    rows = [("problem", problem_line(name, solved.problem)), ("answer", answer_line(solved))]
    if solved.evaluation is not None:
        rows += [("", bound_line(solved)), ("memory", memory_line(solved.evaluation, solved.problem.limit))]
    rows.append(("time", time_line(solved)))
    rows.append(("", _DETERMINED if solved.solution.reproducible else _BY_CLOCK))
    emit(console, facts(*rows, *([("wrote", written)] if written else [])))


def problem_line(name: str, problem: Problem) -> str:
    """`A.json.gz: 34,932 nodes with 6.1 choices each, 54,801 edges`."""
    choices = sum(map(len, problem.costs)) / max(len(problem.costs), 1)
    each = f"{digits(choices)} {'choice' if choices == 1 else 'choices'} each"
    return f"{name}: {counted(len(problem.costs), 'node')} with {each}, {counted(len(problem.edges), 'edge')}"


def answer_line(solved: Solved) -> str:
    """`cost 217,039: optimal`, or why there is no answer."""
    solution = solved.solution
    if solution.choices is not None:
        ends = {"optimal": "proven optimal", "feasible": "the best found", "interrupted": "the best when interrupted"}
        return f"cost {int(solution.cost):,}, {ends[solution.outcome]}"
    if solution.outcome == "infeasible":
        short = solution.shortfall_bytes
        why = (
            f"memory is {size(short)} ({short:,} bytes) too small" if short else "forbidden choices exclude everything"
        )
        return f"proven infeasible: {why}"
    return "nothing that fits was found" + (" before the interruption" if solution.outcome == "interrupted" else "")


def bound_line(solved: Solved) -> str:
    """What no answer can be cheaper than."""
    solution = solved.solution
    if not math.isfinite(solution.bound):
        return "no bound is proven"
    return f"lower bound {int(solution.bound):,}, optimality gap {percent(solution.gap)}"


def memory_line(evaluation: Evaluation, limit: int | None) -> str:
    """`peak 3.2 GiB of 3.3 GiB, at moment 17`."""
    allowed = "" if limit is None else f" of {size(limit)}"
    return f"peak {size(evaluation.peak_bytes)}{allowed}, at moment {evaluation.peak_moment}"


def time_line(solved: Solved) -> str:
    """`first answer after 6.2 s, best after 8.9 s, 9.0 s in all`."""
    parts = []
    if solved.first_seconds is not None and solved.best_seconds is not None:
        parts += [f"first answer after {solved.first_seconds:.1f} s", f"best after {solved.best_seconds:.1f} s"]
    return ", ".join([*parts, f"{solved.seconds:.1f} s in all, reading included"])


def show_claim(console: Console, name: str, claim: Claim) -> None:
    """What an assignment costs and uses, and whether it may."""
    found = claim.evaluation
    cost = "forbidden: it takes a choice or a pair that is not allowed" if math.isinf(found.cost) else f"{found.cost:,}"
    verdict = "yes" if found.feasible else "no"
    rows = (("solution", name), ("cost", cost), ("memory", memory_line(found, claim.limit)), ("feasible", verdict))
    emit(console, facts(*rows))
