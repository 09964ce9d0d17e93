"""Runs models whole, on one device, and compares a padded model with the original one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from shardplan.model.types import Model
from shardplan.program.machine.compare import difference, scale_of
from shardplan.program.padding import padded_inputs, real_values
from shardplan.program.reference.evaluate import reference, widen
from shardplan.program.types import Array


def run_whole(model: Model, values: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a model without loops, from the values of all that its operators do not make, in double
    precision. Raises `ShardplanError` where an operator cannot be run."""
    held = {name: widen(np.asarray(array)) for name, array in values.items()}
    last = {name: number for number, operator in enumerate(model.operators) for name in operator.inputs}
    last |= dict.fromkeys(model.outputs, len(model.operators))
    for number, operator in enumerate(model.operators):
        made = reference(operator, operator.attributes, [held[name] if name else None for name in operator.inputs])
        held |= {name: array for name, array in zip(operator.outputs, made, strict=True) if name}
        for name in {*operator.inputs, *operator.outputs}:
            if last.get(name, -1) <= number:
                held.pop(name, None)
    return {name: held[name] for name in model.outputs}


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
