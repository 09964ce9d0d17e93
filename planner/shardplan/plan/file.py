"""Plan files on disk: reading, and atomic writing that leaves a file with the same content untouched."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import tempfile
from pathlib import Path

from shardplan.errors import Diagnostic, ShardplanError, error, reason_of
from shardplan.layout.mesh import Mesh
from shardplan.plan.format.decode import loads, loads_subject, loads_whole
from shardplan.plan.format.encode import dumps
from shardplan.plan.format.fields import MAJOR
from shardplan.plan.format.parse import WRITTEN, Document
from shardplan.plan.format.signature import UnsignedError, signature_fault, signing_command
from shardplan.plan.types import Plan
from shardplan.text_files import MARK
from shardplan.whole_files import write_whole

__all__ = ["check_output", "dumps", "loads", "read_plan", "write_other", "write_plan", "write_text"]

MOST_BYTES = 2**28
"""Of a plan file: a hundred times those of a plan for 70 billion parameters."""
_HEAD_SIZE = 1 << 13
"""Characters of a file by which its kind is known: a profile begins with comments."""
_HEAD = re.compile(r'\A\s*\{\s*"format_version"\s*:\s*"(?P<version>(?P<major>\d+)[\d.]*)"\s*,\s*"(?P<next>\w+)"')


_OTHERS = {
    "graph": re.compile(r"\A\s*<\?xml"),
    "trace": re.compile(r'\A\s*\{\s*"(?:displayTimeUnit|traceEvents)"'),
    "profile": re.compile(r"\A(?:[^\S\n]*(?:#[^\n]*)?\n)*(?:schema\s*:|(?:name\s*:[^\n]*\n)?extends\s*:)"),
    "report": re.compile(
        r"\A<!doctype html>\s*<html lang=\"en\">\s*<head>\s*<meta name=\"generator\" content=\"shardplan"
    ),
    "JUnit report": re.compile(r"\A\s*<\?xml[^>]*>\s*<testsuite"),
    "launcher": re.compile(r"\A(?:#!/bin/bash\n)?# shardplan launch-env: "),
    "SARIF report": re.compile(r'\A\s*\{\s*"\$schema": "[^"]*sarif'),
}
"""How files of other kinds begin, which may be replaced by files of their own kind."""
_OPTIONS = {"report": "--html", "JUnit report": "--junit", "SARIF report": "--sarif"}
"""The option that names a file of this kind, where it is another than `--output`."""


def read_plan(path: str | Path) -> Plan:
    """The plan in the file at `path`. Raises `ShardplanError` (`unreadable-plan`, or as `loads`)."""
    return loads(_text_of(path), str(path))


def read_subject(path: str | Path) -> tuple[str, str, Mesh]:
    """The names of the model and of the cluster of the plan in the file at `path`, and its mesh. Raises as
    `read_plan`."""
    return loads_subject(_text_of(path), str(path))


def read_whole(path: str | Path) -> tuple[Document, Plan]:
    """The document in the file at `path` and the plan that it is. Raises as `read_plan`."""
    return loads_whole(_text_of(path), str(path))


def read_signed(path: str | Path, signers: str | Path) -> tuple[Document, Plan]:
    """`read_whole` of a file whose content one of the allowed `signers` has signed.

    Raises `UnsignedError` (`unsigned-plan`), `ShardplanError` as `read_plan` and `signature_fault`.
    """
    text = _text_of(path)
    if fault := signature_fault(text, str(path), signers):
        raise UnsignedError(error("unsigned-plan", fault, hint=signing_command(str(path)), file=str(path)))
    return loads_whole(text, str(path))


def _text_of(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ShardplanError(error("not-a-plan", "this is larger than any plan", file=str(path), hint=WRITTEN))
        if str(path).endswith(".onnx"):
            hint = "shardplan solve makes a plan of it"
            raise ShardplanError(error("not-a-plan", "this is a model, not a plan", hint=hint, file=str(path)))
        text = data.decode().removeprefix(MARK)
    except UnicodeDecodeError:
        summary = "this is not a plan of shardplan: it is not text"
        raise ShardplanError(error("not-a-plan", summary, file=str(path), hint=WRITTEN)) from None
    except OSError as problem:
        summary = f"cannot read the plan: {reason_of(problem)}"
        hint = _nearest(Path(path))
        raise ShardplanError(error("unreadable-plan", summary, hint=hint, file=str(path))) from None
    return text


def _nearest(path: Path) -> str:
    """The file beside `path` with the most similar name, ignoring the ending, which most have."""
    try:
        beside = {_stem(file): file for file in sorted(path.parent.glob("*.json"))}
    except OSError:
        return ""
    near = difflib.get_close_matches(_stem(path), beside, n=1, cutoff=0.6)
    return f"did you mean '{beside[near[0]]}'?" if near else ""


def _stem(path: Path) -> str:
    return path.name.removesuffix(".json").removesuffix(".plan")


def write_plan(plan: Plan, path: str | Path) -> bool:
    """Writes `plan` to `path`; False if the file already has exactly this content and is left alone.

    The text is written to a temporary file that then replaces it, so nobody ever reads half a plan. Missing folders are
    created. Raises `ShardplanError` as `check_output`.
    """
    return write_text(dumps(plan), path)


def write_text(text: str, path: str | Path) -> bool:
    """`write_plan` for a plan that is already text."""
    check_output(path)
    return _place(text, path)


def write_other(text: str, path: str | Path, kind: str) -> bool:
    """`write_text` for a `graph`, a `trace`, a `profile` or a report: writes a new file or replaces one of the same
    kind.

    Raises `ShardplanError`: `unwritable-output`, and `output-not-a-graph` (`-trace`, and so on).
    """
    check_other(path, kind)
    return _place(text, path, kind)


def check_other(path: str | Path, kind: str) -> None:
    """Refuses, before any work is done, a `path` that a text of this kind cannot or should not be written to.

    Raises `ShardplanError` as `write_other`.
    """
    head = _replaceable_head(path, kind)
    if head.strip() and not _OTHERS[kind].match(head):
        raise ShardplanError(_something_else(path, kind))


def _place(text: str, path: str | Path, kind: str = "plan") -> bool:
    try:
        return write_whole(path, text.encode())
    except OSError as problem:
        raise ShardplanError(_unwritable(path, problem, kind)) from None


def check_output(path: str | Path) -> None:
    """Refuses, before any work is done, a `path` that a plan cannot or should not be written to.

    Raises `ShardplanError`: `unwritable-output`, `output-not-a-plan` (a file that is something else),
    `unsupported-format` (a plan of another major format version).
    """
    _check_existing(_replaceable_head(path), path)


def _replaceable_head(path: str | Path, kind: str = "plan") -> str:
    """The first characters of what a file at `path` would replace. Raises `ShardplanError` (`unwritable-output`)."""
    target = Path(path)
    try:
        return _head(target) if target.exists() else _check_folder(target)
    except OSError as problem:
        raise ShardplanError(_unwritable(path, problem, kind)) from None


def _head(target: Path) -> str:
    """The first characters of a file that may be replaced; raises `OSError` for one that may not, such as a device."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not target.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "permission denied")
    with target.open(encoding="utf-8", errors="replace") as file:
        return file.read(_HEAD_SIZE)


