"""Output of `explain`: shares of the step, and the cost of the alternatives for a tensor or an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardplan.cost.named import measure_of
from shardplan.plan.diff import without_operators
from shardplan.plan.types import Plan
from shardplan.render.console import emit, table
from shardplan.render.diff import diff_document, effects, in_parts, show_changes
from shardplan.render.solve import time_line
from shardplan.study.explain import Explanation
from shardplan.study.shares import Share
from shardplan.study.what_if import WhatIf
from shardplan.units import percent, size

MOST_SHARES = 15


def show_shares(console: Console, plan: Plan, shares: Sequence[Share]) -> None:
    """What a step is made of, dearest first; the step itself last, where a terminal still shows it."""
    measure = measure_of(plan.model.get("cost_model"))
    step = time_line(plan, measure)
    emit(console, f"{step.partition('   ')[0]}, of which", _share_rows(plan, shares[:MOST_SHARES]))
    if len(shares) > MOST_SHARES:
        rest = sum(share.time_ns for share in shares[MOST_SHARES:])
        emit(console, f"and {len(shares) - MOST_SHARES} more: {measure.text(rest)}")
    emit(console, "", step)


def show_explanation(console: Console, plan: Plan, found: Explanation) -> None:
    """The decision and its share of the step; then each alternative, solved again with everything else free."""
    measure = measure_of(plan.model.get("cost_model"))
    emit(console, *_head(plan, found, found.alternatives[0].choice), _share_rows(plan, found.shares), "")
    says_more = any(one.also or one.cost_ns is None for one in found.alternatives[1:])
    rows = table("alternative", ">step", ">memory", "=what else changes" if says_more else "=")
    above: tuple[str, ...] = ()
    for one in found.alternatives[1:]:
        if one.cost_ns is None:
            rows.add_row(one.choice, "", "", one.why_not, style="dim")
            continue
        then = "as above" if one.also and one.also == above else "; ".join(one.also)
        rows.add_row(one.choice, _more(one.cost_ns, measure.text), _more(one.memory_bytes or 0, size), then)
        above = one.also
    emit(console, rows)


def show_instead(console: Console, plan: Plan, found: Explanation, other: WhatIf, *, everything: bool = False) -> None:
    """What was asked for beside what there is: what a step takes longer and shorter for, what else changes; the totals
    last, where a terminal still shows them."""
    measure = measure_of(plan.model.get("cost_model"))
    emit(console, *_head(plan, found, f"→ {other.spec}"))
    shown = other.terms if everything else other.terms[:MOST_SHARES]
    rows = table(">", "=", "=")
    rows.show_header = False
    for term in shown:
        many = f" ×{term.count}" if term.count > 1 else ""
        sign = "−" if term.time_ns < 0 else "+"
        rows.add_row(f"{sign}{measure.text(abs(term.time_ns))}", f"{term.name}{many}", term.what)
    rest = other.terms[len(shown) :]
    if rest:
        total = sum(term.time_ns for term in rest)
        rows.add_row(
            f"{'−' if total < 0 else '+'}{measure.text(abs(total))}", f"{len(rest)} more; --all shows them", ""
        )
    if shown:
        emit(console, "", rows)
    stored = without_operators(other.diff)
    if stored.changes:
        emit(console, "")
        show_changes(console, stored, everything=everything)
    emit(console, "", *map(in_parts, effects(other.diff)))


def instead_document(other: WhatIf) -> dict[str, object]:
    """The same as plain data."""
    return {
        "spec": other.spec,
        "terms": [
            {"name": term.name, "what": term.what, "count": term.count, "time_us_delta": term.time_ns / 1000}
            for term in other.terms
        ],
        **{key: value for key, value in diff_document(other.diff).items() if key in ("effects", "changes")},
    }


def _head(plan: Plan, found: Explanation, choice: str) -> tuple[Text, str]:
    """What is explained and how it is treated; what it takes."""
    many = f" ×{found.count}" if found.count > 1 else ""
    whole = sum(share.time_ns for share in found.shares) / max(plan.summary.step_ns, 1)
    takes = f"{percent(whole)} of the step"
    if found.bytes_per_device is not None:
        takes += f", {size(found.bytes_per_device)} per device"
    if found.tied:
        takes += f", tied with {', '.join(found.tied)}"
    return Text(f"{found.subject}  {found.about}{many}  {choice}", style="bold"), takes


def share_records(shares: Sequence[Share], plan: Plan) -> list[dict[str, object]]:
    """Shares of the step of `plan` as plain data: microseconds, and parts of 1."""
    step_ns = max(plan.summary.step_ns, 1)
    return [
        {
            "name": share.name,
            "what": share.what,
            "count": share.count,
            "time_us": share.time_ns / 1000,
            "share": share.time_ns / step_ns,
        }
        for share in shares
    ]


def explain_document(
    plan: Plan, subject: str | None, shares: Sequence[Share], found: Explanation | None
) -> dict[str, object]:
    """The same as plain data: microseconds and bytes."""
    return {
        "step_us": plan.summary.step_ns / 1000,
        "subject": subject,
        "bytes_per_device": found and found.bytes_per_device,
        "shares": share_records(shares, plan),
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
    rows = table(">share", ">time", "=what", "=how")
    rows.show_header = False
    step_ns, measure = max(plan.summary.step_ns, 1), measure_of(plan.model.get("cost_model"))
    for share in shares:
        many = f" ×{share.count}" if share.count > 1 else ""
        part = percent(share.time_ns / max(step_ns, 1))
        rows.add_row(part, measure.text(share.time_ns), f"{share.name}{many}", share.what)
    return rows


def _more(amount: int, text: Callable[[int], str]) -> str:
    """`+4.14 ms`, `−9 MiB`, `same`."""
    return f"{'−' if amount < 0 else '+'}{text(abs(amount))}" if amount else "same"
