"""The plan of one microbatch, or of a batch with fewer rows: a plan with the shapes that its tensors have then.

A plan has the batch of a whole step. With several microbatches every dim whose major factor is the batch is shorter by
their number; which dims these are follows from the equations of the operators. The last batch of an epoch is shorter,
too, by any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import cast

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.placement import S
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
    small = _resized(plan, shapes, dims)
    wrong = _too_small(small, dims)
    if wrong:
        raise ShardplanError(_small(wrong, micro))
    return small


def with_rows(plan: Plan, rows: Mapping[str, int]) -> Plan | None:
    """The plan with the shapes of its values for other numbers of `rows` of the inputs, by their names; None if these
    are not all in one ratio to the plan's, or cannot be sharded as the plan says. Inputs without a name here have no
    rows and stay as they are."""
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    ratios = {Fraction(count, shapes[name][0]) for name, count in rows.items()}
    if len(ratios) != 1:
        return None
    return _with_ratio(plan, ratios.pop(), _dims_of_rows(plan, rows))


def fewest_rows(plan: Plan, name: str, inputs: Iterable[str]) -> int:
    """The number of rows of input `name` of which all batches under the plan have a multiple; `inputs`: all whose rows
    become fewer with it."""
    rows, dims = next(tensor.shape[0] for tensor in plan.tensors if tensor.name == name), _dims_of_rows(plan, inputs)
    divisors = (count for count in range(1, rows) if rows % count == 0)
    return next((count for count in divisors if _with_ratio(plan, Fraction(count, rows), dims) is not None), rows)


def _dims_of_rows(plan: Plan, inputs: Iterable[str]) -> dict[str, int]:
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    return rules.batch_dims(_wired(plan), shapes, dict.fromkeys(inputs, 0), _fixed(plan))


def _with_ratio(plan: Plan, ratio: Fraction, dims: Mapping[str, int]) -> Plan | None:
    """The plan with so many times the rows; None if some value cannot have them."""
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    for name, dim in dims.items():
        size = shapes[name][dim] * ratio
        if size.denominator != 1:
            return None
        shapes[name] = (*shapes[name][:dim], int(size), *shapes[name][dim + 1 :])
    small = _resized(plan, shapes, dims)
    return None if _too_small(small, dims) else small


def _resized(plan: Plan, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]) -> Plan:
    """The plan with values of these shapes, which differ from its own in the dims `dims`. Where such a dim is sharded
    in segments, there are fewer segments, or shorter ones."""
    before = {tensor.name: tensor.shape for tensor in plan.tensors}
    rows = math.gcd(*(before[name][dim] for name, dim in dims.items()))

    def sized(name: str, layout: Layout) -> Layout:
        dim = dims.get(name)
        if dim is None or not any(place.dim == dim and place.segments for place in layout.placements):
            return layout
        ratio = Fraction(shapes[name][dim], before[name][dim])
        placements = [
            S(dim, _segments(place.segments, ratio, rows)) if place.dim == dim and place.segments else place
            for place in layout.placements
        ]
        return Layout.of(*placements, order=layout.order)

    def all_sized(names: Sequence[str], layouts: Sequence[Layout | None]) -> tuple[Layout | None, ...]:
        pairs = zip(names, layouts, strict=True)
        return tuple(None if layout is None else sized(name, layout) for name, layout in pairs)

    return replace(
        plan,
        tensors=tuple(
            replace(each, shape=shapes[each.name], layout=sized(each.name, each.layout),
                    served=sized(each.name, each.served))
            for each in plan.tensors
        ),
        operators=tuple(
            replace(each, reads=all_sized(each.inputs, each.reads), makes=all_sized(each.outputs, each.makes))
            for each in plan.operators
        ),
        moves=tuple(
            replace(each, source=sized(each.tensor, each.source), target=sized(each.tensor, each.target))
            for each in plan.moves
        ),
    )  # fmt: skip


def _segments(segments: tuple[int, ...], ratio: Fraction, rows: int) -> tuple[int, ...]:
    """Segments of a dim that becomes `ratio` times as long: of rows times heads, each the heads of a row, there are
    fewer; of rows behind rows each is shorter. `rows`: of the batch before. As they are if neither can be."""
    count, sizes = len(segments) * ratio, [size * ratio for size in segments]
    fewer = segments[:1] * int(count) if count.denominator == 1 and len(set(segments)) == 1 else ()
    shorter = () if any(size.denominator != 1 for size in sizes) else tuple(map(int, sizes))
    by_row = len(segments) % rows == 0 or any(size % rows for size in segments)
    return (fewer or shorter if by_row else shorter or fewer) or segments


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


def _too_small(plan: Plan, names: Container[str]) -> list[str]:
    """Those of these values that cannot be sharded as the plan says."""
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    return [
        f"{name} {list(shapes[name])} as {to_text(layout, plan.mesh)}"
        for name, layout in dict.fromkeys(_layouts(plan))
        if name in names and name in shapes and not is_legal(layout, plan.mesh, shapes[name])
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
