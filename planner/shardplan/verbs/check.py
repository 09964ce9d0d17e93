"""`shardplan check PLAN...`: are plans still what their models and clusters ask for?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.request import FIELDS, option_of
from shardplan.verbs.session import EXIT_DONE, EXIT_INFEASIBLE, EXIT_NO, EXIT_USAGE, Session, verb

if TYPE_CHECKING:
    from shardplan.plan.types import Plan
    from shardplan.study.check import Verdict

_ASKED = ("mode", "optimizer", "shard_optimizer", "remat", "microbatches", "stages", "schedule", "cost_model")
"""Fields of a request that are keys of a plan's model too."""
_CODES = {"unreadable": EXIT_USAGE, "infeasible": EXIT_INFEASIBLE, "fresh": EXIT_DONE}


@click.command(short_help="Say whether plans are still valid, and still the best.")
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...", type=click.Path(path_type=str))
@click.option(
    "--model",
    "models",
    metavar="MODEL",
    multiple=True,
    help="The model of a plan, as given to solve; may be repeated: each plan takes the one of its name.",
)
@click.option("--resolve", is_flag=True, help="Solve again, and say if there is a faster plan now. Needs --model.")
@verb
def check(session: Session, /, plans: tuple[str, ...], models: tuple[str, ...], *, resolve: bool) -> int:
    """Say of every PLAN whether it is still what its model and its cluster profile ask for. Nothing is written.

    Exits with 0 when all are fresh, 1 when some are stale, invalid or no longer optimal, 2 when some could not be
    checked, 3 when it is proven that one does not fit.
    """
    if resolve and not models:
        raise click.UsageError("--resolve needs --model")
    rows: list[tuple[str, Verdict, str]] = []
    for file in plans:
        verdict, repair = _verdict(session, file, models, resolve=resolve)
        rows.append((file, verdict, repair))
        session.say_all(_diagnostics(file, verdict, repair))
    from shardplan.render.check import check_document, show_check

    session.finish(check_document(rows), lambda console: show_check(console, rows))
    return max((_CODES.get(verdict.status, EXIT_NO) for _, verdict, _ in rows), key=_WEIGHT.index)


_WEIGHT = [EXIT_DONE, EXIT_NO, EXIT_INFEASIBLE, EXIT_USAGE]
"""Exit codes, the one that says most last."""


def _verdict(session: Session, file: str, models: tuple[str, ...], *, resolve: bool) -> tuple[Verdict, str]:
    from shardplan.plan.file import read_plan
    from shardplan.study.check import Verdict, check_plan, unreadable
    from shardplan.study.instance import load_model_of

    try:
        plan = read_plan(file)
        given = _model_of(plan, models)
        model = load_model_of(plan, file, given) if given is not None else None
        verdict = check_plan(plan, file, model, resolve=resolve)
    except ShardplanError as problem:
        first = problem.diagnostics[0]
        if first.code == "stale-plan":
            return Verdict("stale", (first.summary, first.detail)), first.hint
        session.say_all(problem.diagnostics)
        return unreadable(problem), ""
    return verdict, "" if verdict.status == "fresh" else _repair(plan, given, file)


def _model_of(plan: Plan, models: tuple[str, ...]) -> str | None:
    """The only model given, or the one whose file bears the plan's name."""
    from shardplan.verbs.inputs import name_of_model

    named = [given for given in models if name_of_model(given) == plan.model.get("name")]
    return named[0] if named else models[0] if len(models) == 1 else None


def _repair(plan: Plan, given: str | None, file: str) -> str:
    """The command that makes the plan anew, which is not to be given where the model is another plan's."""
    from shardplan.verbs.inputs import name_of_model

    sizes = ",".join(f"{axis.name}={axis.size}" for axis in plan.mesh.axes)
    words = ["shardplan", "solve", given or "MODEL", "--mesh", sizes, "--cluster", str(plan.cluster.get("name"))]
    for key in _ASKED:
        default = FIELDS[key].default
        value = plan.model.get(key, default)
        if value != default and (key, value) not in (("optimizer", "none"), ("stages", "manual")):
            words += [option_of(key), *([] if value is True else [str(value)])]
    if tokens := plan.model.get("kv_cache_tokens"):
        words += ["--kv-cache", f"tokens={tokens}"]
    dims = plan.model.get("dims")
    for name, size in sorted(dims.items()) if isinstance(dims, dict) else ():
        words += ["--dim", f"{name}={size}"]
    words += _fixed(plan)
    command = shlex.join([*words, "--output", file])
    if given is None or name_of_model(given) == plan.model.get("name"):
        return command
    return f"give its own model with --model; if this one has taken its place, {command}"


def _fixed(plan: Plan) -> list[str]:
    """The options that fix what the plan's constraints do; those that no pin can say are in a file we do not know, and
    so are stages by hand."""
    from shardplan.constraints.types import SECTIONS

    if plan.model.get("stages") == "manual":
        return ["--constraints", "FILE"]
    texts = plan.model.get("constraints")
    words: list[str] = []
    for text in texts if isinstance(texts, list | tuple) else ():
        section, _, rest = str(text).partition(": ")
        if section in SECTIONS and (section not in ("parameters", "tensors", "operators") or "cost:" in rest):
            return ["--constraints", "FILE"]
        pattern, _, spec = (rest if section in SECTIONS else str(text)).partition(": ")
        words += ["--pin", f"{pattern}={spec}"]
    return words


def _diagnostics(file: str, verdict: Verdict, repair: str) -> list[Diagnostic]:
    if verdict.status in ("fresh", "unreadable"):
        return []
    first, *rest = verdict.findings
    code = verdict.status.replace(" ", "-") + "-plan"
    return [error(code, f"{verdict.status}: {first}", detail="\n".join(rest), hint=repair, file=file)]
