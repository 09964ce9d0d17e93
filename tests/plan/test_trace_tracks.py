"""Traces for Perfetto: events of a track follow each other, and carry the bytes of their own collective."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardplan
from shardplan.plan.views.timeline import chrome_trace
from shardplan.plan.views.trace_tracks import interval_us, tracks_of

PLANS = sorted((Path(__file__).parents[2] / "plans").glob("*.plan.json"))
TIMES = st.tuples(st.integers(0, 3), st.floats(0, 1e-3), st.floats(0, 1e-4))


@given(st.lists(TIMES, max_size=30))
def test_no_event_overlaps_another_one_of_its_track(events):
    streams = [stream for stream, _, _ in events]
    intervals = [interval_us(start, start + seconds) for _, start, seconds in events]
    tracks = tracks_of(streams, intervals, 4)
    busy = defaultdict(list)
    for stream, track, (start, duration) in zip(streams, tracks, intervals, strict=True):
        assert track == stream or track >= 4
        busy[track].append((start, start + duration, stream))
    for spans in busy.values():
        spans.sort()
        assert len({stream for *_, stream in spans}) == 1
        assert all(end <= start + 1e-6 for (_, end, _), (start, _, _) in pairwise(spans))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_events_of_committed_plans_follow_each_other(path):
    busy = defaultdict(list)
    for event in chrome_trace(shardplan.load(path))["traceEvents"]:
        if event["ph"] == "X":
            busy[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in busy.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(spans))


def test_a_collective_carries_its_own_bytes():
    plan = shardplan.load(PLANS[0])
    moves = [move for move in plan.moves if len({step.payload_bytes for step in move.steps if step.time_ns}) > 1]
    assert moves, "no move has collectives of different sizes"
    names = {tensor.name: tensor.checkpoint or tensor.name for tensor in plan.tensors}
    events = [event for event in chrome_trace(plan)["traceEvents"] if event["ph"] == "X" and "bytes" in event["args"]]
    alone = [move for move in moves if move.bucket is None]
    for move in alone:
        told = {event["args"]["bytes"] for event in events if event["name"].endswith(f" {names[move.tensor]}")}
        assert {step.payload_bytes for step in move.steps if step.time_ns} <= told
    sent = sum(step.payload_bytes for move in plan.moves for step in move.steps if step.time_ns)
    once = {(event["name"], event["ts"]): event["args"]["bytes"] for event in events}
    assert sum(once.values()) == sent
