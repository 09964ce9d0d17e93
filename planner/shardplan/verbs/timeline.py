"""`shardplan timeline PLAN`: the scheduled step, as a trace for Chrome or Perfetto."""

from __future__ import annotations

import json

import click

from shardplan.units import US_PER_S
from shardplan.verbs.reading import edited_warnings
from shardplan.verbs.session import Session, verb

STANDARD_OUTPUT = "-"


@click.command(short_help="Show a plan's schedule, as a chart or a trace.")
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

    The schedule is rebuilt from the file alone and takes as long as the plan's step. A stream's time is how
    long it is busy: compute is slower beside communication.
    """
    from shardplan.plan.file import read_whole, write_other
    from shardplan.plan.views.timeline import chrome_trace, streams_of, timeline
    from shardplan.render.timeline import busy_seconds, other_step_reason, show_timeline

    if session.as_json and output == STANDARD_OUTPUT:
        raise click.UsageError("--json and --output - both want standard output")
    found, loaded = read_whole(plan)
    session.say_all(edited_warnings(plan, found))
    made = timeline(loaded)
    trace = json.dumps(chrome_trace(loaded), separators=(",", ":")) + "\n"
    if output == STANDARD_OUTPUT:
        session.write_text(trace)
        return 0
    if output:
        write_other(trace, output, "trace")
    busy = busy_seconds(made, streams_of(loaded))
    document = {
        "trace": output,
        "scheduled_us": round(made.seconds * US_PER_S, 3),
        "step_us": loaded.summary.step_ns / 1000,
        "tasks": len(made.tasks),
        "busy_us": {name: round(seconds * US_PER_S, 3) for name, seconds in busy.items()},
    }
    why = other_step_reason(found)
    return session.finish(document, lambda console: show_timeline(console, made, loaded, why, output))
