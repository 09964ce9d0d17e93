"""`shardplan evaluate-problem INSTANCE SOLUTION`: what somebody's solution costs, and whether it fits."""

from __future__ import annotations

import math
from pathlib import Path

import click

from shardplan.errors import error
from shardplan.verbs.session import EXIT_DONE, EXIT_NO, Session, verb


@click.command("evaluate-problem", short_help="Price a solution of a problem of the IOPDDL contest's format.")
@click.argument("instance", type=click.Path(path_type=Path))
@click.argument("solution", type=click.Path(path_type=Path))
@verb
def evaluate_problem(session: Session, /, instance: Path, solution: Path) -> int:
    """Price SOLUTION, a file of `solve-problem` or a bare list of choices, for INSTANCE, in whole numbers.

    It shares no code with the search. Exits with 0 when the solution is feasible, with 1 when it is not, or when the
    file says that it costs something else.
    """
    from shardplan.extras.contest.files import run_evaluate_problem
    from shardplan.extras.contest.text import show_claim

    claim = run_evaluate_problem(instance, solution)
    found = claim.evaluation
    honest = claim.claimed is None or claim.claimed == found.cost
    if not honest:
        costs = "is forbidden" if math.isinf(found.cost) else f"costs {found.cost:,}"
        summary = f"the file says that the solution costs {claim.claimed:,}; it {costs}"
        session.say(error("wrong-cost", summary, file=str(solution)))
    document = {
        "feasible": found.feasible,
        "cost": None if math.isinf(found.cost) else found.cost,
        "claimed": claim.claimed,
        "peak_bytes": found.peak_bytes,
        "peak_moment": found.peak_moment,
        "limit_bytes": claim.limit,
    }
    session.finish(document, lambda console: show_claim(console, solution.name, claim))
    return EXIT_DONE if found.feasible and honest else EXIT_NO
