"""`shardplan split CHECKPOINT PLAN -o DIR`: one file of weights for every rank."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shardplan.errors import Attempts, Diagnostic, ShardplanError, error
from shardplan.escapes import visible
from shardplan.units import counted
from shardplan.verbs.session import Session, verb

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.loading.assign import Assignment
    from shardplan.loading.split import Progress, Split

_MUCH = 1.5
"""Size of the written files, relative to the checkpoint, above which a warning is printed."""


@click.command(short_help="Cut a checkpoint into one file per rank.")
@click.argument("checkpoint", type=click.Path(path_type=str))
@click.argument("plan", type=click.Path(path_type=str))
@click.option("-o", "--output", metavar="DIR", required=True, help="The folder to write.")
@click.option(
    "--rename",
    "renames",
    metavar="OLD=NEW",
    multiple=True,
    help="The plan's NEW is the checkpoint's OLD at the beginning of names; may be repeated.",
)
@click.option("--stage", type=int, metavar="N", help="Of a plan with stages: the stage whose ranks to write.")
@click.option("--once", is_flag=True, help="Write every shard into one file only; ranks then read several.")
@verb
def split(
    session: Session,
    /,
    checkpoint: str,
    plan: str,
    output: str,
    renames: tuple[str, ...],
    stage: int | None,
    *,
    once: bool,
) -> int:
    """Write what every rank of PLAN holds of CHECKPOINT into a file of its own: safetensors, with the names of the
    checkpoint.

    CHECKPOINT is a safetensors file, the index of several, or a folder that has either. Ranks that hold exactly the
    same share a file; split.json in DIR says which is whose. Weights quantised in groups (GPTQ, AWQ, MLC, MatMulNBits)
    are cut as the weight they stand for. Little memory is needed. After an interruption the same command goes on.
    """
    from shardplan.loading.assign import assign
    from shardplan.loading.checkpoint import open_checkpoint
    from shardplan.loading.split import split as write_files
    from shardplan.plan.file import read_plan
    from shardplan.runtime.stages import stage_plan, weights_of_others

    attempt = Attempts()
    renamed = attempt(lambda: dict(map(_rename, renames)))
    whole = attempt(lambda: read_plan(plan))
    planned = attempt(lambda: stage_plan(whole, stage)) if whole is not None else None
    opened = attempt(lambda: open_checkpoint(checkpoint))
    attempt.finish()
    assert whole is not None
    assert planned is not None
    assert opened is not None
    assignment = assign(planned, opened, renamed, others=weights_of_others(whole, stage))
    session.say_all(assignment.warnings)
    try:
        made = write_files(assignment, output, _telling(session), once=once)
    except KeyboardInterrupt:
        session.note(visible(f"interrupted; what is in {output} is kept: the same command goes on from there"))
        raise
    session.say_all(_repeated(assignment, made))
    return session.finish(_document(assignment, made, output), lambda console: _show(console, assignment, made, output))


def _rename(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator:
        hint = "write for example --rename =transformer. where the checkpoint leaves a prefix out"
        raise ShardplanError(error("bad-rename", f"--rename '{text}' is not OLD=NEW", hint=hint))
    return old, new


def _telling(session: Session) -> Progress:
    """What is called while the files are written: it says how far they are."""
    from shardplan.render.progress import Step
    from shardplan.units import size

    tell = session.begin("splitting")
    return lambda done, total, name: tell(Step(f"{size(done)} of {size(total)}  {name}", done, total - done))


def _show(console: Console, assignment: Assignment, made: Split, output: str) -> None:
    from shardplan.render.console import emit
    from shardplan.units import size

    stored = _stored_bytes(assignment)
    number = len(assignment.checkpoint.entries)
    ranks = assignment.plan.mesh.size
    files = f"{counted(len(made.files), 'file')}, {size(made.written_bytes)}"
    most = max(map(len, made.by_rank))
    each = f"every rank reads {most} of them" if most > 1 else "every rank reads one"
    lines = [
        f"checkpoint  {counted(number, 'tensor')}, {size(stored)}",
        f"ranks       {ranks} ({assignment.plan.mesh})",
        f"{'wrote' if made.is_new else 'unchanged':10}  {output}: {files}; {each}, {size(made.largest_bytes)} or less",
    ]
    peak = _peak_bytes()
    if peak is not None:
        lines.append(f"memory      {size(peak)} at the peak of this command")
    if made.resumed_bytes:
        lines.append(f"resumed     {size(made.resumed_bytes)} of the checkpoint had been done before")
    emit(console, "\n".join(lines))


def _document(assignment: Assignment, made: Split, output: str) -> dict[str, object]:
    return {
        "output": output,
        "ranks": assignment.plan.mesh.size,
        "files": [list(names) for names in made.by_rank],
        "tensors": len(assignment.checkpoint.entries),
        "written_bytes": made.written_bytes,
        "largest_bytes": made.largest_bytes,
        "resumed_bytes": made.resumed_bytes,
        "peak_memory_bytes": _peak_bytes(),
        "is_new": made.is_new,
    }


def _stored_bytes(assignment: Assignment) -> int:
    return sum(entry.size_bytes for entry in assignment.checkpoint)


def _repeated(assignment: Assignment, made: Split) -> list[Diagnostic]:
    """A note where replicas take much room."""
    from shardplan.units import size

    stored = _stored_bytes(assignment)
    if made.written_bytes < _MUCH * stored:
        return []
    summary = (
        f"the files take {size(made.written_bytes)} for a checkpoint of {size(stored)}: what ranks share is repeated"
    )
    return [
        Diagnostic("note", "repeated-shards", summary, hint="--once writes every shard once; ranks read several files")
    ]


def _peak_bytes() -> int | None:
    """Most memory that this process has had resident; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
