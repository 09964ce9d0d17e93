"""`shardplan diff OLD NEW`: what changed between two plans, what it costs, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import Attempts, Diagnostic, ShardplanError, error
from shardplan.verbs.asking import budget_option
from shardplan.verbs.reading import edited_warnings
from shardplan.verbs.report import check_report, html_option, write_report
from shardplan.verbs.session import EXIT_DONE, EXIT_NO, Session, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardplan.plan.diff import PlanDiff
    from shardplan.plan.types import Plan

_CONDITION = re.compile(r"\s*(step|compute|communication|memory)\s*>\s*\+?\s*(.+?)\s*")


@click.command(short_help="Say what changed between two plans.")
@click.argument("old", type=click.Path(path_type=str))
@click.argument("new", type=click.Path(path_type=str))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "github", "json"]),
    default="text",
    show_default=True,
    help="For people, a pull request, an Actions log, or scripts.",
)
@click.option("--all", "show_all", is_flag=True, help="Every change, not only the largest.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 although the plans differ.")
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="Exit with 1 only if this holds: 'step>+2%', 'step>+1 ms', 'memory>+1 GiB'; may be repeated: if any of them "
    "does. Numbers are derived again from the decisions of the plans whose models are at hand.",
)
@click.option(
    "--model",
    "models",
    metavar="MODEL",
    multiple=True,
    help="The model of the plans, to derive their numbers again; may be repeated.  [default: those that they record]",
)
@html_option
@budget_option
@verb
def diff(
    session: Session,
    /,
    old: str,
    new: str,
    form: str,
    conditions: tuple[str, ...],
    models: tuple[str, ...],
    html: str | None,
    *,
    show_all: bool,
    exit_zero: bool,
) -> int:
    """Say where the plan NEW differs from OLD, what that costs, and what caused it.

    Exits with 0 when they are the same, with 1 when they differ.
    """
    from shardplan.plan.diff import diff_plans
    from shardplan.render.diff import diff_document, diff_github, diff_markdown, show_diff
    from shardplan.render.recipes import recipe_changes

    attempt = Attempts()
    attempt(lambda: check_report(html, old, new))
    fails = [attempt(lambda text=text: _condition(text)) for text in conditions]  # type: ignore[misc]
    if conditions or models:
        plans = attempt(lambda: _derived((old, new), models))
    else:
        plans = attempt(lambda: _as_written((old, new)))
    attempt.finish()
    assert plans is not None
    before, after = plans[0]
    session.say_all(plans[1])
    found, recipes = diff_plans(before, after), recipe_changes(before, after)
    write_report(session, html, lambda: _report(before, after, (old, new), found))
    session.as_json = session.as_json or form == "json"
    if form in ("markdown", "github") and not session.as_json:
        session.write_text(diff_markdown(found, new, recipes) if form == "markdown" else diff_github(found, new))
    else:
        document = diff_document(found, recipes)
        session.finish(document, lambda console: show_diff(console, found, recipes, everything=show_all))
    bad = any(fail(found) for fail in fails if fail) if conditions else not found.is_empty
    return EXIT_NO if bad and not exit_zero else EXIT_DONE


def _report(before: Plan, after: Plan, files: tuple[str, str], found: PlanDiff) -> Mapping[str, Any]:
    from shardplan.reports.studies import diff_report

    return diff_report(before, after, files, found)


def _as_written(files: Sequence[str]) -> tuple[list[Plan], list[Diagnostic]]:
    """The plans in files, with a warning where one was edited."""
    from shardplan.plan.file import read_whole

    attempt = Attempts()
    found = [attempt(lambda file=file: read_whole(file)) for file in files]  # type: ignore[misc]
    attempt.finish()
    read = list(filter(None, found))
    said = [one for file, (document, _) in zip(files, read, strict=True) for one in edited_warnings(file, document)]
    return [plan for _, plan in read], said


def _derived(files: Sequence[str], models: Sequence[str]) -> tuple[list[Plan], list[Diagnostic]]:
    """The plans in files with numbers that follow from their decisions, and warnings where a file has others."""
    from shardplan.study.rederived import all_rederived

    found = all_rederived(files, models)
    return [each.plan for each in found], [said for each in found for said in each.said]


def _condition(text: str) -> Callable[[PlanDiff], bool]:
    """`step>+2%` as a question about a diff. Raises `ShardplanError` for other texts."""
    from shardplan.cluster.quantity import MICROSECONDS, PLAIN, SIZE, parse_quantity

    match = _CONDITION.fullmatch(text)
    name, amount = match.groups() if match else ("", "")
    try:
        if amount.endswith("%"):
            share = parse_quantity(amount[:-1], PLAIN) / 100
            return lambda found: found.effect(name).exceeds(share)
        limit = parse_quantity(amount, SIZE) if name == "memory" else 1000 * parse_quantity(amount, MICROSECONDS)
    except ValueError:
        hint = "write for example 'step>+2%', 'step>+1 ms' or 'memory>+1 GiB'"
        raise ShardplanError(error("bad-condition", f"--fail-if '{text}' is no condition", hint=hint)) from None
    if limit and not amount[-1].isalpha():
        bare = f"{name}>{amount}" if amount.startswith("-") else f"{name}>+{amount}"
        units = (" MiB", " GiB") if name == "memory" else (" us", " ms")
        hint = f"write '{bare}%', '{bare}{units[0]}' or '{bare}{units[1]}'"
        raise ShardplanError(error("bad-condition", f"--fail-if '{text}': {amount} has no unit", hint=hint))
    return lambda found: found.effect(name).delta > limit
