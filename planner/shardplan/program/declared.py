"""Comparison of a plan's tensors, parameters and operators with those of a model."""

from __future__ import annotations

from shardplan.model.types import Model
from shardplan.plan.agreement import disagreements
from shardplan.plan.types import Plan
from shardplan.program.machine.pipeline import stage_models


def misdeclared(model: Model, plan: Plan) -> tuple[str, ...]:
    """The differences between `plan` and `model`, one sentence each: names, shapes, types, parameter names in
    checkpoint and file, their dims and aliases, operands and results of operators, and missing entries."""
    if plan.pipeline is None:
        return tuple(disagreements(plan, model))
    pairs = zip(stage_models(model, plan), plan.pipeline.stages, strict=True)
    return tuple(f"{stage.name}: {text}" for part, stage in pairs for text in disagreements(stage.plan, part))
