"""The plan of one microbatch, or of a batch with fewer rows: a plan with the shapes that its tensors have then.

A plan has the batch of a whole step. With several microbatches every dim whose major factor is the batch is shorter by
their number; which dims these are follows from the equations of the operators. The last batch of an epoch is shorter,
too, by any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import cast

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.text import to_text
from shardplan.plan.types import Plan
from shardplan.rules import batch as rules
from shardplan.rules.batch import Wired, in_microbatch

_SHOWN = 8


def microbatches_of(plan: Plan) -> int:
    """The number of microbatches of a step."""
    return cast("int", plan.model.get("microbatches", 1))


def one_microbatch(plan: Plan, received_dims: Mapping[str, int] | None = None) -> Plan:
    """The plan with the shapes that its values have in one microbatch. `received_dims`: as in `batch_dims`.

    Raises `ShardplanError` (`small-microbatch`) where fewer rows are left than the plan shards them into.
    """
    micro = microbatches_of(plan)
    if micro == 1:
        return plan
    dims = batch_dims(plan, received_dims)
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    shapes |= {name: in_microbatch(shapes[name], dim, micro) for name, dim in dims.items()}
    _check(plan, {name: shapes[name] for name in dims}, micro)
    return replace(plan, tensors=tuple(replace(tensor, shape=shapes[tensor.name]) for tensor in plan.tensors))


def with_rows(plan: Plan, rows: Mapping[str, int]) -> Plan | None:
    """The plan with the shapes of its values for other numbers of `rows` of the inputs, by their names; None if these
    are not all in one ratio to the plan's, or cannot be sharded as the plan says. Inputs without a name here have no
    rows and stay as they are."""
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    ratios = {Fraction(count, shapes[name][0]) for name, count in rows.items()}
    if len(ratios) != 1:
        return None
    (ratio,) = ratios
    dims = rules.batch_dims(_wired(plan), shapes, dict.fromkeys(rows, 0), _fixed(plan))
    for name, dim in dims.items():
        size = shapes[name][dim] * ratio
        if size.denominator != 1:
            return None
        shapes[name] = (*shapes[name][:dim], int(size), *shapes[name][dim + 1 :])
    if _too_small(plan, {name: shapes[name] for name in dims}):
        return None
    return replace(plan, tensors=tuple(replace(tensor, shape=shapes[tensor.name]) for tensor in plan.tensors))


def batch_dims(plan: Plan, received_dims: Mapping[str, int] | None = None) -> dict[str, int]:
    """Value -> the dim whose major factor is the batch, for those that have one.

    Of inputs that is dim 0; `received_dims` says otherwise for those that a stage receives from the one
    before.
    """
    given = received_dims or {}
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    inputs = {tensor.name: given.get(tensor.name, 0) for tensor in plan.tensors if tensor.role == "input"}
    return rules.batch_dims(_wired(plan), shapes, inputs, _fixed(plan))


def _wired(plan: Plan) -> list[Wired]:
    return [Wired(operator.equation, operator.inputs, operator.outputs) for operator in plan.operators]


def _fixed(plan: Plan) -> set[str]:
    return {tensor.name for tensor in plan.tensors if tensor.role == "parameter"}


def _check(plan: Plan, shapes: Mapping[str, tuple[int, ...]], micro: int) -> None:
    wrong = _too_small(plan, shapes)
    if wrong:
        raise ShardplanError(_small(wrong, micro))


def _too_small(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The values of these shapes that the plan cannot shard so."""
    return [
        f"{name} {list(shapes[name])} as {to_text(layout, plan.mesh)}"
        for name, layout in dict.fromkeys(_layouts(plan))
        if name in shapes and not is_legal(layout, plan.mesh, shapes[name])
    ]


def _small(wrong: Sequence[str], micro: int) -> Diagnostic:
    shown = [*wrong[:_SHOWN], *([f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else [])]
    summary = f"one of {micro} microbatches has too few rows to be sharded as the plan says"
    hint = "solve with fewer --microbatches, or for a larger batch"
    return error("small-microbatch", summary, detail="\n".join(shown), hint=hint)


def _layouts(plan: Plan) -> Iterator[tuple[str, Layout]]:
    for tensor in plan.tensors:
        yield tensor.name, tensor.layout.forward
        yield tensor.name, tensor.served.forward
    for operator in plan.operators:
        for names, layouts in ((operator.inputs, operator.reads), (operator.outputs, operator.makes)):
            for name, layout in zip(names, layouts, strict=True):
                if layout is not None:
                    yield name, layout.forward
