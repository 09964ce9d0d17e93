"""Stages of a pipeline plan: the plan of one stage, for adapters that apply plans without stages."""

from __future__ import annotations

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan


def one_mesh(plan: Plan) -> Plan:
    """`plan`, which must have no stages. Raises `ShardplanError` (`pipeline-plan`; `bad-argument` for what is no plan,
    such as the path of one)."""
    if not isinstance(plan, Plan):
        summary = f"a plan is needed, and {plan!r:.80} is not one"
        raise ShardplanError(error("bad-argument", summary, hint="shardplan.load(path) reads a plan from its file"))
    if plan.pipeline is None:
        return plan
    count = len(plan.pipeline.stages)
    summary = f"the plan is a pipeline of {count} stages, of which each has a mesh and a plan of its own"
    hint = f"take one of them: plan.pipeline.stages[0].plan, or --stage 0 of split and export (to {count - 1})"
    raise ShardplanError(error("pipeline-plan", summary, hint=hint))


def stage_plan(plan: Plan, number: int | None) -> Plan:
    """The plan of stage `number`, or a plan without stages as it is, for which `number` is None.

    Raises `ShardplanError`: `pipeline-plan`, `no-stages`, `unknown-stage`.
    """
    if number is None:
        return one_mesh(plan)
    if plan.pipeline is None:
        raise ShardplanError(error("no-stages", "the plan has no stages", hint="leave --stage out"))
    count = len(plan.pipeline.stages)
    if not 0 <= number < count:
        raise ShardplanError(
            error("unknown-stage", f"there is no stage {number}: the plan has stages 0 to {count - 1}")
        )
    return plan.pipeline.stages[number].plan


def weights_of_others(plan: Plan, number: int | None) -> frozenset[str]:
    """Checkpoint names and aliases of the weights that stage `number` of a pipeline does not hold."""
    if number is None or plan.pipeline is None:
        return frozenset()
    held = [
        {
            name
            for tensor in stage.plan.tensors
            if tensor.role == "parameter"
            for name in (tensor.checkpoint, *tensor.aliases)
        }
        for stage in plan.pipeline.stages
    ]
    return frozenset(set().union(*held) - held[number])
