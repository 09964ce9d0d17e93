"""Fused weights that torch has no placement for: each of their parts is a parameter of its own.

A packed q, k, v of grouped queries has parts of unequal sizes, which `DTensor` cannot shard each on its own; nor can it
shard the parts of one dim over several axes. The parts alone it can. Where axes distribute parts of equal size that
others cut, a dim becomes two, which part and where in it, and every axis shards one of them. So the weight becomes what
torch calls parametrized: `qkv.weight` is put together from `qkv.parametrizations.weight.original0`, `original1` ...,
each a DTensor whose `full_tensor()` is that part of the checkpoint's tensor.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement, S
from shardplan.torch.placements import nameless_dims

Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """The parts of a weight. `cuts`: dims of the whole that are cut, each with the sizes; `folds`: dims that are two in
    a part, each with the number of pieces of the whole and of one process. `layout`: of each part, as all of them are
    sharded alike."""

    cuts: tuple[tuple[int, tuple[int, ...]], ...]
    folds: tuple[tuple[int, int, int], ...]
    layout: Layout

    @property
    def count(self) -> int:
        """How many there are."""
        return math.prod(len(sizes) for _, sizes in self.cuts)

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        """The parts of a whole tensor."""
        return self._split(whole, [(dim, pieces) for dim, pieces, _ in self.folds])

    def split_local(self, local: Tensor) -> Sequence[Tensor]:
        """What one process holds of each part, of what it holds of the whole."""
        return self._split(local, [(dim, pieces) for dim, _, pieces in self.folds])

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole, or what one process holds of it: its pieces of all parts, one after the other."""
        found = list(parts)
        for dim, _, _ in self.folds:
            found = [torch.flatten(part, dim, dim + 1) for part in found]
        for dim, sizes in reversed(self.cuts):
            starts = range(0, len(found), len(sizes))
            found = [torch.cat(found[start : start + len(sizes)], dim) for start in starts]
        return found[0]

    def blocks(
        self, number: int, offsets: Offsets, block: Tensor, shape: Sequence[int]
    ) -> Iterator[tuple[Offsets, Tensor]]:
        """Where a block of a part of `shape` lies in the whole: in several places where a dim is folded."""
        starts = [[sum(sizes[:place]) for place in range(len(sizes))] for _, sizes in self.cuts]
        start = next(itertools.islice(itertools.product(*starts), number, None))
        found = [(offsets, block)]
        for fold, (dim, _, _) in enumerate(self.folds):
            found = [each for one in found for each in _apart(*one, dim, shape[dim + fold + 1])]
        for offset, piece in found:
            moved = list(offset)
            for (dim, _), more in zip(self.cuts, start, strict=True):
                moved[dim] += more
            yield tuple(moved), piece

    def _split(self, tensor: Tensor, folds: Sequence[tuple[int, int]]) -> Sequence[Tensor]:
        parts = [tensor]
        for dim, sizes in self.cuts:
            ways = sum(sizes) // tensor.shape[dim]
            parts = [part for each in parts for part in torch.split(each, [size // ways for size in sizes], dim)]
        for dim, pieces in reversed(folds):
            parts = [torch.unflatten(part, dim, (pieces, part.shape[dim] // pieces)) for part in parts]
        return parts


@functools.lru_cache(maxsize=4096)
def parts_of(layout: Layout, mesh: Mesh) -> Parts | None:
    """The parts in which to store a weight; None if torch has a placement for the whole weight."""
    forward = layout.forward
    apart = nameless_dims(forward, mesh)
    if not apart:
        return None
    cuts, folds = [], []
    for dim, segments in forward.dims():
        plain = forward.dims().get((dim, ()))
        if dim in apart and segments and plain:
            folds.append((dim, len(segments), len(segments) // mesh.ways(plain)))
        elif dim in apart and segments:
            cuts.append((dim, segments))
    folded = [dim for dim, _, _ in folds]
    placements = [
        S(_place(placed, folded), () if placed.dim in apart else placed.segments) if placed.is_shard else placed
        for placed in forward.placements
    ]
    return Parts(tuple(cuts), tuple(folds), Layout.of(*placements, order=layout.order))


def _place(placed: Placement, folded: Sequence[int]) -> int:
    """The dim of a part that a placement of the whole shards."""
    before = sum(fold < placed.dim for fold in folded)
    return placed.dim + before + (bool(placed.segments) and placed.dim in folded)


def _apart(offsets: Offsets, block: Tensor, dim: int, size: int) -> Iterator[tuple[Offsets, Tensor]]:
    """The pieces of a block whose dims `dim` and the next one are which piece of `size`, and where in it."""
    for place in range(block.shape[dim]):
        start = (offsets[dim] + place) * size + offsets[dim + 1]
        yield (*offsets[:dim], start, *offsets[dim + 2 :]), block.select(dim, place)


def part_name(name: str, number: int) -> str:
    """The name of one part of the weight `name` in a model."""
    path, _, attribute = name.rpartition(".")
    return f"{path}{'.' * bool(path)}parametrizations.{attribute}.original{number}"


def part_names(name: str, parts: Parts) -> list[str]:
    """The names of all parts of the weight `name` in a model, in their order."""
    return [part_name(name, number) for number in range(parts.count)]
