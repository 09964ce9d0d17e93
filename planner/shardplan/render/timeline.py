"""Output of `timeline`: the scheduled step as a Gantt chart of text, a line for each stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from shardplan.plan.format.digest import SCHEDULED, edited, minor_of
from shardplan.plan.format.fields import MAJOR
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import streams_of
from shardplan.render.console import PIPE_WIDTH, emit, table
from shardplan.render.solve import time_line
from shardplan.schedule.tasks import COMPUTE, Timeline
from shardplan.units import NS_PER_S, duration

SAME_STEP = 1e-3
"""Relative difference up to which the schedule takes as long as the plan says: times in a file are rounded."""
_NUMBERS, _LEAST, _MOST = 22, 12, 100
"""Columns of the numbers with the gaps around them, and of the chart."""
_SHADES = ((0.75, "█"), (0.25, "▒"), (0.0, "░"))
"""What a cell shows from this share of its time on."""


def show_timeline(console: Console, made: Timeline, plan: Plan, why: str, trace: str | None) -> None:
    """What each stream does, when it does it, and how long the step takes. `why`: the `other_step_reason`."""
    width = 80 if console.width == PIPE_WIDTH else console.width
    names = [name.removeprefix("communication: ") for name in streams_of(plan)]
    longest = max(map(len, names), default=0)
    cells = max(_LEAST, min(_MOST, width - longest - _NUMBERS))
    rows = table("stream", ">busy", ">of step", f"0{duration(round(made.seconds * NS_PER_S)):>{cells - 1}}")
    for stream, name in enumerate(names):
        busy = made.busy(stream)
        share = busy / made.seconds if made.seconds else 0.0
        chart = Text(gantt(made, stream, cells), style="cyan" if stream else "")
        rows.add_row(name, duration(busy * NS_PER_S), f"{100 * share:.0f} %", chart)
    legend = ", ".join(f"{shade} {_percent_from(least)}" for least, shade in _SHADES)
    emit(console, rows, f"of its time a stream is busy: {legend}", *_slowed(made, plan), "")
    step_ns = round(made.seconds * NS_PER_S)
    if abs(step_ns - plan.summary.step_ns) <= SAME_STEP * step_ns:
        emit(console, time_line(plan))
    else:
        emit(console, f"step {duration(step_ns)}{_other_step(plan, why)}")
    if trace:
        emit(console, f"wrote {trace} ({len(made.tasks):,} tasks); open it in ui.perfetto.dev")


def _slowed(made: Timeline, plan: Plan) -> Iterator[str]:
    """Why compute is busy for longer than the plan says that it takes, where that is so."""
    alone_s = plan.summary.compute_ns / NS_PER_S
    if plan.pipeline is None and made.busy(COMPUTE) > alone_s * (1.0 + SAME_STEP):
        yield f"compute takes {duration(plan.summary.compute_ns)} alone, and longer beside communication"


def gantt(made: Timeline, stream: int, cells: int) -> str:
    """`cells` characters, each darker the more of its time the stream is busy."""
    if not made.seconds:
        return " " * cells
    filled = [0.0] * cells
    for start, end in made.spans(stream):
        _fill(filled, start / made.seconds * cells, end / made.seconds * cells)
    for part in made.unlisted:
        share = made.busy_unlisted(stream, part)
        _fill(filled, part.start / made.seconds * cells, part.end / made.seconds * cells, share)
    return "".join(_shade(share) for share in filled)


def _percent_from(least: float) -> str:
    return f"more than {100 * least:.0f} %" if least else "less"


def _fill(filled: list[float], start: float, end: float, share: float = 1.0) -> None:
    """Add a share of the part of every cell that lies between two places."""
    for cell in range(int(start), min(len(filled), int(end) + 1)):
        filled[cell] += share * max(0.0, min(end, cell + 1) - max(start, cell))


def _shade(share: float) -> str:
    return next((shade for least, shade in _SHADES if share > least), " ")


def other_step_reason(document: Mapping[str, Any]) -> str:
    """Why the schedule of a plan without stages may take another time than its document says."""
    if minor_of(document) < SCHEDULED:
        return f"it is older than format {MAJOR}.{SCHEDULED}, whose steps are scheduled"
    if any(edited(document)):
        return "it was edited after it was written"
    return "another version of shardplan wrote it, or its digest was made anew after an edit"


def _other_step(plan: Plan, why: str) -> str:
    """What the plan says of a step that the schedule does not take."""
    says = duration(plan.summary.step_ns)
    if plan.pipeline is not None:
        return f" if every microbatch waits for its sends; the plan says {says}, by a formula in which sends overlap"
    return f"; the file says {says}: {why}"


def busy_seconds(made: Timeline, streams: Sequence[str]) -> dict[str, float]:
    """Seconds in which each stream works, by name."""
    return {name: made.busy(stream) for stream, name in enumerate(streams)}
