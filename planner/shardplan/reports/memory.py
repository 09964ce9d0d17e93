"""Memory of one device over the step, from a plan file alone.

Parameters, gradients and optimizer state are held all the time. A saved activation is held from its making to the
backward of its maker, any other value until its last read; gradients of activations from the backward of the last
reader to that of the maker. What a file does not record (workspace of operators, copies gathered for one reader) is the
difference between the highest of these moments and the plan's peak, and is labelled as that.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.plan.step.schedule import StepSchedule
from shardplan.plan.types import Plan
from shardplan.plan.views.lifetimes import spans
from shardplan.reports.names import InternedNames
from shardplan.units import NS_PER_S

_MOST_HOLDERS = 12


def memory_over_time(plan: Plan, names: InternedNames, scheduled: StepSchedule) -> dict[str, object]:
    """`points`: [ns, activations, gradients of activations] in bytes, from that moment on; `state`: parameters, their
    gradients and optimizer state; `peak`: of these moments; `holders`: the largest values held at it."""
    count = len(plan.operators)
    held, passing = [0] * (2 * count + 1), [0] * (2 * count + 1)
    held_for = list(spans(plan))
    for start, end, tensor, gradient in held_for:
        row = passing if gradient else held
        row[start] += tensor.bytes_per_device
        row[end] -= tensor.bytes_per_device
    for row in (held, passing):
        for moment in range(1, len(row)):
            row[moment] += row[moment - 1]
    memory = plan.summary.memory
    state = memory.parameters + memory.gradients + memory.optimizer
    points = [[at, held[moment], passing[moment]] for at, moment in _moments(plan, scheduled)]
    peak = max(range(2 * count + 1), key=lambda moment: held[moment] + passing[moment], default=0)
    holders = sorted(
        (
            (tensor.bytes_per_device, tensor.name, gradient)
            for start, end, tensor, gradient in held_for
            if start <= peak < end
        ),
        key=lambda one: (-one[0], one[1]),
    )[:_MOST_HOLDERS]
    top = state + held[peak] + passing[peak]
    return {
        "state": state,
        "points": points,
        "peak": top,
        "rest": max(0, memory.total - top),
        "limit": plan.summary.memory_limit_bytes,
        "holders": [[names(name), size, int(gradient)] for size, name, gradient in holders],
    }


def _moments(plan: Plan, scheduled: StepSchedule) -> Iterator[tuple[int, int]]:
    """(ns at which a moment begins, the moment), in the first of each phase's repetitions."""
    count = len(plan.operators)
    now = 0.0
    for phase, ran in scheduled.phases_ran():
        for span in sorted(ran.spans, key=lambda one: (one.start, one.item)):
            number = phase.operators[span.item]
            if phase.program[span.item].action == "compute" and 0 <= number < count:
                moment = 2 * count - 1 - number if "backward" in phase.name else number
                yield round((now + span.start) * NS_PER_S), moment
        now += phase.count * ran.seconds
