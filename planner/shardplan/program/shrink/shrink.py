"""A plan for the scaled-down form of its model, which is small enough to run."""

from __future__ import annotations

from collections.abc import Sequence

from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.program.shrink.model import shrink_model
from shardplan.program.shrink.stages import shrink_stages
from shardplan.rules.types import Rule


def shrink(model: Model, plan: Plan, rules: Sequence[Rule] | None = None) -> tuple[Model, Plan]:
    """The scaled-down form of `model`, and `plan` for it. `rules`: those of `model`, if they are at hand.

    Raises `ShardplanError` (`cannot-shrink`) where the scaled-down model does not have the same strategies.
    """
    return shrink_model(model, plan, rules) if plan.pipeline is None else shrink_stages(model, plan)
