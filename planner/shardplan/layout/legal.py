"""Which layouts a shape allows, and the local shapes and tiles they give.

A dim may be sharded by axes whose sizes multiply to a divisor of it. A segmented dim is sharded in every segment on its
own. Plain and segmented shards meet on one dim only if it can be seen as the compound (segment count, segment length)
with equal segments: plain axes then split the count, which is the major factor, segmented axes the length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh


def check(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> list[str]:
    """Every reason why a tensor of `shape` cannot have `layout` on `mesh`, one sentence each; empty if it can."""
    if len(layout) != len(mesh):
        return [f"the layout has {len(layout)} placements but the mesh has {len(mesh)} axes ({mesh})"]
    found = _check_partial(layout)
    for dim in sorted({dim for dim, _ in layout.dims()}):
        if not 0 <= dim < len(shape):
            found.append(f"S({dim}) needs a dim {dim} but the tensor has {_dims(len(shape))}")
        else:
            found += _check_dim(layout, mesh, dim, shape[dim])
    return found


def is_legal(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> bool:
    """Whether `check` finds nothing, without the sentences: for hot loops."""
    placements = layout.placements
    if len(placements) != len(mesh.axes) or len({p.reduction for p in placements if p.kind == "P"}) > 1:
        return False
    plain: dict[int, int] = {}
    split: dict[int, tuple[tuple[int, ...], int]] = {}
    for axis, placement in zip(mesh.axes, placements, strict=True):
        if placement.kind != "S":
            continue
        dim = placement.dim
        if not 0 <= dim < len(shape):
            return False
        if not placement.segments:
            plain[dim] = plain.get(dim, 1) * axis.size
        else:
            segments, ways = split.setdefault(dim, (placement.segments, 1))
            if segments != placement.segments or sum(segments) != shape[dim]:
                return False
            split[dim] = (segments, ways * axis.size)
    for dim, (segments, ways) in split.items():
        if any(size % ways for size in segments):
            return False
        if dim in plain and (len(set(segments)) > 1 or len(segments) % plain[dim]):
            return False
    return all(dim in split or shape[dim] % ways == 0 for dim, ways in plain.items())


def legal_for(mesh: Mesh, shape: Sequence[int]) -> Callable[[Layout], bool]:
    """`is_legal` for one tensor, remembering its answers: what `lower` takes as `legal`."""
    fixed = tuple(shape)

    @functools.cache
    def legal(layout: Layout) -> bool:
        return is_legal(layout, mesh, fixed)

    return legal


def local_shape(layout: Layout, mesh: Mesh, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of what one device holds of a tensor of `shape`; `ValueError` with the sentences of `check` if illegal."""
    if not is_legal(layout, mesh, shape):
        raise ValueError("; ".join(check(layout, mesh, shape)))
    local = list(shape)
    for (dim, _), axes in layout.dims().items():
        local[dim] //= mesh.ways(axes)
    return tuple(local)


def tile(
    layout: Layout, mesh: Mesh, shape: Sequence[int], coordinates: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What the device at `coordinates` holds of a tensor of `shape`: per dim, (start, stop) pieces in local order.

    One piece for an ordinary dim, one piece per segment for a segmented one. `ValueError` if the layout is illegal.
    """
    if not is_legal(layout, mesh, shape):
        raise ValueError("; ".join(check(layout, mesh, shape)))
    pieces: list[tuple[tuple[int, int], ...]] = [((0, size),) for size in shape]
    split = [(dim, segments) for dim, segments in layout.dims() if segments]
    for dim, segments in split:
        stops = [sum(segments[: place + 1]) for place in range(len(segments))]
        pieces[dim] = tuple((stop - size, stop) for size, stop in zip(segments, stops, strict=True))
    for (dim, segments), axes in layout.dims().items():  # plain shards of a dim come before segmented ones
        number, ways = mesh.number(axes, coordinates), mesh.ways(axes)
        if segments:
            pieces[dim] = tuple(_part(start, stop, number, ways) for start, stop in pieces[dim])
        elif len(pieces[dim]) > 1:
            first, last = _part(0, len(pieces[dim]), number, ways)
            pieces[dim] = pieces[dim][first:last]
        else:
            pieces[dim] = (_part(*pieces[dim][0], number, ways),)
    return tuple(pieces)


def _part(start: int, stop: int, number: int, ways: int) -> tuple[int, int]:
    size = (stop - start) // ways
    return start + number * size, start + (number + 1) * size


def _check_partial(layout: Layout) -> list[str]:
    reductions = sorted({p.reduction for p in layout.placements if p.kind == "P"})
    if len(reductions) < 2:
        return []
    return [f"partial values of one tensor must be combined in one way, found {' and '.join(reductions)}"]


def _check_dim(layout: Layout, mesh: Mesh, dim: int, size: int) -> list[str]:
    """Sentences about one dim of a tensor that has it."""
    shards = {segments: axes for (where, segments), axes in layout.dims().items() if where == dim}
    split = {segments: axes for segments, axes in shards.items() if segments}
    plain = shards.get((), ())
    if not split:
        return _check_division(mesh, f"dim {dim} of size {size}", size, plain)
    found = []
    if len(split) > 1:
        found.append(f"dim {dim} is cut into segments in {len(split)} different ways; one tensor can have only one")
    for segments, axes in split.items():
        if sum(segments) != size:
            found.append(f"the segments of dim {dim} sum to {sum(segments)} but its size is {size}")
        for length in dict.fromkeys(segments):
            found += _check_division(mesh, f"a segment of {length} in dim {dim}", length, axes)
        if plain and len(set(segments)) > 1:
            found.append(
                f"dim {dim} is sharded both plainly ({_ways(mesh, plain)}) and by segments ({_ways(mesh, axes)}); "
                "that needs segments of equal size"
            )
        elif plain:
            found += _check_division(mesh, f"the {len(segments)} segments of dim {dim}", len(segments), plain)
    return found


def _check_division(mesh: Mesh, what: str, size: int, axes: Sequence[int]) -> list[str]:
    if size % mesh.ways(axes) == 0:
        return []
    verb = "do" if what.startswith("the ") else "does"
    return [f"{what} {verb} not divide by {_ways(mesh, axes)}"]


def _ways(mesh: Mesh, axes: Sequence[int]) -> str:
    """`machine=4 x gpu=2 = 8`; a single axis is its own product."""
    factors = " x ".join(f"{mesh.axes[axis].name}={mesh.axes[axis].size}" for axis in axes)
    return factors if len(axes) < 2 else f"{factors} = {math.prod(mesh.axes[axis].size for axis in axes)}"


def _dims(rank: int) -> str:
    if rank == 0:
        return "no dims (it is a scalar)"
    return "only dim 0" if rank == 1 else f"only dims 0 to {rank - 1}"
