"""`explain`: what takes the time, why a tensor or an operator is treated as it is, and what else there was."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardplan.cost.named import measure_of
from shardplan.plan.types import Plan
from shardplan.render.console import emit, table
from shardplan.study.explain import Explanation
from shardplan.study.shares import Share
from shardplan.units import percent, size

MOST_SHARES = 15


def show_shares(console: Console, plan: Plan, shares: Sequence[Share]) -> None:
    """What a step is made of, dearest first."""
    measure = measure_of(plan.model.get("cost_model"))
    emit(console, f"step {measure.text(plan.summary.step_ns)}, of which", _share_rows(plan, shares[:MOST_SHARES]))
    if len(shares) > MOST_SHARES:
        rest = sum(share.time_ns for share in shares[MOST_SHARES:])
        emit(console, f"and {len(shares) - MOST_SHARES} more: {measure.text(rest)}")


def show_explanation(console: Console, plan: Plan, found: Explanation) -> None:
    """The decision and its share of the step; then each alternative, solved again with everything else free."""
    chosen, measure = found.alternatives[0], measure_of(plan.model.get("cost_model"))
    many = f" ×{found.count}" if found.count > 1 else ""
    whole = sum(share.time_ns for share in found.shares) / max(plan.summary.step_ns, 1)
    takes = f"{percent(whole)} of the step"
    if found.bytes_per_device is not None:
        takes += f", {size(found.bytes_per_device)} per device"
    head = Text(f"{found.subject}  {found.about}{many}  {chosen.choice}", style="bold")
    emit(console, head, takes, _share_rows(plan, found.shares), "")
    rows = table("instead", ">costs", ">memory", "*and then")
    for one in found.alternatives[1:]:
        if one.cost_ns is None:
            rows.add_row(one.choice, "", "", one.why_not, style="dim")
        else:
            rows.add_row(
                one.choice, f"+{measure.text(one.cost_ns)}", _memory(one.memory_bytes or 0), "; ".join(one.also)
            )
    emit(console, rows)


def explain_document(
    plan: Plan, subject: str | None, shares: Sequence[Share], found: Explanation | None
) -> dict[str, object]:
    """The same as plain data: microseconds and bytes."""
    step_ns = max(plan.summary.step_ns, 1)
    return {
        "step_us": plan.summary.step_ns / 1000,
        "subject": subject,
        "bytes_per_device": found and found.bytes_per_device,
        "shares": [
            {
                "name": share.name,
                "what": share.what,
                "count": share.count,
                "time_us": share.time_ns / 1000,
                "share": share.time_ns / step_ns,
            }
            for share in shares
        ],
        "alternatives": [
            {
                "choice": one.choice,
                "chosen": one.chosen,
                "possible": one.cost_ns is not None,
                "cost_us_delta": None if one.cost_ns is None else one.cost_ns / 1000,
                "memory_bytes_delta": one.memory_bytes,
                "also": list(one.also),
                "why_not": one.why_not,
            }
            for one in (found.alternatives if found else ())
        ],
    }


def _share_rows(plan: Plan, shares: Sequence[Share]) -> Table:
    rows = table(">share", ">time", "*what", "*how")
    rows.show_header = False
    step_ns, measure = max(plan.summary.step_ns, 1), measure_of(plan.model.get("cost_model"))
    for share in shares:
        many = f" ×{share.count}" if share.count > 1 else ""
        rows.add_row(percent(share.time_ns / step_ns), measure.text(share.time_ns), f"{share.name}{many}", share.what)
    return rows


def _memory(number_of_bytes: int) -> str:
    if not number_of_bytes:
        return "same"
    return f"{'−' if number_of_bytes < 0 else '+'}{size(abs(number_of_bytes))}"
