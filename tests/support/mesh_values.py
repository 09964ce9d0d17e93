"""Whole arrays as mesh values: what every device of a mesh holds of them."""

import functools

import numpy as np

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.program.collectives import COMBINE, Array, part


def shard(array: Array, layout: Layout, mesh: Mesh, seed: int = 0) -> list[Array]:
    """The mesh value that holds `array` in the forward half of `layout`.

    Partial values are drawn from `seed` so that they combine to the array; whole numbers stay whole, so sums of them
    are exact. `ValueError` if the layout is illegal for the shape.
    """
    plain = layout.forward
    axes = tuple(axis for axis, placement in enumerate(plain.placements) if placement.kind == "P")
    reduction = next((placement.reduction for placement in plain.placements if placement.kind == "P"), "sum")
    parts = _parts(array, reduction, mesh.ways(axes), np.random.default_rng(seed))
    return [part(parts[mesh.number(axes, place)], plain, mesh, place) for place in mesh.coordinates()]


def _parts(array: Array, reduction: str, count: int, generator: np.random.Generator) -> list[Array]:
    """`count` arrays that combine to `array`, none of them equal to it if there are several."""
    if count == 1:
        return [array]
    if reduction in {"max", "min"}:
        sign = -1 if reduction == "max" else 1
        owner = generator.integers(count, size=array.shape)
        away = [sign * generator.integers(1, 9, array.shape).astype(array.dtype) for _ in range(count)]
        return [np.where(owner == number, array, array + away[number]) for number in range(count)]
    low, high = (-8, 9) if reduction == "sum" else (1, 3)
    drawn = [generator.integers(low, high, array.shape).astype(array.dtype) for _ in range(count - 1)]
    rest = functools.reduce(COMBINE[reduction], drawn)
    return [*drawn, (array - rest if reduction == "sum" else array / rest).astype(array.dtype)]
