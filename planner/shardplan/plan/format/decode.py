"""Reads the text of a plan file as a `Plan`; refuses what this version does not understand and says where it stands.

Reading is the inverse of `encode.dumps`; tensors come back section by section (parameters, inputs, outputs, others).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.plan.format.fields import DETAILS, MESH, PLAN, SUMMARY
from shardplan.plan.format.kinds import Context, ListOf, RecordError
from shardplan.plan.format.parse import Document, parsed
from shardplan.plan.format.records import Field, compare_derived, read_field
from shardplan.plan.types import Plan


def loads(text: str, path: str = "plan") -> Plan:
    """The plan in `text`; `path` is named in errors.

    Raises `ShardplanError`: `not-a-plan` (no JSON object with a format version), `unsupported-format` (another major
    version), `damaged-plan` (syntax, missing or wrong entries), each with the line where it can be known.
    """
    return loads_whole(text, path)[1]


def loads_whole(text: str, path: str = "plan") -> tuple[Document, Plan]:
    """The document in `text`, and its plan. Raises as `loads`."""
    document = parsed(text, path)
    with _damage_error(text, path):
        return document, read_document(document)


def loads_subject(text: str, path: str = "plan") -> tuple[str, str, Mesh]:
    """The names of the model and of the cluster of the plan in `text`, and its mesh. Nothing else is read, which is
    fast. Raises as `loads`."""
    document = parsed(text, path)
    field = next(field for field in PLAN.fields if field.key == "mesh")
    with _damage_error(text, path):
        mesh: Mesh = _read_section(field, document, {}, Context(Mesh(()), read_document))["mesh"]
        return _named(document, "model"), _named(document, "cluster"), mesh


@contextlib.contextmanager
def _damage_error(text: str, path: str) -> Iterator[None]:
    """The error about a damaged plan in `text`, with file and line."""
    try:
        yield
    except _DamagedError as problem:
        place = {"file": path, "line": _line(text, problem.section, problem.row)}
        raise ShardplanError(error("damaged-plan", str(problem), hint="solve again", **place)) from None


def _named(document: Mapping[str, Any], section: str) -> str:
    about = document.get(section)
    if not isinstance(about, dict) or "name" not in about:
        raise _DamagedError(section, None, "it has no name")
    return str(about["name"])


class _DamagedError(RecordError):
    """`section` of the document and, in a list, the row that is wrong."""

    def __init__(self, section: str, row: int | None, what: str) -> None:
        super().__init__(f"{section}: {what}" if row is None else f"{section}[{row}]: {what}")
        self.section, self.row = section, row


def read_document(document: Mapping[str, Any]) -> Plan:
    """The plan that plain data describes. Raises `RecordError`, which names the section, and the row in it."""
    on = Context(Mesh(()), read_document)
    found: dict[str, Any] = {}
    for field in sorted(PLAN.fields, key=lambda field: field.key != "mesh"):
        found[field.name] = _read_section(field, document, found, on)
        if field.key == "mesh":
            on = Context(found["mesh"]["mesh"], read_document)
    try:
        plan: Plan = PLAN.make(found)
    except (RecordError, ValueError) as problem:
        raise _DamagedError("plan", None, str(problem)) from None
    for key, record, value in (("mesh", MESH, plan), ("summary", SUMMARY, plan.summary), ("details", DETAILS, plan)):
        try:
            compare_derived(record, value, document[key], on)
        except RecordError as problem:
            raise _DamagedError(key, None, str(problem)) from None
    return plan


def _read_section(field: Field, document: Mapping[str, Any], found: Mapping[str, Any], on: Context) -> Any:
    try:
        return read_field(field, document, found, on)
    except (RecordError, ValueError) as problem:
        row = problem.row if isinstance(problem, RecordError) and isinstance(field.kind, ListOf) else None
        raise _DamagedError(field.key, row, str(problem)) from None


def _line(text: str, section: str, row: int | None) -> int | None:
    """Line of the section, or of the row in it where the file has one row per line as `dumps` writes it."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line.startswith(f'  "{section}": ')]
    if not starts:
        return None
    row_line = starts[0] + 1 + (row or 0)
    one_per_line = row is not None and row_line <= len(lines) and lines[row_line - 1].startswith("    {")
    return row_line if one_per_line else starts[0]