def _check_folder(target: Path) -> str:
    """Checks that the nearest existing parent of `target` is a folder that takes files."""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"'{_shown(folder)}' is not a folder")
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, f"no permission to write in '{_shown(folder)}'")
    try:
        tempfile.TemporaryFile(dir=folder).close()  # permissions do not say what /proc takes, or a full disk
    except OSError as problem:
        raise OSError(problem.errno, f"'{_shown(folder)}' takes no files: {reason_of(problem)}") from None
    return ""


def _check_existing(head: str, path: str | Path) -> None:
    match = _HEAD.match(head)
    if head.strip() and (not match or match["next"] == "command"):
        raise ShardplanError(_something_else(path, "plan"))
    if match and match["major"] != str(MAJOR):
        summary = (
            f"the plan here has format version {match['version']}; this shardplan writes {MAJOR}.x "
            "and does not overwrite it"
        )
        hint = "write elsewhere with --output, or remove the file"
        raise ShardplanError(error("unsupported-format", summary, file=str(path), hint=hint))


def _something_else(path: str | Path, kind: str) -> Diagnostic:
    summary = f"this file exists and is not a {kind}; it is left as it is"
    hint = f"write elsewhere with {_OPTIONS.get(kind, '--output')}, or remove the file"
    return error(f"output-not-a-{kind.lower().replace(' ', '-')}", summary, file=str(path), hint=hint)


def _unwritable(path: str | Path, problem: OSError, kind: str = "plan") -> Diagnostic:
    return error("unwritable-output", f"cannot write the {kind}: {reason_of(problem)}", file=str(path))


def _shown(folder: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(folder.relative_to(Path.cwd()))
    return str(folder)
