"""The notebook display of a plan: its summary as a small HTML table, in plain Python."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from shardplan.escapes import one_line
from shardplan.plan.views.breakdown import breakdown
from shardplan.units import counted, duration, percent, size

if TYPE_CHECKING:
    from shardplan.plan.types import Plan


def summary_html(plan: Plan) -> str:
    """An HTML table: model, cluster, step with its bound, memory; `shardplan.report` has the rest."""
    summary, model = plan.summary, plan.model
    memory = summary.memory
    held = f"{size(memory.total)} of {size(summary.memory_limit_bytes)} per device"
    prices = model.get("cost_model")
    rows = [
        ("model", f"{model.get('name')}, {model.get('mode')}"),
        ("cluster", f"{plan.cluster.get('name')} ({plan.mesh}, {counted(plan.mesh.size, 'device')})"),
        ("step", f"priced by {prices}" if prices else _step(plan)),
        ("memory", held),
    ]
    if plan.pipeline is not None:
        rows.append(("stages", f"{len(plan.pipeline.stages)}, {plan.pipeline.schedule}"))
    cells = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{escape(one_line(text))}</td></tr>'
        for name, text in rows
    )
    return f"<table>{cells}</table>"


def _step(plan: Plan) -> str:
    summary, spent = plan.summary, breakdown(plan)
    parts = f"compute {duration(spent.compute_ns)}, exposed communication {duration(spent.exposed_ns)}"
    parts += f", bubble {duration(spent.bubble_ns)}" if plan.pipeline is not None else ""
    proof = f"optimality gap {percent(summary.slack)}" if summary.slack >= 0.0005 else "optimal"
    return f"{duration(summary.step_ns)}: {parts}; {proof}"
