"""The command line: `shardplan VERB …`. What is imported here and in `verbs` decides how fast `--help` answers, so
everything heavy is imported inside the verb that needs it."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from shardplan import __version__
from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.escapes import visible
from shardplan.garbage import FEW_COLLECTIONS
from shardplan.verbs.calibrate import calibrate
from shardplan.verbs.check import check
from shardplan.verbs.compare import compare
from shardplan.verbs.configuration import read_settings
from shardplan.verbs.diff import diff
from shardplan.verbs.evaluate import evaluate
from shardplan.verbs.evaluate_problem import evaluate_problem
from shardplan.verbs.explain import explain
from shardplan.verbs.export import export
from shardplan.verbs.help import SOURCES, whole_words
from shardplan.verbs.init import init
from shardplan.verbs.inspect import inspect
from shardplan.verbs.launch import launch, launch_env
from shardplan.verbs.price import price
from shardplan.verbs.profiles import profiles
from shardplan.verbs.session import EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_USAGE, Session, whence
from shardplan.verbs.show import show
from shardplan.verbs.solve import solve
from shardplan.verbs.solve_problem import solve_problem
from shardplan.verbs.split import split
from shardplan.verbs.streams import discard, prepare
from shardplan.verbs.sweep import sweep
from shardplan.verbs.timeline import timeline
from shardplan.verbs.verify import verify

_ASKS_HELP = {"-h", "--help", "--version"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _PipeClosedError(Exception):
    """Our own word for a broken pipe: click would turn it into exit code 1, which here means "the answer is no"."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order in which they were added: what everybody needs first."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _PipeClosedError from None
        return result


@dataclass
class _Run:
    """One call of the command; the verb leaves its session here for whoever has to report a failure."""

    session: Session | None = None


_HELP = f"""Plan how a neural network is split over a device mesh: from an ONNX graph to a plan file with a proof of how
good it is.

\b
  shardplan solve model.onnx --mesh 4x4      writes plans/model.4x4.plan.json
  shardplan show plans/model.4x4.plan.json   reads it

\b
Exit codes: 0 done, 1 the answer is no, 2 could not answer, 3 proven
infeasible, 4 a limit ended the search, 70 a defect of shardplan, 130
interrupted.

{SOURCES}
"""


@click.group(cls=_Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shardplan", message="%(prog)s %(version)s")
def cli() -> None:
    """Gather the verbs; what a person reads is `_HELP`."""


for _verb in (
    solve,
    show,
    explain,
    diff,
    check,
    compare,
    price,
    evaluate,
    verify,
    export,
    split,
    launch_env,
    launch,
    sweep,
    timeline,
    inspect,
    init,
    profiles,
    calibrate,
    solve_problem,
    evaluate_problem,
):
    cli.add_command(_verb)
whole_words(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    if arguments is not None:
        return _main(list(arguments))
    try:
        prepare()
    except KeyboardInterrupt:  # SIGTERM, the moment that it becomes one
        return EXIT_INTERRUPTED
    gc.set_threshold(*FEW_COLLECTIONS)
    code = _main(sys.argv[1:])
    if any(thread.daemon for thread in threading.enumerate()):
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End the process now: a search that was stopped may have left HiGHS at work, and Python would wait for it."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _main(given: list[str]) -> int:
    run = _Run()
    try:
        settings = {} if _ASKS_HELP & set(given) else read_settings(cli)
        return int(cli.main(given, prog_name="shardplan", standalone_mode=False, obj=run, default_map=settings) or 0)
    except (_PipeClosedError, BrokenPipeError):
        return _stop_writing()
    except click.UsageError as problem:
        return _refuse_usage(problem, given)
    except (click.Abort, KeyboardInterrupt) as stop:
        summary = str(stop.__cause__ or stop) or "interrupted before there was a result"
        return _fail(run, given, [error("interrupted", summary)], EXIT_INTERRUPTED)
    except Exception as problem:  # noqa: BLE001 - the last resort: a person gets a sentence, not a traceback
        if isinstance(problem, OSError) and problem.errno in _FULL:
            return _refuse_full(problem)
        return _report(run, given, problem)


def _refuse_full(problem: OSError) -> int:
    """What is left of the output goes nowhere, nor can a document be printed: there is no room for it."""
    reason = (problem.strerror or str(problem)).lower()
    diagnostic = error("unwritable-output", f"cannot write all of the output: {reason}", file=problem.filename)
    click.echo(str(diagnostic), err=True)
    _stop_writing()
    return EXIT_USAGE


def _report(run: _Run, given: list[str], problem: Exception) -> int:
    if isinstance(problem, ShardplanError):
        return _fail(run, given, problem.diagnostics, problem.exit_code)
    if isinstance(problem, click.ClickException):
        return _fail(run, given, [error("bad-argument", problem.format_message())], EXIT_USAGE)
    return _report_defect(run, given, problem)


def _fail(run: _Run, given: list[str], diagnostics: Sequence[Diagnostic], code: int) -> int:
    session = run.session or Session(_guess_verb(given), as_json=_asks_json(given))
    for diagnostic in diagnostics:
        session.say(diagnostic)
    return _document(session, session.failure, code)


def _document(session: Session, result: Mapping[str, object] | None, code: int) -> int:
    """The document of a failure, where one is asked for; `code`, unless standard output takes nothing more."""
    try:
        if session.as_json:
            session.write_document(result)
        sys.stdout.flush()
    except BrokenPipeError:
        return _stop_writing()
    except OSError as problem:
        if problem.errno in _FULL:
            return _refuse_full(problem)
        raise
    return code


def _refuse_usage(problem: click.UsageError, given: list[str]) -> int:
    """Click's own words on what was given, as a diagnostic, and where to read what is allowed."""
    path = problem.ctx.command_path if problem.ctx else "shardplan"
    hint = _whence(problem) or f"{path} --help says what is allowed"
    session = Session(_guess_verb(given), _asks_json(given))
    session.say(error("usage", " ".join(problem.format_message().split()).removesuffix("."), hint=hint))
    return _document(session, None, EXIT_USAGE)


def _whence(problem: click.UsageError) -> str:
    """Where a value comes from that was refused; empty for the command line."""
    parameter, context = getattr(problem, "param", None), problem.ctx
    return whence(context, parameter.name) if parameter is not None and context is not None else ""


def _report_defect(run: _Run, given: list[str], problem: Exception) -> int:
    verbose = run.session.verbose if run.session else bool({"-v", "--verbose"} & set(given))
    summary = f"shardplan failed where it should not: {type(problem).__name__}: {problem}"
    hint = "this is a defect of shardplan; please report it as CONTRIBUTING.md says, with what -v prints"
    if verbose:
        click.echo(visible("".join(traceback.format_exception(problem))), err=True)
    return _fail(run, given, [error("internal", summary, hint=hint)], EXIT_DEFECT)


def _stop_writing() -> int:
    """Python's exit must not fail over what is still buffered."""
    discard(sys.stdout)
    return EXIT_PIPE


def _asks_json(given: list[str]) -> bool:
    return "--json" in given


def _guess_verb(given: list[str]) -> str:
    return next((word for word in given if word in cli.commands), "")
