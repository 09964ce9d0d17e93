"""The steps by which a loader shards a parameter: functions of an array and integers, applied in order.

The last step gives one shard per rank along a new first dim. Those below only rearrange, so the part of one rank can be
said of the stored tensor (`runs_after`) and read without the rest. Others are the user's, given by name.

- `shard_dim_D n`: dim D in n equal parts, `[n, ...]`.
- `reorganise_dim_D n SEGMENTS`: the same shape, in an order in which each of n parts has a slice of every segment.
- `shard_segments_D n SEGMENTS`: both at once.
- `shard_mesh`: several dims over several mesh axes, `[ranks, ...]`. Numbers: how many axes, their sizes, and for every
  dim how many axes cut it and which, major first.
- `once n`: the values for rank 0 and zeros for the others, `[n, ...]`: a bias that is added before a sum over ranks.
- `reshape`: the declared shape.
- `shard_qkv_0 n HEADS KV_HEADS`: a fused q, k, v as `[n, heads of a part, head size, ...]`; `shard_qkv_1`: `reshape`.

`shard_dim_D`, `shard_qkv_0` and `shard_qkv_1` are those of TVM's Disco tests (apache/tvm #15826).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.layout.mesh import Axis, Mesh
from shardplan.runtime.shards import Run, Runs
from shardplan.units import counted

Array = NDArray[Any]
Function = Callable[..., Array]
_OF_DIM = re.compile(r"(shard_dim|reorganise_dim|shard_segments)_(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Step:
    """`function` of the array so far and `numbers`; its result has `shape` and `dtype` (`float16`, `bfloat16`, ...)."""

    function: str
    shape: tuple[int, ...]
    dtype: str
    numbers: tuple[int, ...] = ()


def find_builtin(step: Step) -> Function | None:
    """The function of a step in the table, as a function of the array alone; None if it is not in the table."""
    match = _OF_DIM.fullmatch(step.function)
    if match:
        dim, numbers = int(match[2]), step.numbers
        of_dim: dict[str, Function] = {
            "shard_dim": lambda array: _shard_dim(array, dim, *numbers),
            "reorganise_dim": lambda array: _reorganise(array, dim, *numbers),
            "shard_segments": lambda array: _shard_dim(_reorganise(array, dim, *numbers), dim, numbers[0]),
        }
        return of_dim[match[1]]
    named: dict[str, Function] = {
        "shard_mesh": lambda array: _shard_mesh(array, step.numbers),
        "once": lambda array: _once(array, *step.numbers),
        "reshape": lambda array: array.reshape(step.shape),
        "shard_qkv_0": lambda array: _shard_qkv(array, *step.numbers),
        "shard_qkv_1": lambda array: array.reshape(step.shape),
    }
    return named.get(step.function)


def runs_after(steps: Sequence[Step], shape: Sequence[int], rank: int) -> Runs | None:
    """The part of a stored tensor of `shape` that `rank` holds after all steps, as runs; None if that cannot be
    determined.

    `ValueError` if a step does not fit the shape.
    """
    dims: list[tuple[Run, ...]] = [((0, size),) for size in shape]
    for place, step in enumerate(steps):
        is_last = place == len(steps) - 1
        match = _OF_DIM.fullmatch(step.function)
        if match and (match[1] == "reorganise_dim") != is_last:
            dim, ways = int(match[2]), step.numbers[0] if step.numbers else 0
            _check_dim(dim, len(dims))
            if match[1] != "shard_dim":
                dims[dim] = _reorganised(dims[dim], ways, step.numbers[1:])
            if is_last:
                dims[dim] = _cut(dims[dim], rank, ways)
        elif step.function == "shard_mesh" and is_last:
            mesh, axes = _mesh_numbers(step.numbers, len(dims))
            if rank >= mesh.size:
                raise ValueError(f"the mesh has {counted(mesh.size, 'device')}, and there is a rank {rank}")
            at = next(itertools.islice(mesh.coordinates(), rank, None))
            dims = [_cut(dim, mesh.number(by, at), mesh.ways(by)) for dim, by in zip(dims, axes, strict=True)]
        else:
            return None
    return tuple(dims)


def _shard_dim(array: Array, dim: int, ways: int) -> Array:
    _check_dim(dim, array.ndim)
    _check_division(array.shape[dim], ways)
    parts = array.reshape(*array.shape[:dim], ways, array.shape[dim] // ways, *array.shape[dim + 1 :])
    return np.ascontiguousarray(np.moveaxis(parts, dim, 0))


def _reorganise(array: Array, dim: int, ways: int, *segments: int) -> Array:
    _check_dim(dim, array.ndim)
    runs = _reorganised(((0, array.shape[dim]),), ways, segments)
    order = np.concatenate([np.arange(start, stop) for start, stop in runs])
    return array.take(order, dim)


def _shard_mesh(array: Array, numbers: Sequence[int]) -> Array:
    mesh, axes = _mesh_numbers(numbers, array.ndim)
    shards = []
    for place in mesh.coordinates():
        part = array
        for dim, by in enumerate(axes):
            (start, stop) = _cut(((0, array.shape[dim]),), mesh.number(by, place), mesh.ways(by))[0]
            part = part[(slice(None),) * dim + (slice(start, stop),)]
        shards.append(part)
    return np.stack(shards)


def _once(array: Array, ways: int) -> Array:
    shards = np.zeros((ways, *array.shape), array.dtype)
    shards[0] = array
    return shards


def _shard_qkv(array: Array, ways: int, q_heads: int, kv_heads: int) -> Array:
    heads = q_heads + 2 * kv_heads
    _check_division(array.shape[0], heads)
    segments = [count * (array.shape[0] // heads) for count in (q_heads, kv_heads, kv_heads)]
    shards = _shard_dim(_reorganise(array, 0, ways, *segments), 0, ways)
    return shards.reshape(ways, heads // ways, array.shape[0] // heads, *array.shape[1:])


def _reorganised(runs: Sequence[Run], ways: int, segments: Sequence[int]) -> tuple[Run, ...]:
    """The runs in the order in which a cut in `ways` parts gives each its slice of every segment."""
    if sum(segments) != sum(stop - start for start, stop in runs):
        raise ValueError(f"the segments {list(segments)} do not sum to the size of the dim")
    found: list[Run] = []
    for part in range(ways):
        offset = 0
        for size in segments:
            _check_division(size, ways)
            found += _between(runs, offset + part * size // ways, offset + (part + 1) * size // ways)
            offset += size
    return tuple(found)


def _cut(runs: Sequence[Run], part: int, ways: int) -> tuple[Run, ...]:
    size = sum(stop - start for start, stop in runs)
    _check_division(size, ways)
    return _between(runs, part * size // ways, (part + 1) * size // ways)


def _between(runs: Sequence[Run], first: int, last: int) -> tuple[Run, ...]:
    """Positions `first` to `last` of the concatenation of the runs; runs that touch become one."""
    found: list[Run] = []
    offset = 0
    for start, stop in runs:
        low, high = max(first, offset), min(last, offset + stop - start)
        if low < high:
            begin, end = start + low - offset, start + high - offset
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, end))
        offset += stop - start
    return tuple(found)


def mesh_numbers(mesh: Mesh, axes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The numbers of `shard_mesh`; `axes`: per dim, the mesh axes that cut it, major first."""
    per_dim = [number for by in axes for number in (len(by), *by)]
    return (len(mesh), *mesh.shape, *per_dim)


def _mesh_numbers(numbers: Sequence[int], rank: int) -> tuple[Mesh, list[tuple[int, ...]]]:
    rest = list(numbers)
    count = rest.pop(0) if rest else 0
    sizes, rest = rest[:count], rest[count:]
    axes = []
    while rest:
        length, rest = rest[0], rest[1:]
        axes.append(tuple(rest[:length]))
        rest = rest[length:]
    used = [axis for by in axes for axis in by]
    if len(sizes) != count or len(axes) != rank or len(set(used)) < len(used) or any(a >= count for a in used):
        raise ValueError(f"the numbers {list(numbers)} do not describe a mesh and the axes of {counted(rank, 'dim')}")
    return Mesh(tuple(Axis(str(place), size) for place, size in enumerate(sizes))), axes


def _check_dim(dim: int, rank: int) -> None:
    if dim >= rank:
        raise ValueError(f"there is no dim {dim} in a tensor of {counted(rank, 'dim')}")


def _check_division(size: int, ways: int) -> None:
    if ways < 1 or size % ways:
        raise ValueError(f"{size} does not divide by {ways}")
