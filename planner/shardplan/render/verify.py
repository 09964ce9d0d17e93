"""Output of `verify`: its result as lines and as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from rich.console import Console

from shardplan.model.types import Model
from shardplan.program.machine.run import Report
from shardplan.render.console import emit
from shardplan.units import counted

_SHOWN = 8


def show_verification(console: Console, report: Report, model: Model, *, shrunk: bool) -> None:
    """The verdict, then what was run, or the first value that differs."""
    if report.misdeclared:
        shown, rest = report.misdeclared[:_SHOWN], len(report.misdeclared) - _SHOWN
        more = [f"  and {rest} more"] if rest > 0 else []
        emit(
            console, f"not verified: the plan says otherwise of '{model.name}'", *(f"  {text}" for text in shown), *more
        )
        return
    of = f"scaled-down '{model.name}'" if shrunk else f"'{model.name}'"
    ran = (
        f"{counted(report.operators, 'operator')} of {of} on {counted(report.devices, 'device')}, "
        f"{counted(report.values, 'value')} compared"
    )
    lines = [f"verified: {ran}" if report.verified else f"not verified: {ran}"]
    if report.mismatch is None:
        lines.append(f"largest relative difference {report.worst:.1e}")
        lines.append(_moved(report))
        lines += _moved_inside(report)
    else:
        lines += _first_difference(report)
    lines += [f"bytes: {text}" for text in report.mispriced]
    emit(console, *lines)


def _moved(report: Report) -> str:
    """What collectives moved, in bytes received by all devices together."""
    parts = _bytes_by_kind(report.moved_bytes)
    match = "as the plan says" if not report.mispriced else "not as the plan says"
    return f"moved, {match}: {parts}" if parts else "nothing was moved between operators"


def _moved_inside(report: Report) -> list[str]:
    """What operators that are split along their own dims ask each other for."""
    parts = _bytes_by_kind(report.inner_bytes)
    return [f"moved inside operators, in double precision: {parts}"] if parts else []


def _bytes_by_kind(moved: Mapping[str, int]) -> str:
    """`all-gather 148,992 B, permute 26,112 B`."""
    return ", ".join(f"{kind.replace('_', '-')} {count:,} B" for kind, count in sorted(moved.items()))


def _first_difference(report: Report) -> list[str]:
    found = report.mismatch
    assert found is not None
    where = f"operator '{found.operator}' ({found.kind})" if found.operator else "no operator"
    if found.kind == "move":
        where = (
            f"the move for operator '{found.operator}'" if found.operator else f"the move to where it is {found.form}"
        )
    difference = "" if math.isnan(found.error) else f" (by {found.error:.1e})"
    return [
        f"first difference: '{found.tensor}' after {where}",
        f"  {found.why}{difference}",
        *(f"  layout {layout}" for layout in found.layouts),
    ]


def verification_document(report: Report, model: Model, *, shrunk: bool) -> dict[str, object]:
    """The `result` of the JSON document."""
    found = report.mismatch
    return {
        "verified": report.verified,
        "model": model.name,
        "shrunk": shrunk,
        "devices": report.devices,
        "operators": report.operators,
        "values": report.values,
        "rtol": report.rtol,
        "largest_difference": report.worst if math.isfinite(report.worst) else None,
        "moved_bytes": _sorted(report.moved_bytes),
        "priced_bytes": _sorted(report.priced_bytes),
        "inner_bytes": _sorted(report.inner_bytes),
        "mispriced": list(report.mispriced),
        "misdeclared": list(report.misdeclared),
        "first_difference": None
        if found is None
        else {
            "tensor": found.tensor,
            "operator": found.operator,
            "kind": found.kind,
            "form": found.form,
            "layouts": list(found.layouts),
            "why": found.why,
            "error": found.error if math.isfinite(found.error) else None,
        },
    }


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
