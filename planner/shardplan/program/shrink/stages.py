"""A scaled-down pipeline: every stage keeps the first, second and last of its copies of a repeated block.

Sizes are those that suit the plans of all stages together, since stages hand values on and share weights.
"""

from __future__ import annotations

from dataclasses import replace

from shardplan.model.digest import structure_digest
from shardplan.model.shallow import thin_model, thinned
from shardplan.model.types import Model
from shardplan.plan.recorded_request import require_model
from shardplan.plan.types import Plan
from shardplan.program.lower import lower_program
from shardplan.program.machine.pipeline import stage_models
from shardplan.program.machine.run import needed_bytes
from shardplan.program.shrink.model import COPIES, ScaledPlan, refusal, scaled_rules, tried
from shardplan.program.shrink.resize import resized
from shardplan.program.shrink.sizes import smaller_sizes
from shardplan.rules import model_rules

Scaled = tuple[Model, Plan, int]
"""A scaled-down model, its plan, and the bytes that running its largest stage takes."""


def shrink_stages(model: Model, plan: Plan) -> tuple[Model, Plan]:
    """As `shrink`, for a plan with stages."""
    require_model(plan, model)
    thin = _thin(model, plan)
    thin_rules = model_rules(thin)

    def scaled(room: int, least: int) -> Scaled:
        return _scaled(plan, thin, resized(thin, thin_rules, smaller_sizes(thin, plan, thin_rules, room, least)))

    found, planned, _ = tried(scaled, lambda made: made[2])
    return found, planned


def _thin(model: Model, plan: Plan) -> Model:
    """The model with the operators that stay, at full size."""
    names: set[str] = set()
    renamed: dict[tuple[str, str], str] = {}
    for part in stage_models(model, plan):
        kept, read_instead = thinned(part, COPIES)
        names |= {part.operators[index].name for index in kept}
        for (index, value), instead in read_instead.items():
            operator = part.operators[index].name
            if renamed.setdefault((operator, value), instead) != instead:
                raise refusal(f"operator '{operator}' runs in several stages, and reads other layers in each")
    place = {operator.name: index for index, operator in enumerate(model.operators)}
    kept = [index for index, operator in enumerate(model.operators) if operator.name in names]
    return thin_model(model, kept, {(place[operator], value): new for (operator, value), new in renamed.items()})


def _scaled(plan: Plan, thin: Model, scaled: Model) -> Scaled:
    """`plan` for `scaled`, stage by stage."""
    assert plan.pipeline is not None
    stages, needed = [], 0
    for stage, old, new in zip(plan.pipeline.stages, stage_models(thin, plan), stage_models(scaled, plan), strict=True):
        rules = scaled_rules(new)
        small = ScaledPlan(stage.plan, old, model_rules(old), new, rules).plan()
        needed = max(needed, needed_bytes(lower_program(new, small, rules)))
        stages.append(replace(stage, plan=small))
    section = {**plan.model, "digest": structure_digest(scaled), "microbatches": 1}
    return scaled, replace(plan, model=section, pipeline=replace(plan.pipeline, stages=tuple(stages))), needed
