"""Batch dims: which dims of a model's values have fewer rows in a microbatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shardplan.model.types import Model
from shardplan.rules.equation import Dim, EquationError, parse, spread
from shardplan.rules.types import Rule

Shapes = Mapping[str, tuple[int, ...]]


class Wired(NamedTuple):
    """An operator's equation and the names of its operands and results, "" where one is absent."""

    equation: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def batch_dims(
    operators: Sequence[Wired], shapes: Shapes, given: Mapping[str, int], fixed: Collection[str]
) -> dict[str, int]:
    """Value -> the dim whose major factor is the batch, for those that have one.

    `given`: those of the values that are fed in, which have none where that is of size 1 (a mask for all rows);
    `fixed`: weights, which have none. All others follow from the equations: dims that share their major factor with a
    batch are one.
    """
    found = {name: dim for name, dim in given.items() if shapes[name] and shapes[name][dim] > 1}
    patterns = [_patterns(operator, shapes) for operator in operators]
    while True:
        before = len(found)
        for rows in patterns:
            shared = {dims[found[name]].factors[:1] for name, dims in rows if name in found}
            for name, dims in rows:
                if name not in found and name not in fixed:
                    at = [d for d, dim in enumerate(dims) if dim.factors[:1] in shared and shapes[name][d] > 1]
                    found |= {name: at[0]} if at and dims[at[0]].factors else {}
        if len(found) == before:
            return found


def batch_dims_of(model: Model, rules: Sequence[Rule]) -> dict[str, int]:
    """`batch_dims` of `model`, whose operator i has rule `rules[i]`: dim 0 of its inputs, unless it is said what it is
    (`Model.fed`)."""
    return dims_that_follow(model, rules, {name: model.fed.get(name, 0) for name in model.inputs})


def dims_that_follow(model: Model, rules: Sequence[Rule], given: Mapping[str, int]) -> dict[str, int]:
    """`batch_dims` of `model` for other dims than the batch, which are `given` for some inputs or weights."""
    operators = [
        Wired(rule.equation, operator.inputs, operator.outputs)
        for operator, rule in zip(model.operators, rules, strict=True)
    ]
    shapes = {name: tensor.shape for name, tensor in model.tensors.items()}
    return batch_dims(operators, shapes, given, {parameter.tensor for parameter in model.parameters} - given.keys())


def in_microbatch(shape: tuple[int, ...], dim: int | None, microbatches: int) -> tuple[int, ...]:
    """The shape that a value has in one of so many microbatches; `dim`: its batch, if it has one."""
    if dim is None:
        return shape
    return (*shape[:dim], shape[dim] // microbatches, *shape[dim + 1 :])


def _patterns(operator: Wired, shapes: Shapes) -> list[tuple[str, tuple[Dim, ...]]]:
    """The values around an operator, each with its dims over factors."""
    ranks = [len(shapes[name]) if name in shapes else None for name in operator.inputs]
    made = [len(shapes[name]) if name in shapes else None for name in operator.outputs]
    try:
        equation = spread(parse(operator.equation), ranks, made)
    except EquationError:
        return []
    sides = (
        *zip(operator.inputs, equation.operands, strict=True),
        *zip(operator.outputs, equation.results, strict=True),
    )
    return [(name, pattern.dims) for name, pattern in sides if name in shapes]
