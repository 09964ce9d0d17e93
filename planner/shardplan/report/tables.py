"""The tables of a report: parameters by recipe, and moves by what they take."""

from __future__ import annotations

from shardplan.escapes import one_line
from shardplan.plan.types import Plan
from shardplan.render.groups import move_groups, parameter_groups
from shardplan.render.recipes import recipe_text


def parameter_rows(plan: Plan) -> list[list[object]]:
    """[name, how many, shape, type, layout, recipe, bytes per device]; those of identical layers are one row."""
    return [
        [
            one_line(group.name), group.count, list(group.shape), group.dtype, group.layout,
            recipe_text(group.recipe, plan.mesh.names), group.bytes_per_device,
        ]
        for group in parameter_groups(plan)
    ]  # fmt: skip


def move_rows(plan: Plan) -> list[list[object]]:
    """[tensor, module, how many, collectives, from, to, when, kind, bytes of one, total ns, exposed ns]."""
    return [
        [
            one_line(group.tensor), one_line(group.module), group.count, group.collectives, group.source, group.target,
            group.phase, group.kind, group.payload_bytes, group.time_ns, group.exposed_ns,
        ]
        for group in move_groups(plan)
    ]  # fmt: skip
