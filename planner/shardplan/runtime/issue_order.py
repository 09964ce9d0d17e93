"""Where prefetched weights are issued: points between operators, from the plan's schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shardplan.plan.step.phases import Phase
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import step_schedule


class IssuePoint(NamedTuple):
    """The point at which the moves `numbers` of a plan, one or a bucket, are issued: before operator `at` runs (-1:
    before all); in backward, before its backward runs."""

    at: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class IssueOrder:
    """All prefetches in their order of issue. `first`: in the forward pass that also gathers updated weights;
    `forward`: in other forward passes; `backward`: re-gathered in backward."""

    first: tuple[IssuePoint, ...] = ()
    forward: tuple[IssuePoint, ...] = ()
    backward: tuple[IssuePoint, ...] = ()


def issue_order(plan: Plan) -> IssueOrder:
    """The order of a plan without stages; empty if the plan gathers weights right before they are read."""
    if plan.summary.prefetch_distance < 0:
        return IssueOrder()
    phases = {phase.name: phase for phase in step_schedule(plan).phases}
    forward = _points(phases.get("forward"))
    first = _points(phases.get("first forward")) if "first forward" in phases else forward
    return IssueOrder(first, forward, _points(phases.get("last backward")))


def _points(phase: Phase | None) -> tuple[IssuePoint, ...]:
    if phase is None:
        return ()
    rows = zip(phase.program, phase.moves, phase.operators, strict=True)
    found: dict[tuple[int, ...], IssuePoint] = {}
    for item, numbers, at in rows:
        if item.action == "issue" and not item.deferred:
            found.setdefault(numbers, IssuePoint(at, numbers))
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Mark:
    """What is issued at an operator's result: in forward the points up to `up_to`; in backward, when the gradient of
    the result is available, those down to `down_to`."""

    up_to: int
    down_to: int


class Marks:
    """The marks for a program whose operators may differ from the plan's."""

    def __init__(self, order: IssueOrder) -> None:
        self._forward = sorted({point.at for point in (*order.first, *order.forward)})
        self._backward = sorted({point.at for point in order.backward})
        self._seen = -1

    def begin(self) -> None:
        """Resets the marks at the start of the program."""
        self._seen = -1

    def at(self, operator: int) -> Mark | None:
        """The mark at the result of `operator`, if any."""
        seen = self._seen
        if operator <= seen:
            return None
        self._seen = operator
        after = _any_in(self._forward, seen + 2, operator + 1)
        return Mark(operator + 1, seen + 1) if after or _any_in(self._backward, seen + 1, operator) else None


def _any_in(numbers: Iterable[int], low: int, high: int) -> bool:
    return any(low <= number <= high for number in numbers)
