"""The schedule in a report: spans by stream, and which of them the step waits for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from shardplan.escapes import one_line
from shardplan.plan.step.schedule import StepSchedule
from shardplan.plan.types import Plan
from shardplan.plan.views.pipeline_timeline import device_groups, pipeline_tasks
from shardplan.plan.views.timeline import scheduled_tasks, streams_of
from shardplan.reports.names import InternedNames
from shardplan.schedule.tasks import Timeline
from shardplan.units import NS_PER_S

_SAME_S = 1e-12
"""Seconds up to which two moments are one."""


def schedule_record(plan: Plan, names: InternedNames, scheduled: StepSchedule) -> dict[str, object]:
    """Of the `step_schedule` of a plan: `streams`, and as columns of `tasks`: name, stream, start, duration (ns),
    phase, bytes, exposed ns, the operators it is issued after and awaited before, and whether it is on the critical
    path. `unlisted`: [how many repetitions like the last one, from ns, to ns] of what a step has more often than is
    listed."""
    made, about = scheduled_tasks(plan, scheduled)
    critical = critical_path(made)
    tasks = [
        [
            names(task.name), task.stream, round(start * NS_PER_S), round((end - start) * NS_PER_S), names(one.phase),
            one.bytes, round((one.exposed_s or 0.0) * NS_PER_S), names(one.issue_after), names(one.wait_before),
            int(number in critical),
        ]
        for number, (task, start, end, one) in enumerate(zip(made.tasks, made.starts, made.ends, about, strict=True))
    ]  # fmt: skip
    return {
        "streams": list(map(one_line, streams_of(plan))),
        "length": round(made.seconds * NS_PER_S),
        "tasks": tasks,
        "unlisted": [[part.times, round(part.start * NS_PER_S), round(part.end * NS_PER_S)] for part in made.unlisted],
    }


def pipeline_chart(plan: Plan) -> dict[str, object]:
    """The same of a pipeline: a stream for each of `computing` stages, then for each send between two, a task for each
    microbatch."""
    assert plan.pipeline is not None
    made = pipeline_tasks(plan)[0]
    names, critical = InternedNames(), critical_path(made)
    tasks = [
        [names(task.name), task.stream, round(start * NS_PER_S), round((end - start) * NS_PER_S), 0, 0, 0, 0, 0,
         int(number in critical)]
        for number, (task, start, end) in enumerate(zip(made.tasks, made.starts, made.ends, strict=True))
    ]  # fmt: skip
    streams = list(map(one_line, streams_of(plan)))
    length = round(made.seconds * NS_PER_S)
    return {
        "streams": streams,
        "computing": device_groups(plan.pipeline),
        "length": length,
        "tasks": tasks,
        "names": ["", *names.listed()],
        "shift": 1,
    }


def critical_path(made: Timeline) -> frozenset[int]:
    """Numbers of tasks in a chain that ends with the step: before each the one that ended last when it began."""
    order = sorted(range(len(made.tasks)), key=lambda number: (made.ends[number], made.starts[number]))
    ends = [made.ends[number] for number in order]
    found: list[int] = []
    at = len(order) - 1
    while at >= 0:
        number = order[at]
        found.append(number)
        at = _before(made, order, ends, number, at)
    return frozenset(found)


def _before(made: Timeline, order: Sequence[int], ends: Sequence[float], number: int, at: int) -> int:
    """The place in `order` of what ended last when task `number` began; of several, one on the same stream."""
    last = min(bisect_right(ends, made.starts[number] + _SAME_S), at) - 1
    best = last
    while last >= 0 and ends[last] >= ends[best] - _SAME_S:
        if made.tasks[order[last]].stream == made.tasks[number].stream:
            return last
        last -= 1
    return best
