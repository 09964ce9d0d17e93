"""The JSON Schema of plan files and the tables of docs/plan-file.md, generated from the table of fields.

`python -m shardplan.plan.schema`, in a checkout, regenerates both, and the summary in the schema of `--json` documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shardplan.cluster.reference import with_tables
from shardplan.plan.format import fields
from shardplan.plan.format.kinds import ListOf, Schema
from shardplan.plan.format.records import Nested, Record, record_schema

_ABOUT = (
    "How one model is split over one device mesh. Keys unknown to a reader are to be ignored within a major version. "
    "Ranks are row-major over the mesh axes, the last axis fastest. Parameters are in checkpoint orientation; "
    "operators and moves speak of the graph's own dims."
)
_LAYOUT: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "description": "Placements with their mesh axes, major first: `S(0)@machine, R/P@gpu`; axes left out are R, and "
    "`R` alone is replicated on all. `S(1;3x768)` shards each of three segments of dim 1.",
}


def records(record: Record = fields.PLAN) -> dict[str, Record]:
    """By name, `record` and all records under its keys, in the order of the file."""
    found = {record.name: record}
    for field in record.fields:
        kind = field.kind.kind if isinstance(field.kind, ListOf) else field.kind
        if isinstance(kind, Nested):
            found |= records(kind.record)
    return found


def plan_schema() -> Schema:
    """The published schema as plain data."""
    shared = {name: record_schema(record) for name, record in records().items() if record.shared}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:shardplan:plan:{fields.MAJOR}",
        "title": f"shardplan plan file, format version {fields.MAJOR}",
        "description": _ABOUT,
        **record_schema(fields.PLAN),
        "$defs": {"layout": _LAYOUT, **shared},
    }


def schema_text() -> str:
    """The text of schema.json."""
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False) + "\n"


def documents_text(text: str) -> str:
    """The schema of the `--json` documents with a new summary: null if an infeasible request has none."""
    documents = json.loads(text)
    summary = record_schema(fields.SUMMARY)
    for key, rules in summary["properties"].items():
        if key == "outcome":
            rules["enum"].insert(2, "infeasible")
        elif key != "memory_limit_bytes":
            rules["type"] = [rules["type"], "null"]
    documents["$defs"]["summary"] = summary
    return json.dumps(documents, indent=2, ensure_ascii=False) + "\n"


def field_table(record: Record) -> str:
    """The fields of a record as a table in Markdown."""
    lines = ["| key | kind | meaning |", "|---|---|---|"]
    for field in record.fields:
        notes = [field.about.replace("|", "\\|")] if field.about else []
        notes += ["Optional." if not field.required and "absent" not in field.about else ""]
        notes += [f"Format {fields.MAJOR}.{field.since}." if field.since else ""]
        lines.append(f"| `{field.key}` | {field.kind.word} | {' '.join(note for note in notes if note)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """docs/plan-file.md with new tables."""
    return with_tables(text, lambda name: field_table(records()[name]))


if __name__ == "__main__":
    here = Path(__file__)
    here.with_name("schema.json").write_text(schema_text(), encoding="utf-8")
    documents = here.parents[1] / "render" / "documents.schema.json"
    documents.write_text(documents_text(documents.read_text(encoding="utf-8")), encoding="utf-8")
    docs = here.parents[3] / "docs" / "plan-file.md"
    docs.write_text(page(docs.read_text(encoding="utf-8")), encoding="utf-8")
