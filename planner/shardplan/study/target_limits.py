"""The cost of a runtime's limits: the best plan that it can express, beside the best plan on the same mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.errors import ShardplanError
from shardplan.planning.standing import OnProgress
from shardplan.study.instance import ReadRequest
from shardplan.study.solve import Solved, solve


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """`target`: the format; `step_ns`: of its plan; `free_ns`: of the best plan on its mesh without the format's
    limits."""

    target: str
    step_ns: int
    free_ns: int

    @property
    def slower(self) -> float:
        """The share of the unlimited optimum by which the plan is slower."""
        return self.step_ns / self.free_ns - 1.0 if self.free_ns else 0.0

    def record(self) -> dict[str, object]:
        """The limits as JSON-ready data."""
        return {"target": self.target, "free_step_us": self.free_ns / 1e3, "slower": round(self.slower, 6)}


def limits_of(instance: ReadRequest, solved: Solved, on_progress: OnProgress | None = None) -> TargetLimits | None:
    """The cost of a target runtime's limits on the plan's mesh; None if the search for the unlimited optimum found no
    plan or was stopped. If the mesh was chosen, other meshes are not searched: that takes several times as long as the
    plan. A plan that the runtime can express is also an unlimited plan."""
    options = replace(instance.options, target="")
    free = replace(instance, cluster=solved.cluster, options=options, is_auto=False)
    try:
        other = solve(free, on_progress).plan
    except ShardplanError:
        return None
    if other.summary.outcome == "interrupted":
        return None
    step_ns = solved.plan.summary.step_ns
    return TargetLimits(instance.options.target, step_ns, min(step_ns, other.summary.step_ns))
