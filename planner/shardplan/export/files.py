"""Files and folders of an export: whole or not there, and nothing of the user's is written over by mistake."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardplan.errors import Diagnostic, ShardplanError, error, reason_of
from shardplan.text_files import is_file, is_there
from shardplan.whole_files import settle, write_whole

_HEAD = 1 << 16
"""Characters of a file by which it is known: names of tensors are among the first ones."""


def write_file(data: bytes, output: str | Path) -> bool:
    """Write `data` to `output`; False when the file already says exactly this and is left alone.

    The data is written to a file beside it that then takes its place. Missing folders are made. Raises
    `ShardplanError` (`unwritable-output`).
    """
    target = Path(output)
    try:
        if target.is_dir():
            raise ShardplanError(_unwritable(output, "it is a folder", "name a file"))
        if target.exists() and not target.is_file():
            raise ShardplanError(_unwritable(output, "it is not a regular file"))
        return write_whole(target, data)
    except OSError as problem:
        raise ShardplanError(_unwritable(output, reason_of(problem))) from None


@contextlib.contextmanager
def folder_in_place(output: str | Path, mark: str) -> Iterator[Path]:
    """An empty folder to write into; when the block ends without an error it becomes `output`.

    `mark`: name of a file that every export of this kind has. A folder that is there already is replaced if it is
    empty or has that file, and refused (`unwritable-output`) otherwise, before anything is written.
    """
    target = Path(os.path.realpath(output))
    try:
        _check_folder(output, target, mark)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as problem:
        raise ShardplanError(_unwritable(output, reason_of(problem))) from None
    old = beside.with_name(f"{beside.name}.old")
    try:
        made = beside / target.name
        made.mkdir()
        yield made
        for file in made.rglob("*"):
            settle(file)
        if target.exists():
            target.replace(old)
        made.replace(target)
        settle(target.parent)
    except BaseException as problem:  # an interrupt may come between the two renames
        if old.exists() and not target.exists():
            old.replace(target)
        if isinstance(problem, OSError):
            raise ShardplanError(_unwritable(output, reason_of(problem))) from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def refuse_others(output: str | Path, begins: str, name: str) -> None:
    """Refuse to write a text of the format `name` over a file that does not begin as its texts do, by the pattern
    `begins`. Raises `ShardplanError` (`output-not-an-export`; `unwritable-output` for what cannot be read)."""
    if not is_file(output):
        return
    try:
        with Path(output).open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
    except OSError as problem:
        raise ShardplanError(_unwritable(output, reason_of(problem))) from None
    if head.strip() and not re.match(begins, head):
        raise ShardplanError(not_an_export(output, name))


def not_an_export(output: str | Path, name: str) -> Diagnostic:
    """That the file is none of the format `name`."""
    summary = f"this file exists and is no export to {name}; it is left as it is"
    hint = "write elsewhere with --output, or remove the file"
    return error("output-not-an-export", summary, file=str(output), hint=hint)


def refuse_inputs(output: str | Path, *inputs: str | Path) -> None:
    """Refuse an output that is one of the inputs. Raises `ShardplanError` (`output-is-input`)."""
    for given in inputs:
        if is_there(output) and is_there(given) and Path(output).samefile(given):
            summary = "the output is a file that is read"
            raise ShardplanError(error("output-is-input", summary, file=str(output), hint="write elsewhere"))


def _check_folder(output: str | Path, target: Path, mark: str) -> None:
    if target.exists() and not target.is_dir():
        raise ShardplanError(_unwritable(output, "it is a file", "name a folder"))
    if target.exists() and any(target.iterdir()) and not (target / mark).is_file():
        hint = "name a new folder, or remove this one"
        raise ShardplanError(_unwritable(output, f"the folder holds something else than an export (no {mark})", hint))


def _unwritable(output: str | Path, reason: str, hint: str = "") -> Diagnostic:
    return error("unwritable-output", f"cannot write the export: {reason}", file=str(output), hint=hint)
