"""The timeline of a plan: its scheduled step, rebuilt from the plan file alone, and as a trace for Perfetto.

The phases of a step (`shardplan.plan.step.phases`) are simulated and put one after the other. Of a phase that a
step repeats many times, the first few repetitions are listed, and the rest is a summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from shardplan.cost.occupancy import links_of
from shardplan.errors import ShardplanError
from shardplan.plan.recorded_request import cluster_of
from shardplan.plan.step.moves import StepParts, block_starts
from shardplan.plan.step.phases import Phase, Policy
from shardplan.plan.step.schedule import StepSchedule, schedule_step, serial_schedule
from shardplan.plan.types import Move, Plan
from shardplan.plan.views.pipeline_timeline import pipeline_streams, pipeline_tasks
from shardplan.plan.views.span_details import SpanDetails
from shardplan.plan.views.tracks import Drawn, drawn
from shardplan.schedule.links import WHOLE, LinkLevels
from shardplan.schedule.streams import Item, Span
from shardplan.schedule.tasks import COMPUTE, Task, Timeline, Unlisted
from shardplan.units import NS_PER_S

MOST_SHOWN: Final = 2
"""Of the microbatches of one phase."""
_DEFAULT_KAPPA = 1.1
_SAME = 1e-6
"""Relative: steps this close are equal."""


def timeline(plan: Plan) -> Timeline:
    """The scheduled step of a plan."""
    if plan.pipeline is not None:
        return pipeline_tasks(plan)[0]
    return scheduled_tasks(plan)[0]


def step_schedule(plan: Plan) -> StepSchedule:
    """The schedule of a plan without stages, from what its file says."""
    parts = parts_of(plan)
    if "cost_model" in plan.model:
        return serial_schedule(parts)
    distance = plan.summary.prefetch_distance
    policy = Policy(None if distance < 0 else distance, plan.summary.reduces_beside, plan.summary.prefetches_in_time)
    return schedule_step(parts, policy, kappa_of(plan.cluster))


def unscheduled(plan: Plan) -> Iterator[str]:
    """A sentence that the step of a plan, or of one of its stages, differs from the schedule of its moves and
    operators; empty if it does not, and for plans of formats up to 1.3, which had no schedule."""
    for stage in plan.pipeline.stages if plan.pipeline else ():
        yield from (f"{stage.name}: {text}" for text in unscheduled(stage.plan))
    if plan.pipeline is None:
        step_ns, scheduled_ns = plan.summary.step_ns, round(step_schedule(plan).seconds * NS_PER_S)
        if abs(step_ns - scheduled_ns) > _SAME * step_ns + 1:
            yield f"summary.step_us is {step_ns / 1000}, and the schedule of its moves takes {scheduled_ns / 1000}"


def parts_of(plan: Plan) -> StepParts:
    """The parts of the step of a plan without stages."""
    optimizer_ns = plan.summary.compute_ns - sum(operator.compute_ns for operator in plan.operators)
    return StepParts(
        plan.operators,
        tuple(map(_legacy_kind, plan.moves)),
        plan.axis_links,
        plan.model.get("mode") == "training",
        cast("int", plan.model.get("microbatches", 1)),
        optimizer_ns,
        block_starts(len(plan.operators), [copy for _, copies in plan.blocks for copy in copies]),
        _levels_of(plan),
        frozenset(tensor.name for tensor in plan.tensors if tensor.role == "input"),
        stored_names(plan),
    )


def stored_names(plan: Plan) -> dict[str, str]:
    """Checkpoint names of a plan's weights by their names in the graph."""
    return {tensor.name: tensor.checkpoint for tensor in plan.tensors if tensor.checkpoint}


def _levels_of(plan: Plan) -> LinkLevels:
    """The shares of links that collectives take; whole links in a plan that does not record its profile."""
    try:
        return links_of(cluster_of(plan, "the plan"))
    except ShardplanError:
        return WHOLE


def _legacy_kind(move: Move) -> Move:
    """The kind of a move in plans older than format 1.4: a move that was taken to overlap with compute is not
    blocking."""
    if move.kind != "blocking" or not move.hidden:
        return move
    return replace(move, kind="deferred" if move.phase == "backward" and not move.regather else "prefetched")


def streams_of(plan: Plan) -> tuple[str, ...]:
    """Names of the streams of `timeline`."""
    if plan.pipeline is not None:
        return pipeline_streams(plan.pipeline)
    return ("compute", *(f"communication: {link}" for link in _links(plan)))


def _links(plan: Plan) -> tuple[str, ...]:
    """The link levels of the mesh's axes, the innermost first."""
    return tuple(dict.fromkeys(reversed(plan.axis_links)))


def kappa_of(cluster: Mapping[str, object]) -> float:
    """The slowdown of compute beside communication, from the profile inside a plan."""
    profile = cluster.get("profile")
    overlap = profile.get("overlap") if isinstance(profile, Mapping) else None
    kappa = overlap.get("kappa", _DEFAULT_KAPPA) if isinstance(overlap, Mapping) else _DEFAULT_KAPPA
    return float(kappa)


