"""Output of `evaluate`: the cost of a given plan, term by term."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from shardplan.cost.named import measure_of
from shardplan.plan.format.encode import summary_record
from shardplan.render.console import emit, table
from shardplan.render.explain import share_records
from shardplan.render.solve import facts, memory_line, plan_line, time_line
from shardplan.study.evaluate import Evaluation
from shardplan.study.shares import Share
from shardplan.units import counted, percent, size

MOST_TERMS = 20


def show_evaluation(
    console: Console, found: Evaluation, file: str, shares: Sequence[Share], *, everything: bool = False
) -> None:
    """The terms of the step, dearest first, and below them what was given and the totals; `file`: what fixes it."""
    summary, prices = found.plan.summary, found.plan.model.get("cost_model")
    measure = measure_of(prices)
    shown = shares if everything else shares[:MOST_TERMS]
    rows = table(">share", ">cost" if measure.unit else ">time", "=what", "=how")
    for share in shown:
        many = f" ×{share.count}" if share.count > 1 else ""
        cost = measure.text(share.time_ns)
        rows.add_row(percent(share.time_ns / max(summary.step_ns, 1)), cost, f"{share.name}{many}", share.what)
    emit(console, rows)
    if rest := shares[len(shown) :]:
        emit(console, f"and {len(rest)} more: {measure.text(sum(share.time_ns for share in rest))}; --all shows them")
    emit(
        console,
        "",
        facts(
            ("plan", plan_line(found.plan)),
            ("fixed", f"{file}: {_fixed(found)}"),
            *([("prices", f"{prices}, in {measure.unit or 'time'}")] if prices else []),
            ("step", time_line(found.plan, measure).removeprefix("step ")),
            ("memory", memory_line(summary.memory, summary.memory_limit_bytes)),
            *([] if found.fits else [("", f"does not fit: {size(found.over_bytes)} too much")]),
        ),
    )


def evaluation_document(found: Evaluation, shares: Sequence[Share]) -> dict[str, object]:
    """The same as plain data. Of a cost model without time one microsecond is one of its `unit`."""
    summary, prices = found.plan.summary, found.plan.model.get("cost_model")
    return {
        "cost_model": prices or "shardplan",
        "unit": measure_of(prices).unit or "us",
        "fits": found.fits,
        "fixed": found.fixed,
        "decisions": found.decisions,
        "summary": summary_record(summary),
        "terms": share_records(shares, found.plan),
    }


def _fixed(found: Evaluation) -> str:
    if found.fixed == found.decisions:
        return f"all {counted(found.decisions, 'decision')}"
    return f"{counted(found.fixed, 'decision')} of {found.decisions:,}; the others at least cost"
