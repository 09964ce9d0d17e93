"""Runs models whole, on one device, and compares a padded model with the original one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shardplan.model.types import Model, Operator
from shardplan.program.machine.compare import difference, scale_of
from shardplan.program.machine.loops import LoopState, is_border
from shardplan.program.padding import padded_inputs, padded_values, real_values
from shardplan.program.reference.evaluate import reference, widen
from shardplan.program.reference.random import draws, results
from shardplan.program.types import Array


def run_whole(model: Model, values: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a model, from the values of all that its operators do not make, in double precision. What is drawn
    at random in a padded model is what the model draws as it is, at the positions that are real.

    Raises `ShardplanError` where an operator cannot be run.
    """
    run = _Whole(model, {name: widen(np.asarray(array)) for name, array in values.items()})
    last = {name: number for number, operator in enumerate(model.operators) for name in operator.inputs}
    last |= dict.fromkeys(model.outputs, len(model.operators))
    done = 0
    for _, together in itertools.groupby(enumerate(model.operators), lambda one: one[1].loops[:1] or one[0]):
        operators = [operator for _, operator in together]
        run.all(operators)
        done += len(operators)
        for name in {name for operator in operators for name in (*operator.inputs, *operator.outputs)}:
            if last.get(name, -1) < done:
                run.held.pop(name, None)
    return {name: run.held[name] for name in model.outputs}


class _Whole:
    """The values that a run of `model` has `held` so far."""

    def __init__(self, model: Model, held: dict[str, Array]) -> None:
        self.model, self.held, self.loops = model, held, LoopState(model.operators)

    def all(self, operators: Iterable[Operator], depth: int = 0) -> None:
        """Run operators that are in the same `depth` loops, those of a further loop iteration by iteration."""
        for further, together in itertools.groupby(operators, lambda operator: operator.loops[depth : depth + 1]):
            inside = list(together)
            for iteration in range(self.model.trips[further[0]] if further else 1):
                if further:
                    self.loops.now[further[0]] = iteration
                    self.all(inside, depth + 1)
                else:
                    for operator in inside:
                        self._one(operator)

    def _one(self, operator: Operator) -> None:
        operands = [self.held[name] if name else None for name in operator.inputs]
        if is_border(operator):
            before = self.loops.before(operator)
            made = [self.loops.result(operator, operands, self.held[before.outputs[0]] if before else None)]
        else:
            made = self._made(self.loops.of_iteration(operator), operands)
        self.held |= {name: array for name, array in zip(operator.outputs, made, strict=True) if name}

    def _made(self, operator: Operator, operands: Sequence[Array | None]) -> list[Array]:
        padding, name = self.model.padding, next((name for name in operator.outputs if name), "")
        if padding is None or not name or not draws(operator, operands):
            return reference(operator, operator.attributes, operands)
        shapes = [one.tensors[name].shape for one in (padding.of, self.model)]
        return results(operator, operands, shapes[0], lambda drawn: padded_values(drawn, name, shapes[1], padding))


def padded_differs(model: Model, values: Mapping[str, Array]) -> tuple[str, float]:
    """The output of a padded model that differs most from that of the model as it is, and by how much: relative, as
    `difference` has it; infinite where shapes differ.

    `values`: of the model as it is. Raises `ShardplanError` as `run_whole`.
    """
    padding = model.padding
    assert padding is not None
    as_it_is, larger = run_whole(padding.of, values), run_whole(model, padded_inputs(model, values))
    worst = (model.outputs[0] if model.outputs else "", 0.0)
    for name, expected in as_it_is.items():
        found = real_values(larger[name], name, padding)
        is_alike = found.shape == expected.shape
        error = difference(found, expected, scale_of(expected)) if is_alike else math.inf
        worst = max(worst, (name, error), key=lambda one: one[1])
    return worst
