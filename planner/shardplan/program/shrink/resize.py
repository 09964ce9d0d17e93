"""A model with other sizes: new shapes, and new attributes and constants that contain sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model, Operator, Tensor
from shardplan.program.localise import LOCALISERS
from shardplan.program.machine.values import index_limits
from shardplan.program.shrink.sizes import Sizes
from shardplan.program.types import Array, Local, Site
from shardplan.rules.types import Rule


@dataclass(frozen=True)
class _Scaling(Site):
    """A site whose "local" shapes are whole shapes of the scaled-down model, which localisers then treat as shards."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ratios: Mapping[str, int | Fraction] = field(default_factory=dict)

    def local_operand(self, position: int) -> tuple[int, ...]:
        return self.shapes[self.operator.inputs[position]]

    def local_result(self, position: int = 0) -> tuple[int, ...]:
        return self.shapes[self.operator.outputs[position]]

    def ways(self, *factors: str) -> Any:
        """What counts are divided by; a fraction where factors grow."""
        return math.prod(self.ratios.get(factor, 1) for factor in factors)


def resized(model: Model, rules: Sequence[Rule], sizes: Sizes) -> Model:
    """The model with these sizes: shapes, attributes and constants that carry sizes, and the beginnings of other
    constants, or these with their last entries repeated.
    """
    shapes = {name: sizes.shape(name, len(tensor.shape)) for name, tensor in model.tensors.items()}
    tensors = {name: replace(tensor, shape=shapes[name]) for name, tensor in model.tensors.items()}
    constants = {name: _fitted(array, shapes[name]) for name, array in model.constants.items()}
    operators = []
    ratios: dict[int, dict[str, int | Fraction]] = defaultdict(dict)
    for (number, factor), ratio in sizes.ratios.items():
        ratios[number][factor] = ratio
    for number, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
        local = _scaled(model, operator, rule, shapes, ratios[number])
        inputs = list(operator.inputs)
        for position, array in local.operands.items():
            name = inputs[position] = f"{inputs[position]}:{operator.name}:{position}"
            tensors[name] = Tensor(name, array.shape, array.dtype.name, "constant")
            constants[name] = array
        operators.append(replace(operator, inputs=tuple(inputs), attributes=local.attributes))
    scaled = replace(model, operators=tuple(operators), tensors=tensors, constants=constants, padding=None)
    return replace(scaled, constants=_within_limits(model, scaled))


def _scaled(
    model: Model,
    operator: Operator,
    rule: Rule,
    shapes: Mapping[str, tuple[int, ...]],
    ratios: Mapping[str, int | Fraction],
) -> Local:
    """Attributes and constant operands of the operator in the scaled-down model."""
    local = Local(dict(operator.attributes))
    localiser = LOCALISERS.get(operator.kind)
    names = (operator.inputs, operator.outputs)
    if localiser is None or all(shapes[n] == model.tensors[n].shape for side in names for n in side if n):
        return local
    before, after = (tuple(model.tensors[n].shape if n else None for n in side) for side in names)
    known = {i: model.constants[n] for i, n in enumerate(operator.inputs) if n in model.constants}
    site = _Scaling(operator, rule, Mesh(()), (), (), (), before, after, known, shapes=shapes, ratios=ratios)
    localiser(site, local)
    if any(position >= len(operator.inputs) or not operator.inputs[position] for position in local.operands):
        return Local(dict(operator.attributes))  # what is not given follows from the shapes
    return local


def _fitted(array: Array, shape: tuple[int, ...]) -> Array:
    """The beginning of a constant, and where that is shorter its last entries once more: any of them is a valid one."""
    beginning = array[tuple(slice(size) for size in shape)]
    missing = [(0, size - known) for size, known in zip(shape, beginning.shape, strict=True)]
    return np.pad(beginning, missing, mode="edge") if any(after for _, after in missing) else beginning


def _within_limits(model: Model, scaled: Model) -> dict[str, Array]:
    """The constants of the scaled-down model, those that index a dim that became shorter brought into its range."""
    before, after = index_limits(model), index_limits(scaled)
    return {
        name: np.asarray(array % limit) if (limit := after.get(name, 0)) < before.get(name, 0) and limit else array
        for name, array in scaled.constants.items()
    }
