"""Loops and branches on the simulated machine: values at the border of a loop per iteration, and choices of a branch.

They do the same to the whole value and to what one device holds, since the dims they work on are never split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardplan.model.attributes import integer
from shardplan.model.types import CONTROL, Border, Operator
from shardplan.program.reference.random import DRAWING
from shardplan.program.types import Array

_OVER_ITERATIONS = frozenset({Border.ENTER, Border.STACK})


class LoopState:
    """Which iteration every loop of a model is in. `now`: by name of the loop, from 0."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.now: dict[str, int] = {}
        borders = [operator for operator in operators if is_border(operator)]
        leaves = {_carry(one): one for one in borders if one.op_type == Border.LEAVE}
        self._before: Mapping[str, Operator] = {
            one.name: leaves[_carry(one)] if one.op_type == Border.ENTER else one
            for one in borders
            if one.op_type in _OVER_ITERATIONS
        }

    def before(self, operator: Operator) -> Operator | None:
        """The operator whose result of the previous iteration is the input; None in the first iteration."""
        return self._before.get(operator.name) if operator.loops and self.now[operator.loops[-1]] else None

    def of_iteration(self, operator: Operator) -> Operator:
        """The operator in this iteration: a random one in a loop has its own name, and so its own draw, in each."""
        if not operator.loops or operator.kind not in {*DRAWING, "Dropout"}:
            return operator
        numbers = ".".join(str(self.now[loop]) for loop in operator.loops)
        return replace(operator, name=f"{operator.name} in iteration {numbers}")

    def is_complete(self, operator: Operator) -> bool:
        """Whether the result is what it will be: a stack grows until the last iteration."""
        if not is_border(operator) or operator.op_type != Border.STACK:
            return True
        return self.now[operator.loops[-1]] == integer(operator.attributes, "turns") - 1

    def result(self, operator: Operator, operands: Sequence[Array | None], before: Array | None) -> Array:
        """The result of a border or choice operator in this iteration; `before`: the result of `before(operator)`."""
        given = [operand for operand in operands if operand is not None]
        kind, iteration = operator.op_type, self.now[operator.loops[-1]] if operator.loops else 0
        if kind == Border.CHOOSE:
            return given[1] if bool(given[0].reshape(-1)[0]) else given[2]
        if kind == Border.COUNT:
            return np.array(iteration, np.int64)
        if kind == Border.ENTER:
            return given[0] if before is None else before
        if kind == Border.LEAVE:
            return given[0]
        axis, backwards = integer(operator.attributes, "axis"), bool(integer(operator.attributes, "backwards"))
        if kind == Border.EACH:
            size = given[0].shape[axis]
            return np.asarray(given[0].take(size - 1 - iteration if backwards else iteration, axis=axis))
        return _stacked(given[0], before, axis, iteration, integer(operator.attributes, "turns"), backwards=backwards)


def _stacked(
    entry: Array, before: Array | None, axis: int, iteration: int, iterations: int, *, backwards: bool
) -> Array:
    axis %= entry.ndim + 1
    made = before
    if made is None:
        made = np.zeros((*entry.shape[:axis], iterations, *entry.shape[axis:]), entry.dtype)
    made[(slice(None),) * axis + (iterations - 1 - iteration if backwards else iteration,)] = entry
    return made


def is_border(operator: Operator) -> bool:
    """Whether the operator represents control flow."""
    return operator.domain == CONTROL


def _carry(operator: Operator) -> tuple[tuple[str, ...], int]:
    return operator.loops, integer(operator.attributes, "carry")
