"""`shardplan timeline PLAN`: the scheduled step, as a trace for Chrome or Perfetto."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from shardplan.units import NS_PER_S, US_PER_S
from shardplan.verbs.session import Session, verb

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.plan.types import Plan
    from shardplan.schedule.tasks import Timeline

STANDARD_OUTPUT = "-"
SAME_STEP = 1e-3
"""Relative difference up to which the schedule takes as long as the plan says: times in a file are rounded."""


@click.command(short_help="Show a plan's schedule, as a trace.")
@click.argument("plan", type=click.Path(path_type=str))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the trace there, in the format of chrome://tracing and ui.perfetto.dev; - is standard output.",
)
@verb
def timeline(session: Session, /, plan: str, output: str | None) -> int:
    """Show the schedule of the plan file PLAN: one compute stream, and one communication stream per link level.

    It is rebuilt from the file alone, and takes as long as the plan says. Times of streams are those in which they are
    busy: compute beside communication is slower.
    """
    from shardplan.plan.file import read_plan, write_other
    from shardplan.plan.timeline import chrome_trace, streams_of
    from shardplan.plan.timeline import timeline as lay_out

    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    loaded = read_plan(plan)
    laid_out = lay_out(loaded)
    trace = json.dumps(chrome_trace(loaded), separators=(",", ":")) + "\n"
    if output == STANDARD_OUTPUT:
        session.write_text(trace)
        return 0
    if output:
        write_other(trace, output, "trace")
    busy = {name: laid_out.busy(stream) for stream, name in enumerate(streams_of(loaded))}
    document = {
        "trace": output,
        "scheduled_us": round(laid_out.seconds * US_PER_S, 3),
        "step_us": loaded.summary.step_ns / 1000,
        "tasks": len(laid_out.tasks),
        "busy_us": {name: round(seconds * US_PER_S, 3) for name, seconds in busy.items()},
    }
    return session.finish(document, lambda console: _show(console, laid_out, busy, loaded, output))


def _show(console: Console, laid_out: Timeline, busy: dict[str, float], plan: Plan, output: str | None) -> None:
    from shardplan.render.console import emit
    from shardplan.render.solve import time_line
    from shardplan.units import duration

    def line(label: str, text: str) -> None:
        emit(console, f"{label:<9} {text}")

    step_ns, summary = round(laid_out.seconds * NS_PER_S), plan.summary
    if abs(step_ns - summary.step_ns) <= SAME_STEP * step_ns:
        line("step", time_line(summary).removeprefix("step "))
    else:
        line("step", f"{duration(step_ns)}; {_other_step(plan)}")
    for name, seconds in busy.items():
        share = 100 * seconds / laid_out.seconds if laid_out.seconds else 0.0
        line("busy", f"{duration(seconds * NS_PER_S)}, {share:.0f} % of the step: {name}")
    if output:
        line("wrote", f"{output} ({len(laid_out.tasks):,} tasks); open it in ui.perfetto.dev")


def _other_step(plan: Plan) -> str:
    """Why the schedule takes another time than the plan says."""
    from shardplan.units import duration

    says = duration(plan.summary.step_ns)
    if plan.pipeline is not None:
        return f"the plan says {says}, by the formula of its pipeline schedule"
    return f"the file says {says}: it is older than format 1.4, whose steps are scheduled"
