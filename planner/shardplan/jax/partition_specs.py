"""Layouts as `PartitionSpec`s, also for arrays whose dims divide the plan's dims further.

JAX splits a dim into equal contiguous parts. The plan's segmented shards (of a fused q, k, v every device holds a slice
of each) are contiguous parts of an array in which the fused dim is two dims, (segments, size of one): the plan's [32,
96] with segments of 32 is [32, 3, 32] in JAX, sharded on the last. Such a finer division is found from the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import PartitionSpec

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.orientation import dim_axes

Division = tuple[tuple[int, ...], ...]
"""For each dim of the plan, the sizes of the array's dims that make it up, major first."""


def division(shape: Sequence[int], coarse: Sequence[int]) -> Division | None:
    """How the dims `coarse` are divided into those of `shape`; None where they are not.

    `division((32, 3, 32), (32, 96))` is `((32,), (3, 32))`. Surplus dims of size 1 belong to the dim before them.
    """
    found: list[tuple[int, ...]] = []
    place = 0
    for number, size in enumerate(coarse):
        sizes: list[int] = []
        left = size
        while place < len(shape) and (left > 1 or not sizes):
            if shape[place] == 0 or left % shape[place]:
                return None
            left //= shape[place]
            sizes.append(shape[place])
            place += 1
        spare = len(shape) - place - (len(coarse) - number - 1)
        while spare > 0 and place < len(shape) and shape[place] == 1:
            sizes.append(1)
            place, spare = place + 1, spare - 1
        if left != 1 or not sizes:
            return None
        found.append(tuple(sizes))
    return tuple(found) if place == len(shape) else None


def partition_spec(layout: Layout, mesh: Mesh, divided: Division, name: str) -> PartitionSpec:
    """The spec of an array `name` whose dims are `divided`; `layout` counts the plan's dims. Axes that replicate (`R`,
    `R/P`) are left out; `layout` must have no partial axes.

    Raises `ShardplanError`: `segmented-dim` where the array's dims do not show the segments, `indivisible-dim`.
    """
    entries: list[list[list[str]]] = [[[] for _ in sizes] for sizes in divided]
    left = [list(sizes) for sizes in divided]
    for (dim, segments), axes in sorted(layout.dims().items()):
        first = 0
        if segments:
            first = _after_segments(segments, divided[dim], name, dim)
        places = iter(range(first, len(divided[dim])))
        place = next(places)
        for axis in axes:
            size = mesh.axes[axis].size
            while left[dim][place] == 1 and (following := next(places, None)) is not None:
                place = following
            if left[dim][place] % size:
                raise ShardplanError(_indivisible(layout, mesh, divided[dim], name, dim))
            left[dim][place] //= size
            entries[dim][place].append(mesh.names[axis])
    flat = [names for dim in entries for names in dim]
    while flat and not flat[-1]:
        flat.pop()
    return PartitionSpec(*(tuple(names) if len(names) > 1 else names[0] if names else None for names in flat))


def pin_text(layout: Layout, mesh: Mesh, rank: int) -> str:
    """`layout` as the text of a planner constraint: `[machine, [gpu, tray], null]`, `replicate`."""
    if any(placement.segments for placement in layout.placements):
        return to_text(layout, mesh)
    axes = dim_axes(layout, rank, mesh.names)
    dims = ["null" if not names else names[0] if len(names) == 1 else f"[{', '.join(names)}]" for names in axes]
    return f"[{', '.join(dims)}]" if any(axes) else "replicate"


def _after_segments(segments: tuple[int, ...], sizes: tuple[int, ...], name: str, dim: int) -> int:
    """The first dim inside a segment, among the dims that make up a fused one."""
    count = 1
    for place, size in enumerate(sizes):
        if count == len(segments) and len(set(segments)) == 1:
            return place
        count *= size
    raise ShardplanError(_segmented(segments, name, dim))


def _segmented(segments: tuple[int, ...], name: str, dim: int) -> Diagnostic:
    sizes = ", ".join(map(str, segments))
    summary = f"dim {dim} of '{name}' is sharded in each of its segments ({sizes}), which no JAX sharding can express"
    if len(set(segments)) == 1:
        hint = f"give the array the dims ({len(segments)}, {segments[0]}) in place of dim {dim}, as einsum layers do"
    else:
        hint = "make its segments arrays of their own: let names give shardplan.jax.Part(name, start, stop) for each"
    return error("segmented-dim", summary, hint=hint)


def _indivisible(layout: Layout, mesh: Mesh, sizes: tuple[int, ...], name: str, dim: int) -> Diagnostic:
    summary = f"'{name}' is {to_text(layout, mesh)}, which does not divide its dims {list(sizes)} of dim {dim}"
    hint = "let the major one of these dims be a multiple of the axes that shard it"
    return error("indivisible-dim", summary, hint=hint)
