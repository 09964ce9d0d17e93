"""What the limits of a runtime cost: the best plan that it can say, beside the best plan there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan
from shardplan.planning.standing import OnProgress
from shardplan.study.instance import Instance
from shardplan.study.solve import solve


@dataclass(frozen=True, slots=True)
class Limits:
    """`target`: the format; `step_ns`: of its plan; `free_ns`: of the best plan there is."""

    target: str
    step_ns: int
    free_ns: int

    @property
    def slower(self) -> float:
        """By which share of the free optimum the plan is slower."""
        return self.step_ns / self.free_ns - 1.0 if self.free_ns else 0.0

    def record(self) -> dict[str, object]:
        """As a document says it."""
        return {"target": self.target, "free_step_us": self.free_ns / 1e3, "slower": round(self.slower, 6)}


def limits_of(instance: Instance, plan: Plan, on_progress: OnProgress | None = None) -> Limits | None:
    """What the limits of the runtime that `plan` is for cost; None where the free optimum was not found. A plan that
    the runtime says is one that is free."""
    free = replace(instance, options=replace(instance.options, target=""))
    try:
        other = solve(free, on_progress).plan
    except ShardplanError:
        return None
    step_ns = plan.summary.step_ns
    return Limits(instance.options.target, step_ns, min(step_ns, other.summary.step_ns))
