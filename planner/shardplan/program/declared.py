"""Comparison of a plan's tensors, parameters and operators with those of a model."""

from __future__ import annotations

from shardplan.model.types import Model
from shardplan.plan.agreement import disagreements
from shardplan.plan.types import Plan
from shardplan.program.machine.pipeline import stage_models


def misdeclared(model: Model, plan: Plan) -> tuple[str, ...]:
    """Whatever `plan`, made for `model`, says of it that is not so, one sentence each: names, shapes, types, the names
    of parameters in checkpoint and file, their dims and aliases, what operators read and make, what is missing."""
    if plan.pipeline is None:
        return tuple(disagreements(plan, model))
    pairs = zip(stage_models(model, plan), plan.pipeline.stages, strict=True)
    return tuple(f"{stage.name}: {text}" for part, stage in pairs for text in disagreements(stage.plan, part))
