"""`shardplan check PLAN...`: are plans still what their models and clusters ask for?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from shardplan.errors import Attempts, Diagnostic, ShardplanError, error
from shardplan.verbs.asking import budget_option, chosen
from shardplan.verbs.report import check_report
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, EXIT_NO, EXIT_USAGE, Session, verb

if TYPE_CHECKING:
    from shardplan.study.check import Verdict
    from shardplan.study.freshness import Given

_JUNIT, _SARIF = "JUnit report", "SARIF report"
_CODES = {"unreadable": EXIT_USAGE, "infeasible": EXIT_INFEASIBLE, "fresh": EXIT_DONE}


@click.command(short_help="Say whether plans are still valid, and still the best.")
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...", type=click.Path(path_type=str))
@click.option(
    "--model",
    "models",
    metavar="MODEL",
    multiple=True,
    help="The model of a plan, as given to solve; may be repeated: each plan takes the one of its name.  "
    "[default: the one that the plan records]",
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="The cluster profile of the plans.  [default: the one that each records]",
)
@click.option("--without-model", is_flag=True, help="Check what a plan says of itself, without its model.")
@click.option("--resolve", is_flag=True, help="Solve again, and say if there is a faster plan now.")
@click.option("--require-signature", is_flag=True, help="Refuse a plan that none of --allowed-signers has signed.")
@click.option(
    "--allowed-signers",
    "signers",
    metavar="FILE",
    help="Who may sign: names and public keys, as ssh-keygen reads them. The signature of PLAN is PLAN.sig.",
)
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML too, for CI: one test case per plan.")
@click.option(
    "--sarif", metavar="FILE", help="Write the verdicts as SARIF too, for code scanning: one result per plan."
)
@budget_option
@verb
def check(
    session: Session,
    /,
    plans: tuple[str, ...],
    models: tuple[str, ...],
    cluster: str | None,
    signers: str | None,
    junit: str | None,
    sarif: str | None,
    *,
    without_model: bool,
    resolve: bool,
    require_signature: bool,
) -> int:
    """Check, field by field, that every PLAN still agrees with its model, its cluster profile and its own decisions.
    No plan is written.

    Exits with 0 when all are fresh, 1 when some are stale, invalid or no longer optimal, 2 when some could not be
    checked, 3 when it is proven that one does not fit.
    """
    if without_model and (resolve or models):
        raise click.UsageError(f"--without-model and {'--model' if models else '--resolve'}: one of them")
    if require_signature != (signers is not None):
        raise click.UsageError("--require-signature and --allowed-signers FILE: both of them, or none")
    if "cluster" not in chosen({"cluster": cluster}):
        cluster = None  # settings say what solve is to take: a plan may have been asked for otherwise
    from shardplan.study.freshness import Given

    attempt = Attempts()
    attempt(lambda: check_report(junit, kind=_JUNIT, option="--junit"))
    attempt(lambda: check_report(sarif, junit, kind=_SARIF, option="--sarif"))
    attempt.finish()
    rows: list[tuple[str, Verdict]] = []
    for file in plans:
        given = Given(None, cluster, without_model, signers)
        verdict = _verdict(session, file, models, given, resolve=resolve)
        rows.append((file, verdict))
        session.say_all(_diagnostics(file, verdict))
    _report(rows, junit, sarif)
    from shardplan.render.check import check_document, show_check

    session.finish(check_document(rows), lambda console: show_check(console, rows))
    return max((_CODES.get(verdict.status, EXIT_NO) for _, verdict in rows), key=_WEIGHT.index)


def _report(rows: list[tuple[str, Verdict]], junit: str | None, sarif: str | None) -> None:
    """Write the reports that are asked for. Raises `ShardplanError` where one cannot be."""
    if not junit and not sarif:
        return
    from shardplan import __version__
    from shardplan.plan.file import write_other
    from shardplan.render import ci_reports

    if junit:
        write_other(ci_reports.junit(rows), junit, _JUNIT)
    if sarif:
        write_other(ci_reports.sarif(rows, __version__), sarif, _SARIF)


_WEIGHT = [EXIT_DONE, EXIT_NO, EXIT_INFEASIBLE, EXIT_USAGE]
"""Exit codes, the most severe last."""


def _verdict(session: Session, file: str, models: tuple[str, ...], given: Given, *, resolve: bool) -> Verdict:
    from shardplan.plan.file import read_plan
    from shardplan.study.check import check_file, unreadable
    from shardplan.study.rederived import named_for

    try:
        model = named_for(read_plan(file), models) if models else None
        on_progress = session.begin("solving again" if resolve else "checking")
        return check_file(file, replace(given, model=model), resolve=resolve, on_progress=on_progress)
    except ShardplanError as problem:
        session.say_all(problem.diagnostics)
        return unreadable(problem)


def _diagnostics(file: str, verdict: Verdict) -> list[Diagnostic]:
    if verdict.status in ("fresh", "unreadable"):
        return []
    first, *rest = verdict.findings
    hint = verdict.repair.text
    return [error(verdict.code, f"{verdict.status}: {first}", detail="\n".join(rest), hint=hint, file=file)]
