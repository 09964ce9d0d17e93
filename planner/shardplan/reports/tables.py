"""The tables of a report: parameters by recipe, and moves by what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardplan.escapes import one_line
from shardplan.plan.types import Plan
from shardplan.render.groups import move_groups, parameter_groups
from shardplan.render.recipes import recipe_text
from shardplan.study.alternatives import Alternative

Alternatives = Mapping[str, Sequence[Alternative]]
"""The alternatives of groups of parameters, and of moved tensors, by name."""


def parameter_rows(plan: Plan, alternatives: Alternatives) -> list[list[object]]:
    """[name, how many, shape, type, layout, recipe, bytes per device, alternatives]; those of identical layers are one
    row. An alternative is [choice, ns more, bytes more, what else changes, why not]."""
    return [
        [
            one_line(group.name), group.count, list(group.shape), group.dtype, group.layout,
            recipe_text(group.recipe, plan.mesh.names), group.bytes_per_device,
            _instead(alternatives, group.name),
        ]
        for group in parameter_groups(plan)
    ]  # fmt: skip


def largest_parameters(plan: Plan, number: int) -> list[str]:
    """Names of so many groups of parameters, those of the most bytes first."""
    groups = sorted(parameter_groups(plan), key=lambda group: -group.bytes_per_device)
    return [group.name for group in groups[:number]]


def costliest_tensors(plan: Plan, number: int) -> list[str]:
    """Names of so many tensors, those first whose moves are exposed for longest."""
    exposed_ns: dict[str, int] = {}
    for group in move_groups(plan):
        exposed_ns[group.tensor] = exposed_ns.get(group.tensor, 0) + group.exposed_ns
    return sorted(exposed_ns, key=lambda name: (-exposed_ns[name], name))[:number]


def _instead(alternatives: Alternatives, name: str) -> list[list[object]]:
    return [_alternative(one) for one in alternatives.get(name, ()) if not one.chosen]


def _alternative(one: Alternative) -> list[object]:
    return [one_line(one.choice), one.cost_ns, one.memory_bytes, list(map(one_line, one.also)), one_line(one.why_not)]


def move_rows(plan: Plan, alternatives: Alternatives) -> list[list[object]]:
    """[tensor, label, how many, collectives, from, to, when, kind, bytes of one, total ns, exposed ns, alternatives of
    the tensor, as of parameters]."""
    return [
        [
            one_line(group.tensor), one_line(group.label), group.count, group.collectives, group.source, group.target,
            group.phase_text, group.kind, group.payload_bytes, group.time_ns, group.exposed_ns,
            _instead(alternatives, group.tensor),
        ]
        for group in move_groups(plan)
    ]  # fmt: skip
