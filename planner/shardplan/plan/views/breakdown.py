"""The parts of a plan's step: compute, exposed communication (also move by move) and, in a pipeline, the bubble."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.plan.types import Move, Pipeline, Plan


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of a step: `compute_ns` + `exposed_ns` + `bubble_ns` is the step, `overlapped_ns` is communication
    beside compute. `of`: the plans with these times: the plan itself or the model chunks of the slowest stage."""

    compute_ns: int
    exposed_ns: int
    bubble_ns: int
    overlapped_ns: int
    of: tuple[Plan, ...]


def breakdown(plan: Plan) -> Breakdown:
    """Of a pipeline as its slowest stage spends the step: the time that it does not work itself is the bubble."""
    if plan.pipeline is None:
        summary = plan.summary
        return Breakdown(summary.compute_ns, summary.communication_ns, 0, summary.hidden_ns, (plan,))
    chunks = _slowest(plan.pipeline)
    compute, exposed, overlapped = (
        sum(getattr(chunk.summary, name) for chunk in chunks)
        for name in ("compute_ns", "communication_ns", "hidden_ns")
    )
    return Breakdown(compute, exposed, max(0, plan.summary.step_ns - compute - exposed), overlapped, chunks)


def _slowest(pipeline: Pipeline) -> tuple[Plan, ...]:
    """The plans of the devices that work longest; several plans if the schedule gives a device several model
    chunks."""
    chunks: dict[int, list[Plan]] = {}
    for stage in pipeline.stages:
        chunks.setdefault(stage.first_device, []).append(stage.plan)
    return tuple(max(chunks.values(), key=lambda own: sum(chunk.summary.step_ns for chunk in own)))


class Exposure:
    """How much each move lengthens a step: the time in which it runs alone, and its slowdown of the compute that it
    overlaps. The sum over all moves and operators is `summary.communication_ns`."""

    def __init__(self, plan: Plan) -> None:
        beside_ns = sum(move.time_ns * move.hidden for move in plan.moves)
        self._overlapped = min(1.0, plan.summary.hidden_ns / beside_ns) if beside_ns else 1.0

    def exposed_ns(self, move: Move) -> float:
        """Nanoseconds per step; the rest of the move's time is overlapped."""
        return move.time_ns * (1.0 - move.hidden * self._overlapped)
