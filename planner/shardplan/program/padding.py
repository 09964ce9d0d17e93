"""Values of a padded model from those of the original model, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardplan.model.types import Model, Padding
from shardplan.program.types import Array


def padded_values(array: Array, name: str, shape: Sequence[int], padding: Padding) -> Array:
    """`array`, a value of the model, as the larger model has it in `shape`: zeros where there is padding."""
    made = np.zeros(shape, array.dtype)
    made[_indices(name, shape, padding)] = array
    return made


def padded_inputs(model: Model, values: Mapping[str, Array]) -> dict[str, Array]:
    """What a padded model starts from: its own constants, and `values` of the model as it is with their padding."""
    padding = model.padding
    assert padding is not None
    shapes = {name: model.tensors[name].shape for name in values if name in model.tensors}
    given = {name: padded_values(np.asarray(values[name]), name, shape, padding) for name, shape in shapes.items()}
    return given | {name: np.asarray(array) for name, array in model.constants.items()}


def real_values(array: Array, name: str, padding: Padding) -> Array:
    """Of a value of the larger model, what the model has."""
    made: Array = array[_indices(name, array.shape, padding)]
    return made


def _indices(name: str, shape: Sequence[int], padding: Padding) -> tuple[Array, ...]:
    along = (padding.real.get((name, dim)) for dim in range(len(shape)))
    chosen = [np.arange(size) if one is None else np.flatnonzero(one) for one, size in zip(along, shape, strict=True)]
    return np.ix_(*chosen)
