"""Every strategy of an operator as a plan of its own: the operands rest in the layouts in which it reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model
from shardplan.plan.types import Memory, OperatorDecision, Plan, Summary, TensorDecision
from shardplan.program.types import placements_of
from shardplan.rules.types import Option, Rule

NOTHING = Summary("optimal", 0, 0, 0.0, 0, 0, 0, 0, Memory(0, 0, 0, 0, 0), 0)


def strategy_plans(model: Model, rule: Rule, mesh: Mesh) -> Iterator[Plan]:
    """A plan for each legal strategy of the one operator of `model`, but for the one that splits nothing."""
    choices = ["-", *rule.options, *("+" + ",".join(map(str, group)) for group in rule.linear)]
    for per_axis in itertools.product(choices, repeat=len(mesh)):
        if any(choice != "-" for choice in per_axis):
            plan = strategy_plan(model, rule, mesh, per_axis)
            if plan is not None:
                yield plan


def strategy_plan(model: Model, rule: Rule, mesh: Mesh, per_axis: tuple[Option | str, ...]) -> Plan | None:
    """The plan of one choice per axis; None where sizes do not divide, or a value would be needed in two layouts."""
    for option in (choice for choice in per_axis if isinstance(choice, Option)):
        same = [a for a, other in enumerate(per_axis) if isinstance(other, Option) and other.factor == option.factor]
        if option.size % mesh.ways(same):
            return None
    operator = model.operators[0]
    reads, makes = (
        [Layout.of(*(placements_of(choice, side, len(names))[i] for choice in per_axis)) for i in range(len(names))]
        for side, names in (("operands", operator.inputs), ("results", operator.outputs))
    )
    layouts: dict[str, Layout] = {}
    for name, layout in (*zip(operator.inputs, reads, strict=True), *zip(operator.outputs, makes, strict=True)):
        if name and (
            layouts.setdefault(name, layout) != layout or not is_legal(layout, mesh, model.tensors[name].shape)
        ):
            return None
    tensors = tuple(
        TensorDecision(name, "activation", model.tensors[name].shape, model.tensors[name].dtype, layout, layout, 0)
        for name, layout in layouts.items()
        if name not in model.constants
    )
    decision = OperatorDecision(
        operator.name,
        operator.kind,
        "",
        rule.equation,
        tuple(choice.label if isinstance(choice, Option) else choice for choice in per_axis),
        tuple(
            None if name in model.constants or not name else x for name, x in zip(operator.inputs, reads, strict=True)
        ),
        tuple(x if name else None for name, x in zip(operator.outputs, makes, strict=True)),
        0,
        operator.inputs,
        operator.outputs,
    )
    return Plan({"digest": structure_digest(model)}, {}, mesh, ("link",) * len(mesh), NOTHING, tensors, (decision,), ())
