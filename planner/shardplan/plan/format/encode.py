"""Writes a plan as JSON text: two spaces, fixed key order, one decision per line, so that `git diff` of two plans is
readable.

Equal plans give equal bytes: there is no date, host, absolute path or rounding in it. Times are integer nanoseconds in
the decisions and microseconds with three decimals, the same integers, in the summary. Parameters are written in
checkpoint orientation; operators and moves refer to the graph's own dims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardplan.layout.mesh import Mesh
from shardplan.plan.format.digest import DIGESTED, content_digest
from shardplan.plan.format.fields import MAJOR, PLAN, SUMMARY
from shardplan.plan.format.kinds import Context
from shardplan.plan.format.records import Json, write_record
from shardplan.plan.types import Plan, Summary

LINE_WIDTH = 110


def dumps(plan: Plan) -> str:
    """The plan file's text, with a final newline."""
    return _text(document(plan))


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, with its digest."""
    version, *rest = _sections(plan, least=DIGESTED).items()
    unsigned = dict([version, *rest])
    return dict([version, ("digest", content_digest(unsigned)), *rest])


def _sections(plan: Plan, least: int = 0) -> dict[str, Any]:
    """The sections of a plan or of a stage's plan, with the lowest minor version (at least `least`) whose readers
    understand all of them."""
    on = Context(plan.mesh, _sections, minor=least)
    if plan.pipeline is not None:
        on.stages = [Context(stage.plan.mesh, _sections) for stage in plan.pipeline.stages]
    sections = write_record(PLAN, plan, on)
    return sections | {"format_version": f"{MAJOR}.{on.minor}"}


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as it is when its file is read: objects, lists, texts, numbers."""
    found: dict[str, Any] = json.loads(_inline(document))
    return found


def summary_record(summary: Summary) -> Json:
    """The summary as `solve --json` and the plan file state it: microseconds and bytes."""
    return write_record(SUMMARY, summary, _NOWHERE)


def infeasible_summary(memory_limit_bytes: int) -> Json:
    """The keys of `summary_record` for a proof that nothing fits: all null except the outcome and the limit."""
    known = {"outcome": "infeasible", "memory_limit_bytes": memory_limit_bytes}
    return {field.key: known.get(field.key) for field in SUMMARY.fields}


_NOWHERE = Context(Mesh(()), _sections)
"""For records in which nothing is laid out."""


def _text(sections: Mapping[str, Any]) -> str:
    """The text of a whole document."""
    return "{\n" + ",\n".join(_part(name, value) for name, value in sections.items()) + "\n}\n"


def _part(name: str, value: Any) -> str:
    if name == "pipeline":
        return _pipeline(value)
    return _rows(name, value) if isinstance(value, list) else _section(name, value)


def _pipeline(record: Mapping[str, Any]) -> str:
    """The stages, each with its plan in the usual form, indented by four more places."""
    parts = [f"{_inline(key)}: {_in_pipeline(key, value)}" for key, value in record.items()]
    return '  "pipeline": {\n    ' + ",\n    ".join(parts) + "\n  }"


def _in_pipeline(key: str, value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _inline(value)
    rows = [_stage(row) if key == "stages" else f"      {_inline(row)}" for row in value]
    return "[\n" + ",\n".join(rows) + "\n    ]"


def _stage(record: Mapping[str, Any]) -> str:
    lines = [f"        {_inline(key)}: {_inline(value)}," for key, value in record.items() if key != "plan"]
    first, *rest = _text(record["plan"]).rstrip("\n").splitlines()
    plan = "\n".join([f'        "plan": {first}', *(f"        {line}" for line in rest)])
    return "      {\n" + "\n".join(lines) + "\n" + plan + "\n      }"


def _rows(name: str, rows: list[Json]) -> str:
    if not rows:
        return f'  "{name}": []'
    lines = ",\n".join(f"    {_inline(row)}" for row in rows)
    return f'  "{name}": [\n{lines}\n  ]'


def _section(name: str, value: object) -> str:
    return f'  "{name}": {_nested(value, indent=2, used=len(name) + 6, open_up=True)}'


def _nested(value: object, indent: int, used: int, *, open_up: bool = False) -> str:
    """`value` on one line if it fits, else one entry per line. `open_up`: mappings are never on one line."""
    line = _inline(value)
    if (len(line) + used <= LINE_WIDTH and not (open_up and isinstance(value, Mapping))) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, Mapping):
        entries = [
            f"{_inline(key)}: {_nested(entry, indent + 2, indent + len(key) + 6)}" for key, entry in value.items()
        ]
        return "{\n" + ",\n".join(pad + entry for entry in entries) + "\n" + " " * indent + "}"
    if isinstance(value, (list, tuple)):
        entries = [_nested(entry, indent + 2, indent + 2) for entry in value]
        return "[\n" + ",\n".join(pad + entry for entry in entries) + "\n" + " " * indent + "]"
    return line


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
