"""The cost of a given assignment (a plan's decisions, or constraints) with the prices of any cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.model.types import Model
from shardplan.plan.agreement import require_agreement
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.recorded_request import require_model
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.decided import Decided
from shardplan.planning.reduction import Allowed
from shardplan.planning.standing import OnProgress

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`plan`: the assignment with its prices; it may exceed the memory, see `fits`. `fixed`, `decisions`: how many
    operators and tensors were given, and how many there are."""

    plan: Plan
    fits: bool
    fixed: int
    decisions: int

    @property
    def over_bytes(self) -> int:
        """By how much the plan exceeds the memory limit; below zero if it fits."""
        return self.plan.summary.memory.total - self.plan.summary.memory_limit_bytes


def evaluate_plan(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    decided: Plan,
    file: str,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """The cost of the decisions of the plan `decided`, read from `file`, for `model` on `cluster`.

    Raises `ShardplanError`: `stale-plan` if they are for another model, `impossible` if one of them cannot be.
    """
    require_model(decided, model, file)
    if decided.pipeline is None:
        require_agreement(decided, model, file)
    planner = Planner(
        model, cluster, _unlimited(options), on_progress, reasons=False, every_choice=True, decided=decided
    )
    everything = len(decided.operators) + len(decided.tensors)
    return _evaluation(planner.plan(decisions_of(decided, file), options.limit_bytes_on(cluster.device)), everything)


def evaluate_constraints(
    model: Model, cluster: Cluster, options: PlanOptions, on_progress: OnProgress | None = None
) -> Evaluation:
    """The cost of the constraints among `options`; what they leave open is chosen to be the cheapest.

    Raises `ShardplanError` as `plan_model`, but not for lack of memory.
    """
    planner = Planner(model, cluster, _unlimited(options), on_progress, reasons=False)
    asked = [*planner.instance.constraints.operators, *planner.instance.constraints.tensors]
    fixed = {one.operator if hasattr(one, "operator") else one.tensor for one in asked}
    return _evaluation(planner.plan(scheduled_bytes=options.limit_bytes_on(cluster.device)), len(fixed))


def _unlimited(options: PlanOptions) -> PlanOptions:
    return replace(options, memory_limit_bytes=UNLIMITED_BYTES)


def _evaluation(plan: Plan, fixed: int) -> Evaluation:
    plan = unless_interrupted(plan)
    fits = plan.summary.memory.total <= plan.summary.memory_limit_bytes
    return Evaluation(plan, fits, fixed, len(plan.operators) + len(plan.tensors))


def decisions_of(decided: Plan, file: str) -> Callable[[CostGraph], Allowed]:
    """The restriction to the decisions of `decided` about every operator and tensor.

    Applied to a cost graph, it raises `ShardplanError` (`impossible`) with the decisions that the graph does not offer.
    """

    def restriction(built: CostGraph) -> Allowed:
        allowed = Decided.of_plan(decided).masks(built)
        if faults := [_fault(node, file) for node, mask in allowed.items() if not mask.any()]:
            raise ShardplanError(*faults[:_SHOWN])
        return allowed

    return restriction


def _fault(node: Node, file: str) -> Diagnostic:
    what = "split" if node[0] == "operator" else "kept"
    summary = f"'{node[1]}' cannot be {what} as the plan says"
    return error("impossible", summary, file=file, hint="another version of shardplan made it: solve again")
