"""`shardplan timeline PLAN`: the step laid out in time, as a trace for Chrome or Perfetto."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from shardplan.units import NS_PER_S, US_PER_S
from shardplan.verbs.session import Session, verb

if TYPE_CHECKING:
    from rich.console import Console

    from shardplan.cost.schedule import Timeline
    from shardplan.plan.types import Summary

STANDARD_OUTPUT = "-"


@click.command(short_help="Lay a plan's step out in time, as a trace.")
@click.argument("plan", type=click.Path(path_type=str))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the trace there, in the format of chrome://tracing and ui.perfetto.dev; - is standard output.",
)
@verb
def timeline(session: Session, /, plan: str, output: str | None) -> int:
    """Lay out the step of the plan file PLAN on one compute and two communication streams.

    The plan's own step is a sum that takes some communication to hide behind compute; this one hides it only where
    there is something to compute while it runs.
    """
    from shardplan.plan.file import read_plan, write_other
    from shardplan.plan.timeline import chrome_trace, streams_of
    from shardplan.plan.timeline import timeline as lay_out

    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    loaded = read_plan(plan)
    laid_out = lay_out(loaded)
    events = chrome_trace(laid_out, str(loaded.model.get("name", "")), streams_of(loaded))
    trace = json.dumps(events, separators=(",", ":")) + "\n"
    if output == STANDARD_OUTPUT:
        sys.stdout.write(trace)
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
    return session.finish(document, lambda console: _show(console, laid_out, busy, loaded.summary, output))


def _show(console: Console, laid_out: Timeline, busy: dict[str, float], summary: Summary, output: str | None) -> None:
    from shardplan.units import duration

    def line(label: str, text: str) -> None:
        console.print(f"{label:<9} {text}", highlight=False, markup=False)

    total_ns = laid_out.seconds * NS_PER_S
    line("scheduled", f"{duration(total_ns)}; the plan's sum is {duration(summary.step_ns)}")
    for name, seconds in busy.items():
        share = 100 * seconds / laid_out.seconds if laid_out.seconds else 0.0
        line("busy", f"{duration(seconds * NS_PER_S)}, {share:.0f} % of the step: {name}")
    if output:
        line("wrote", f"{output} ({len(laid_out.tasks):,} tasks); open it in ui.perfetto.dev")
