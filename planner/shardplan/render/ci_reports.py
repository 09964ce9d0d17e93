"""Verdicts of `check` as the files that CI systems show: JUnit (one test case a plan) and SARIF (one result a plan)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from shardplan.escapes import json_text, one_line
from shardplan.study.check import Verdict

_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES: Final = {
    "stale-plan": "What the plan was made of has changed.",
    "invalid-plan": "The plan is not what its decisions make of it.",
    "infeasible-plan": "It is proven that the plan does not fit.",
    "not-optimal-plan": "There is a faster plan now.",
    "unreadable-plan": "The plan could not be read or checked.",
}
"""The codes of every verdict but `fresh`, and what they mean."""
Rows = Sequence[tuple[str, Verdict]]


def junit(rows: Rows) -> str:
    """A JUnit document: a plan is a test case, which fails unless it is fresh; one that nothing can be said of errs."""
    bad = [verdict.status for _, verdict in rows if verdict.status != "fresh"]
    errors = bad.count("unreadable")
    counts = {"tests": str(len(rows)), "failures": str(len(bad) - errors), "errors": str(errors), "skipped": "0"}
    suite = ET.Element("testsuite", {"name": "shardplan check", **counts})
    for file, verdict in rows:
        case = ET.SubElement(suite, "testcase", classname="shardplan.check", name=one_line(file))
        if verdict.status != "fresh":
            kind = "error" if verdict.status == "unreadable" else "failure"
            about = ET.SubElement(case, kind, type=verdict.status, message=one_line(verdict.findings[0]))
            about.text = "\n".join(map(one_line, _lines(verdict)))
        elif verdict.notes:
            ET.SubElement(case, "system-out").text = "\n".join(map(one_line, verdict.notes))
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'


def sarif(rows: Rows, version: str) -> str:
    """A SARIF 2.1.0 document with one result for each plan that is not fresh; `version`: of shardplan. Paths are
    relative to where the command ran, unless they were given otherwise."""
    rules = [{"id": code, "shortDescription": {"text": text}} for code, text in _RULES.items()]
    driver = {"name": "shardplan", "version": version, "rules": rules}
    results = [_result(file, verdict) for file, verdict in rows if verdict.status != "fresh"]
    runs = [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}]
    found = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": runs}
    return json_text(json.dumps(found, indent=2, ensure_ascii=False)) + "\n"


def _result(file: str, verdict: Verdict) -> dict[str, object]:
    place = {"artifactLocation": {"uri": quote(file)}, "region": {"startLine": 1}}
    return {
        "ruleId": verdict.code,
        "ruleIndex": list(_RULES).index(verdict.code),
        "level": "error",
        "message": {"text": "\n".join(map(one_line, _lines(verdict)))},
        "locations": [{"physicalLocation": place}],
    }


def _lines(verdict: Verdict) -> Iterator[str]:
    yield from verdict.findings
    if verdict.repair.text:
        yield f"to make it anew: {verdict.repair.text}"
