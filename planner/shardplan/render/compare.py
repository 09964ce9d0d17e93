"""Output of `compare`: hand-written plans beside the best one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from shardplan.plan.types import Plan
from shardplan.render.console import emit, table
from shardplan.study.compare import BEST, Contender
from shardplan.units import duration, percent, size


def show_comparison(console: Console, contenders: Sequence[Contender], limit_bytes: int) -> None:
    """One row for each, the best last; a plan that does not fit says by how much."""
    best = next((c.plan for c in contenders if c.name == BEST and c.fits), None)
    rows = table("plan", ">step", ">compute", ">exposed", ">memory", "*slower than best")
    for contender in contenders:
        rows.add_row(contender.name, *_cells(contender, best, limit_bytes))
        rows.rows[-1].style = "bold" if contender.name == BEST else "" if contender.fits else "dim"
    emit(console, "", rows, f"a device may use {size(limit_bytes)}")


def comparison_document(contenders: Sequence[Contender], limit_bytes: int) -> dict[str, object]:
    """The same as plain data: microseconds and bytes, null where there is no plan of the kind."""
    return {"memory_limit_bytes": limit_bytes, "plans": [_record(contender) for contender in contenders]}


def _cells(contender: Contender, best: Plan | None, limit_bytes: int) -> tuple[str, ...]:
    if contender.plan is None:
        return ("-", "-", "-", "-", contender.why_not)
    summary = contender.plan.summary
    times = (summary.step_ns, summary.compute_ns, summary.communication_ns)
    used = summary.memory.total
    if not contender.fits:
        note = f"does not fit: {size(used - limit_bytes)} too much"
    elif best is None or contender.name == BEST:
        note = ""
    elif summary.step_ns == best.summary.step_ns:
        note = "as fast"
    else:
        note = f"+{percent(summary.step_ns / best.summary.step_ns - 1)}" if best.summary.step_ns else ""
    return (*map(duration, times), size(used), note)


def _record(contender: Contender) -> dict[str, object]:
    summary = contender.plan.summary if contender.plan else None
    return {
        "name": contender.name,
        "possible": summary is not None,
        "fits": contender.fits,
        "step_us": summary and summary.step_ns / 1000,
        "compute_us": summary and summary.compute_ns / 1000,
        "communication_us": summary and summary.communication_ns / 1000,
        "memory_bytes": summary and summary.memory.total,
        **({} if contender.is_computed else {"computed": False}),
    }
