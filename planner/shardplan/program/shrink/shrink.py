"""A plan for a small twin of its model, which can be run where the model cannot."""

from __future__ import annotations

from collections.abc import Sequence

from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.program.shrink.mesh import shrink_mesh
from shardplan.program.shrink.stages import shrink_stages
from shardplan.rules.types import Rule


def shrink(model: Model, plan: Plan, rules: Sequence[Rule] | None = None) -> tuple[Model, Plan]:
    """The small twin of `model`, and `plan` for it. `rules`: those of `model`, if they are at hand.

    Raises `ShardplanError` (`cannot-shrink`) where the twin does not have the same strategies.
    """
    return shrink_mesh(model, plan, rules) if plan.pipeline is None else shrink_stages(model, plan)
