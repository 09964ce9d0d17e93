"""`shardplan solve-problem INSTANCE`: the solver alone, on a problem of the IOPDDL contest's format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import warning
from shardplan.units import count, percent
from shardplan.verbs.asking import seed_option
from shardplan.verbs.numbers import FiniteRange
from shardplan.verbs.session import (
    EXIT_DONE,
    EXIT_INFEASIBLE,
    EXIT_INTERRUPTED,
    EXIT_LIMIT,
    STANDARD_OUTPUT,
    Session,
    option,
    verb,
)

if TYPE_CHECKING:
    from shardplan.extras.contest.files import Solved


@click.command("solve-problem", short_help="Solve a problem of the IOPDDL contest's format.")
@click.argument("instance", type=click.Path(path_type=Path))
@option("-o", "--output", metavar="FILE", help="Write the solution there; - is standard output.")
@option(
    "--time-limit",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so long, with the best solution so far; reading the file counts.",
)
@option(
    "--work-limit",
    type=FiniteRange(min=0, min_open=True),
    metavar="UNITS",
    help="Stop after so many million table entries, which is reproducible.",
)
@seed_option("Seed of the search, for problems too large to prove.")
@verb
def solve_problem(session: Session, /, **given: Any) -> int:
    """Find the cheapest choice per node of INSTANCE (.json or .json.gz) that fits in memory, and a bound.

    Without a limit it stops when the optimum is proven, or when more work would bring little.
    """
    from shardplan.extras.contest.solution_file import check_solution_file, solution_text, write_solution
    from shardplan.extras.contest.text import show_solved

    instance, output = given["instance"], given["output"]
    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    to_file = output is not None and output != STANDARD_OUTPUT
    if to_file:
        check_solution_file(Path(output))
    solved = _solved(session, given)
    if to_file:
        write_solution(solved.solution, Path(output))
    if output == STANDARD_OUTPUT:
        session.write_text(solution_text(solved.solution))
    else:
        session.paint(lambda console: show_solved(console, instance.name, solved, output))
    code = _judge(session, solved)
    if session.as_json:
        session.write_document(_document(solved, output))
    return code


def _solved(session: Session, given: dict[str, Any]) -> Solved:
    from shardplan.extras.contest.files import run_solve_problem

    return run_solve_problem(
        given["instance"],
        time_limit=given["time_limit"],
        work_limit=given["work_limit"],
        seed=given["seed"],
        on_progress=session.begin("solving", count, keeps=True),
    )


def _judge(session: Session, solved: Solved) -> int:
    """The exit code, with a warning where there may be a better answer."""
    solution = solved.solution
    if solution.outcome == "optimal":
        return EXIT_DONE
    if solution.outcome == "infeasible":
        return EXIT_INFEASIBLE
    known = solution.choices is not None
    proven = known and math.isfinite(solution.gap)
    within = f"; its optimality gap is {percent(solution.gap)}" if proven else ""
    if solution.outcome == "interrupted":
        kept = "the solution is the best found so far" if known else "no solution was found"
        session.say(warning("interrupted", f"interrupted: {kept}{within}"))
        return EXIT_INTERRUPTED
    if known:
        session.say(warning("not-optimal", f"the solution is not proven optimal{within}"))
        return EXIT_DONE
    session.say(warning("limit", "the limit ended the search before anything that fits was found"))
    return EXIT_LIMIT


def _document(solved: Solved, output: str | None) -> dict[str, object]:
    from shardplan.extras.contest.solution_file import solution_document

    found, gap = solved.evaluation, solved.solution.gap
    return {
        **solution_document(solved.solution),
        "gap": gap if found is not None and math.isfinite(gap) else None,
        "shortfall_bytes": solved.solution.shortfall_bytes,
        "peak_bytes": found.peak_bytes if found is not None else None,
        "limit_bytes": solved.problem.limit,
        "output": output,
        "first_seconds": solved.first_seconds,
        "best_seconds": solved.best_seconds,
        "seconds": solved.seconds,
    }
