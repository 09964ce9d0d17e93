"""Comparison of a plan's schedule with measured steps of a program: by phase, by move, and as a trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple, cast

from shardplan.escapes import visible
from shardplan.plan.file import write_other
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import chrome_trace, step_schedule, stored_names
from shardplan.plan.views.tracks import drawn
from shardplan.units import NS_PER_S, counted

PhaseName = Literal["forward", "backward", "update"]
_PHASES: Final[Mapping[str, PhaseName]] = {
    "first forward": "forward",
    "forward": "forward",
    "backward": "backward",
    "last backward": "backward",
    "update": "update",
}
_SHOWN: Final = 20
_WIDEST: Final = 72


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a step did from `start` to `end`, seconds since the step began: a `phase`, or communication of the
    moves `numbers` of the plan; `issued`: when it was issued; `waits`: the program waited and nothing was sent."""

    start: float
    end: float
    phase: str = ""
    numbers: tuple[int, ...] = ()
    issued: float = 0.0
    waits: bool = False


Step = Sequence[Span]


class _Row(NamedTuple):
    label: str
    kind: str
    planned_s: float
    measured_s: float
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of all passes of one kind in a step."""

    name: PhaseName
    planned_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class MoveTimes:
    """Seconds per step of moves that are sent together, at index `numbers` in `Plan.moves`. `kind`: that of the moves;
    `waited_s`: how long the program waited for what it had issued ahead."""

    numbers: tuple[int, ...]
    label: str
    kind: str
    planned_s: float
    measured_s: float
    waited_s: float


@dataclass(frozen=True)
class TimelineComparison:
    """The schedule of `plan` beside measured `steps` of one process; every measured number is a median over these."""

    plan: Plan
    steps: tuple[Step, ...]

    @property
    def phases(self) -> tuple[PhaseTimes, ...]:
        """Forward, backward and update, as far as the step has them."""
        planned: dict[PhaseName, float] = {}
        for phase, ran in step_schedule(self.plan).phases_ran():
            name = _PHASES[phase.name]
            planned[name] = planned.get(name, 0.0) + phase.count * ran.seconds
        return tuple(PhaseTimes(name, planned[name], self._median(name)) for name in planned)

    @property
    def planned_s(self) -> float:
        """The predicted step, seconds."""
        return self.plan.summary.step_ns / NS_PER_S

    @property
    def measured_s(self) -> float:
        """The measured step, seconds."""
        return median(max((span.end for span in step), default=0.0) for step in self.steps)

    @property
    def moves(self) -> tuple[MoveTimes, ...]:
        """The planned and measured times of all communication, the longest first."""
        keys = dict.fromkeys(span.numbers for step in self.steps for span in step if span.numbers)
        return tuple(sorted(map(self._move, keys), key=lambda one: (-one.measured_s, one.numbers)))

    def _move(self, numbers: tuple[int, ...]) -> MoveTimes:
        moves = [self.plan.moves[number] for number in numbers]
        first = moves[0]
        kinds = dict.fromkeys(step.collective.kind.replace("_", "-") for step in first.steps)
        label = f"{_tensors(self.plan, numbers)}: {', '.join(kinds)}, {first.phase}"
        planned = sum(move.time_ns * move.count for move in moves) / NS_PER_S
        sent, waited = (
            median(
                _seconds(span for span in step if span.numbers == numbers and span.waits == waits)
                for step in self.steps
            )
            for waits in (False, True)
        )
        return MoveTimes(numbers, label, first.kind, planned, sent, waited)

    def _median(self, name: str) -> float:
        return median(_seconds(span for span in step if span.phase == name) for step in self.steps)

    def __str__(self) -> str:
        """A table in milliseconds: phases, then the longest moves, planned beside measured."""
        moves = self.moves
        rows = [_Row("step", "", self.planned_s, self.measured_s)]
        rows += [_Row(phase.name, "", phase.planned_s, phase.measured_s) for phase in self.phases]
        planned, measured = sum(one.planned_s for one in moves), sum(one.measured_s for one in moves)
        rows.append(_Row("all moves", "", planned, measured, sum(one.waited_s for one in moves)))
        rows += [_Row(one.label, one.kind, one.planned_s, one.measured_s, one.waited_s) for one in moves[:_SHOWN]]
        width = min(_WIDEST, max(len(row.label) for row in rows))
        lines = [f"{'':{width}} {'':10} {'planned ms':>11} {'measured ms':>12} {'waited ms':>10}"]
        for row in rows:
            label = row.label if len(row.label) <= width else f"{row.label[: width - 1]}…"
            waited = "" if row.waited_s is None else f"{1e3 * row.waited_s:10.3f}"
            times = f"{1e3 * row.planned_s:11.3f} {1e3 * row.measured_s:12.3f} {waited}"
            lines.append(visible(f"{label:{width}} {row.kind:10} {times}".rstrip()))
        if len(moves) > _SHOWN:
            lines.append(f"({counted(len(moves) - _SHOWN, 'more move')})")
        return "\n".join(lines)

    def write_trace(self, path: str | Path) -> None:
        """Writes a trace as `shardplan timeline -o` does, with the last measured step as a second process. Raises
        `ShardplanError` if the file cannot be written."""
        trace = chrome_trace(self.plan)
        events = [*cast("list[object]", trace["traceEvents"]), *_events(self.plan, self.steps[-1])]
        write_other(json.dumps({**trace, "traceEvents": events}) + "\n", path, "trace")


def _tensors(plan: Plan, numbers: Sequence[int]) -> str:
    """The tensors of moves that are sent together."""
    more = len(numbers) - 1
    first = plan.moves[numbers[0]].tensor
    return stored_names(plan).get(first, first) + (f" and {more} more" if more else "")


def _seconds(spans: Iterable[Span]) -> float:
    return sum(span.end - span.start for span in spans)


def _events(plan: Plan, step: Step) -> list[dict[str, Any]]:
    """A step as trace events of process 1: its phases, its communication, and its waiting."""
    streams = ("phases", "sent", "waited for")
    kinds = [0 if not span.numbers else 2 if span.waits else 1 for span in step]
    drawing = drawn(streams, [(kind, span.start, span.end) for kind, span in zip(kinds, step, strict=True)])
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "measured"}}]
    events += drawing.threads(1)
    for span, kind, event in zip(step, kinds, drawing.events, strict=True):
        about = {"moves": list(span.numbers), "issued_us": round(1e6 * span.issued, 3)} if kind == 1 else {}
        events.append(
            {
                "ph": "X", "name": span.phase or _tensors(plan, span.numbers), "cat": streams[kind], "pid": 1,
                "tid": event.track, **event.times, "args": about,
            }
        )  # fmt: skip
    return events
