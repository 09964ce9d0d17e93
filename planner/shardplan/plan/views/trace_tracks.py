"""Tracks of a trace in Chrome's format. Perfetto draws the events of a track only if none overlaps another in part."""

from __future__ import annotations

from collections.abc import Sequence

US_PER_S = 1e6
_DIGITS = 3
"""Of microseconds: a nanosecond is the smallest time of a trace."""


def interval_us(start_s: float, end_s: float) -> tuple[float, float]:
    """`ts` and `dur` of an event from its start and end in seconds. Both ends are rounded to nanoseconds, so that an
    event that starts where another one ends does not overlap it."""
    start, end = round(start_s * US_PER_S, _DIGITS), round(end_s * US_PER_S, _DIGITS)
    return start, round(end - start, _DIGITS)


def tracks_of(streams: Sequence[int], intervals: Sequence[tuple[float, float]], first_free: int) -> list[int]:
    """The track of every event: that of its stream, or the first further one of that stream in which nothing overlaps
    it. `intervals`: `ts` and `dur` of the events; `first_free`: number of the first track that is no stream."""
    lanes: dict[int, list[int]] = {}
    free_at: dict[int, float] = {}
    found = [0] * len(streams)
    for number in sorted(range(len(streams)), key=lambda number: (intervals[number], number)):
        start, duration = intervals[number]
        own = lanes.setdefault(streams[number], [streams[number]])
        track = next((one for one in own if free_at.get(one, 0.0) <= start), None)
        if track is None:
            track, first_free = first_free, first_free + 1
            own.append(track)
        found[number] = track
        free_at[track] = round(start + duration, _DIGITS)
    return found
