"""Tracks of a trace: viewers draw events one beside the other, and none may begin before the one before it has ended.

A stream has as many tracks as things that it does at a moment: collectives pause and share a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from shardplan.units import NS_PER_S

_ROUNDING_S: Final = 1e-10
"""Sums of the same times in another order differ by less."""


class Drawn(NamedTuple):
    """An event of a trace: its track, and whole nanoseconds from the start of the trace."""

    track: int
    start_ns: int
    end_ns: int

    @property
    def times(self) -> dict[str, float]:
        """Microseconds, as trace events have them."""
        return {"ts": self.start_ns / 1000, "dur": (self.end_ns - self.start_ns) / 1000}


class Drawing(NamedTuple):
    """The events, in the order in which they were given, and the track of each stream's first and further ones."""

    events: tuple[Drawn, ...]
    names: tuple[str, ...]
    order: tuple[int, ...]

    def threads(self, process: int) -> Iterator[dict[str, object]]:
        """The events that name the tracks, and say in which order they are drawn: those of a stream together."""
        for track, name in enumerate(self.names):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}
        for track, place in enumerate(self.order):
            about = {"sort_index": place}
            yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": track, "args": about}


def drawn(streams: Sequence[str], spans: Sequence[tuple[int, float, float]]) -> Drawing:
    """`spans`: the stream, and the seconds at which something starts and ends. The first track of each stream has its
    number, and further ones (`communication: net 2`) come behind all of these. No two events of a track overlap."""
    lanes: list[list[tuple[float, int]]] = [[(0.0, 0)] for _ in streams]
    placed: dict[int, tuple[int, int, int, int]] = {}
    for number in sorted(range(len(spans)), key=lambda one: (*spans[one][1:], one)):
        stream, start, end = spans[number]
        own = lanes[stream]
        free = (lane for lane, (until, _) in enumerate(own) if until <= start + _ROUNDING_S)
        lane = next(free, len(own))
        if lane == len(own):
            own.append((0.0, 0))
        start_ns = max(round(start * NS_PER_S), own[lane][1])
        end_ns = max(round(end * NS_PER_S), start_ns)
        own[lane] = end, end_ns
        placed[number] = stream, lane, start_ns, end_ns
    further = [(stream, lane) for stream, own in enumerate(lanes) for lane in range(1, len(own))]
    lines = [*((stream, 0) for stream in range(len(streams))), *further]
    track = {line: number for number, line in enumerate(lines)}
    place = {line: number for number, line in enumerate(sorted(lines))}
    events = (placed[number] for number in range(len(spans)))
    return Drawing(
        tuple(Drawn(track[stream, lane], start_ns, end_ns) for stream, lane, start_ns, end_ns in events),
        tuple(streams[stream] + (f" {lane + 1}" if lane else "") for stream, lane in lines),
        tuple(place[line] for line in lines),
    )
