"""Output of `check`: one line per plan, and the number of fresh ones."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from shardplan.render.console import emit, table
from shardplan.study.check import Verdict

_STYLES = {"fresh": "green", "not optimal": "yellow"}
_WORDS = {"unreadable": "not checked"}
"""What people read for a status of `--json` documents."""


def show_check(console: Console, rows: Sequence[tuple[str, Verdict]]) -> None:
    """Plans with their verdicts; what speaks against them has been said on standard error."""
    shown = table("=plan", "status", "*note")
    shown.show_header = False
    for file, verdict in rows:
        shown.add_row(file, _WORDS.get(verdict.status, verdict.status), "; ".join(verdict.notes))
        shown.rows[-1].style = _STYLES.get(verdict.status, "red")
    emit(console, shown)
    bad = sum(verdict.status != "fresh" for _, verdict in rows)
    if len(rows) > 1:
        need = "needs" if bad == 1 else "need"
        emit(console, f"{bad} of {len(rows)} plans {need} attention" if bad else f"all {len(rows)} plans are fresh")


def check_document(rows: Sequence[tuple[str, Verdict]]) -> dict[str, object]:
    """The verdicts as plain data; `repair`: the command that makes the plan anew, or an empty text."""
    return {"plans": [_row(file, verdict) for file, verdict in rows]}


def _row(file: str, verdict: Verdict) -> dict[str, object]:
    wrong = [{"path": one.path, "found": one.found, "expected": one.expected} for one in verdict.differences]
    return {
        "plan": file,
        "status": verdict.status,
        "findings": [*verdict.findings, *verdict.notes],
        "repair": verdict.repair.command,
        **({"differences": wrong} if wrong else {}),
    }