def scheduled_tasks(plan: Plan, scheduled: StepSchedule | None = None) -> tuple[Timeline, list[SpanDetails]]:
    """The scheduled step of a plan without stages: tasks with their times, and the details of each for a trace.
    `scheduled`: its `step_schedule`, if that is at hand."""
    scheduled = scheduled or step_schedule(plan)
    stream = {link: number for number, link in enumerate(_links(plan), 1)}
    tasks: list[Task] = []
    starts: list[float] = []
    ends: list[float] = []
    details: list[SpanDetails] = []
    unlisted: list[Unlisted] = []
    now = 0.0
    for phase, ran in scheduled.phases_ran():
        first = 0
        for repeat in range(min(phase.count, MOST_SHOWN)):
            first = len(tasks)
            for span in sorted(ran.spans, key=lambda one: (one.start, one.item)):
                item = phase.program[span.item]
                about = _about(plan, phase, repeat, span)
                for number in _streams(item, stream):
                    tasks.append(Task(item.name, number, item.seconds))
                    starts.append(now + repeat * ran.seconds + span.start)
                    ends.append(now + repeat * ran.seconds + span.end)
                    details.append(about)
        shown, now = now + MOST_SHOWN * ran.seconds, now + phase.count * ran.seconds
        if phase.count > MOST_SHOWN:
            unlisted.append(Unlisted(first, len(tasks), phase.count - MOST_SHOWN, shown, now))
    return Timeline(tuple(tasks), tuple(starts), tuple(ends), scheduled.seconds, tuple(unlisted)), details


def _streams(item: Item, stream: Mapping[str, int]) -> Iterator[int]:
    if item.action == "compute":
        yield COMPUTE
    else:
        yield from sorted(stream[level] for level in item.levels)


def _about(plan: Plan, phase: Phase, repeat: int, span: Span) -> SpanDetails:
    moves, step = [plan.moves[number] for number in phase.moves[span.item]], phase.steps[span.item]
    payload = sum(move.steps[step].payload_bytes for move in moves)
    first = moves[0] if moves else None
    after, before = (first.issue_after, first.wait_before) if first else ("", "")
    return SpanDetails(phase.name, repeat, payload, span.exposed, after, before)


def chrome_trace(plan: Plan) -> dict[str, object]:
    """The timeline as Chrome's trace event format, which Perfetto reads; times in microseconds.

    What a stream does at a time has tracks of its own, so that no two events of one overlap.
    Every collective carries its bytes, its phase and its exposed time; arrows lead from the operator after which it is
    issued to it, and from it to the operator that waits for it. Of a pipeline, what is sent between stages carries its
    bytes, and arrows lead from the stage that sends to it and from it to the stage that receives.
    """
    made, about = scheduled_tasks(plan) if plan.pipeline is None else pipeline_tasks(plan)
    streams = streams_of(plan)
    tasks = zip(made.tasks, made.starts, made.ends, strict=True)
    drawing = drawn(streams, [(task.stream, start, end) for task, start, end in tasks])
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": str(plan.model.get("name", ""))}},
        *drawing.threads(0),
    ]
    for task, event, one in zip(made.tasks, drawing.events, about, strict=True):
        events.append(
            {
                "ph": "X", "name": task.name, "cat": streams[task.stream], "pid": 0, "tid": event.track, **event.times,
                "args": _args(one),
            }
        )  # fmt: skip
    arrows = _arrows(made, about) if plan.pipeline is None else _dependencies(made)
    for number, (tail, head) in arrows:
        events += _arrow(number, drawing.events[tail], drawing.events[head])
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _args(one: SpanDetails) -> dict[str, object]:
    said: dict[str, object] = {"phase": one.phase}
    if one.bytes:
        said["bytes"] = one.bytes
    if one.bytes and one.exposed_s is not None:
        said["exposed_us"] = round(one.exposed_s * 1e6, 3)
    if one.issue_after:
        said["issued after"] = one.issue_after
    if one.wait_before:
        said["awaited before"] = one.wait_before
    return said


_Arrow = tuple[int, tuple[int, int]]
"""Its number, and those of the tasks from and to which it leads."""


def _arrows(made: Timeline, about: Sequence[SpanDetails]) -> Iterator[_Arrow]:
    """Arrows between compute and what runs beside it, in one repetition of a phase."""
    computed: dict[tuple[str, int, str], int] = {}
    for number, (task, one) in enumerate(zip(made.tasks, about, strict=True)):
        if task.stream == COMPUTE:
            computed.setdefault((one.phase, one.repeat, task.name.removeprefix("backward: ")), number)
    for number, (task, one) in enumerate(zip(made.tasks, about, strict=True)):
        if task.stream == COMPUTE:
            continue
        before = computed.get((one.phase, one.repeat, one.issue_after))
        after = computed.get((one.phase, one.repeat, one.wait_before))
        if before is not None:
            yield 2 * number, (before, number)
        if after is not None:
            yield 2 * number + 1, (number, after)


def _dependencies(made: Timeline) -> Iterator[_Arrow]:
    """Arrows between tasks of different streams of which one waits for the other."""
    pairs = ((before, number) for number, task in enumerate(made.tasks) for before in task.after)
    between = ((tail, head) for tail, head in pairs if made.tasks[tail].stream != made.tasks[head].stream)
    yield from enumerate(between)


def _arrow(identity: int, tail: Drawn, head: Drawn) -> Iterator[dict[str, object]]:
    """The flow events of an arrow."""
    common: dict[str, object] = {"name": "waits", "cat": "schedule", "id": identity, "pid": 0}
    yield {**common, "ph": "s", "tid": tail.track, "ts": tail.end_ns / 1000}
    yield {**common, "ph": "f", "bp": "e", "tid": head.track, "ts": max(tail.end_ns, head.start_ns) / 1000}
