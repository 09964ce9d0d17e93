"""`--html FILE`: the output of a verb as one HTML file for a browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from shardplan.verbs.session import Session

if TYPE_CHECKING:
    from shardplan.plan.types import Plan

html_option = click.option(
    "--html",
    metavar="FILE.html",
    help="Write a report too: one HTML file that needs no network.",
)
Document = Callable[[], Mapping[str, Any]]


def check_report(path: str | None, *others: str | None, kind: str = "report", option: str = "--html") -> None:
    """Refuse, before any work is done, a report where it cannot or should not be written. Raises `ShardplanError`."""
    from shardplan.errors import ShardplanError, error
    from shardplan.plan.file import check_other

    if path is None:
        return
    if any(other is not None and os.path.realpath(path) == os.path.realpath(other) for other in others):
        summary = "the report would replace what this command reads, or writes besides"
        raise ShardplanError(error("same-output", summary, file=path, hint=f"give {option} a name of its own"))
    check_other(path, kind)


def plan_document(session: Session, plan: Plan, file: str, model: str | None = None, why: int = 0) -> Mapping[str, Any]:
    """The report of the plan in `file`, with alternatives of the `why` largest groups of parameters of `model`, and
    of as many tensors whose moves are exposed for longest."""
    from shardplan.reports.plan import plan_report

    if not why:
        return plan_report(plan, file)
    from shardplan.reports.tables import costliest_tensors, largest_parameters
    from shardplan.study.explain import explain
    from shardplan.study.freshness import model_of

    whole = model_of(plan, file, model)
    names = dict.fromkeys((*largest_parameters(plan, why), *costliest_tensors(plan, why)))
    found = {
        name: explain(plan, file, whole, name, session.begin(f"{number} of {len(names)} explained")).alternatives
        for number, name in enumerate(names)
    }
    return plan_report(plan, file, found)


def write_report(session: Session, path: str | None, document: Document) -> None:
    """Write the report that `document` makes to `path`, if there is one; standard error has it when the verb ends."""
    if path is None:
        return
    from shardplan.escapes import one_line
    from shardplan.plan.file import write_other
    from shardplan.reports.page import page

    session.begin("writing the report")
    write_other(page(document()), path, "report")
    if not session.quiet:
        session.closing.append(f"report    {one_line(path)}")
