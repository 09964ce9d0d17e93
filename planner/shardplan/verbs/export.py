"""`shardplan export PLAN [MODEL] --to NAME`: a plan in another program's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardplan.errors import Attempts, ShardplanError, error
from shardplan.export.targets import TARGETS, Target, find_target
from shardplan.text_files import in_shell, is_file
from shardplan.verbs.asking import SIZES, budget_option, request_options
from shardplan.verbs.inputs import load_model, parse_sizes
from shardplan.verbs.session import EXIT_DONE, EXIT_NO, STANDARD_OUTPUT, Session, completing, verb

if TYPE_CHECKING:
    from shardplan.export.types import Exported, Source
    from shardplan.plan.types import Plan

_NO_FORM = "cannot-export"
"""The code of errors about operators that a format has no form for."""


class _WithFormats(click.Command):
    """Its help ends with the formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Formats"):
            formatter.write_dl([(target.name, target.summary) for target in TARGETS])


@click.command(cls=_WithFormats, short_help="Write a plan in another program's format.")
@click.argument("plan", type=click.Path(path_type=str))
@click.argument("model", type=click.Path(path_type=str), required=False)
@click.option(
    "--to",
    "name",
    metavar="FORMAT",
    required=True,
    help="One of the formats below.",
    shell_complete=completing(lambda: [target.name for target in TARGETS]),
)
@click.option(
    "-o", "--output", metavar="FILE|DIR", help="The file or folder to write; without it, text goes to standard output."
)
@click.option("--stage", type=int, metavar="N", help="Of a plan with stages: the stage to export (text formats only).")
@request_options(*SIZES)
@budget_option
@verb
def export(
    session: Session,
    /,
    plan: str,
    model: str | None,
    name: str,
    output: str | None,
    stage: int | None,
    dims: tuple[str, ...],
    trips: tuple[str, ...],
    pads: tuple[str, ...],
) -> int:
    """Write the plan file PLAN in the format of another program. Where the format needs the model, it is MODEL, by
    default the one that the plan records.

    Exits with 1, and writes nothing, when the format cannot express what the plan decides.
    """
    from shardplan.export.notes import left_to_programs
    from shardplan.plan.file import read_plan
    from shardplan.plan.padding import unpadded
    from shardplan.runtime.stages import stage_plan
    from shardplan.study.sources import found_path, source

    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    attempt = Attempts()
    target = attempt(lambda: find_target(name))
    whole = attempt(lambda: read_plan(plan))
    if target is not None:
        if target.needs_model and model is None and whole is not None:
            model = attempt(lambda: _recorded(whole, plan, target))
        inputs = (plan, model, found_path(source(whole, "model"), plan) if whole is not None else None)
        attempt(lambda: _check_arguments(target, inputs, output, stage))
    planned = attempt(lambda: stage_plan(whole, stage)) if whole is not None else None
    given = attempt(lambda: _source(model, parse_sizes(dims, trips, pads), planned)) if model is not None else None
    attempt.finish()
    assert target is not None
    assert planned is not None
    if not target.takes_padding:
        unpadded(planned)
    exported = _run(target, planned, given, output)
    session.say_all((*exported.refused, *left_to_programs(planned, target.name)))
    if any(diagnostic.severity == "error" for diagnostic in exported.refused):
        if session.as_json:
            session.write_document(None)
        return EXIT_NO
    return _deliver(session, target, exported, output)


def _recorded(whole: Plan, plan: str, target: Target) -> str:
    """The model that the plan records, for a format that needs one."""
    from shardplan.study.freshness import recorded_model

    def naming(model: str) -> str:
        return f"shardplan export {in_shell(plan)} {in_shell(model)} --to {target.name}"

    return recorded_model(whole, plan, naming)


def _check_arguments(target: Target, inputs: Sequence[str | None], output: str | None, stage: int | None) -> None:
    """Raises `ShardplanError` for what can be said before any work is done. `inputs`: files that are read, or that the
    plan is checked against later."""
    from shardplan.export.files import refuse_inputs, refuse_others

    problems = []
    if target.needs_model and stage is not None:
        summary = f"the format '{target.name}' is made from a whole model, not from a stage of it"
        problems.append(error("whole-model", summary, hint="leave --stage out, with a plan without stages"))
    if target.writes != "text" and output in (None, STANDARD_OUTPUT):
        hint = "name it with --output"
        problems.append(error("no-output", f"the format '{target.name}' is a {target.writes}", hint=hint))
    if problems:
        raise ShardplanError(*problems)
    if output not in (None, STANDARD_OUTPUT):
        refuse_inputs(str(output), *(given for given in inputs if given is not None))
        if target.writes == "text":
            refuse_others(str(output), target.begins, target.name)


def _source(model: str, dims: Mapping[str, int], planned: Plan | None) -> Source:
    """The model; the dims of the plan bind its own unless the command line says otherwise."""
    from shardplan.export.types import Source

    bound = planned.model.get("dims", {}) if planned is not None else {}
    loaded = load_model(model, {**bound, **dims})  # type: ignore[dict-item]
    return Source(loaded, Path(model) if is_file(model) else None)


def _run(target: Target, planned: Plan, source: Source | None, output: str | None) -> Exported:
    """What the format makes of the plan. An operator that it has no form for is a refusal like any other, with exit
    code 1, however deep in the writing of files it is met."""
    from shardplan.export.types import Exported

    function = target.load()
    try:
        if target.writes != "text":
            assert output is not None
            return function(planned, source, Path(output))
        return function(planned, source) if target.needs_model else function(planned)
    except ShardplanError as problem:
        if any(diagnostic.code != _NO_FORM for diagnostic in problem.diagnostics):
            raise
        return Exported("", problem.diagnostics)


def _deliver(session: Session, target: Target, exported: Exported, output: str | None) -> int:
    """Print or write the text, and say what was written."""
    from shardplan.export.files import write_file
    from shardplan.render.console import emit

    files = exported.files
    if target.writes == "text" and output not in (None, STANDARD_OUTPUT):
        write_file(exported.text.encode(), str(output))
        files = (Path(str(output)).name,)
    elif target.writes == "text" and not session.as_json:
        session.write_text(exported.text)
        return EXIT_DONE
    text = exported.text if target.writes == "text" and output is None else None
    result = {"format": target.name, "output": output, "files": list(files), "text": text}
    many = f" ({len(files)} files)" if len(files) > 1 else ""
    return session.finish(result, lambda console: emit(console, f"wrote {output}{many}"))
