"""Fused weights that torch has no placement for: each of their parts is a parameter of its own.

A packed q, k, v of grouped queries has parts of unequal sizes, which `DTensor` cannot shard each on its own; nor can it
shard the parts of one dim over several axes. The parts alone it can. So the weight becomes what torch calls
parametrized: `qkv.weight` is put together from `qkv.parametrizations.weight.original0`, `original1` ..., each a DTensor
whose `full_tensor()` is that part of the checkpoint's tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import S
from shardplan.torch.placements import to_placements


@dataclass(frozen=True)
class Parts:
    """The parts of a weight: sizes along `dim` of the whole; the layout of each, as all of them are sharded alike."""

    dim: int
    sizes: tuple[int, ...]
    layout: Layout

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        """The parts of a whole tensor."""
        return list(torch.split(whole, self.sizes, self.dim))

    def split_local(self, local: Tensor) -> Sequence[Tensor]:
        """What one process holds of each part, of what it holds of the whole."""
        ways = sum(self.sizes) // local.shape[self.dim]
        return list(torch.split(local, [size // ways for size in self.sizes], self.dim))

    def join(self, locals_: Sequence[Tensor]) -> Tensor:
        """What one process holds of the whole: its pieces of all parts, one after the other."""
        return torch.cat(list(locals_), self.dim)


@functools.lru_cache(maxsize=4096)
def parts_of(layout: Layout, mesh: Mesh) -> Parts | None:
    """The parts in which to store a weight; None if torch has a placement for the whole weight.

    Raises `ValueError`, with the reason, if it has a placement for neither.
    """
    try:
        to_placements(layout, mesh)
    except ValueError:
        shards = [placement for placement in layout.forward.placements if placement.is_shard]
        fused = {(placement.dim, placement.segments) for placement in shards if placement.segments}
        dim, sizes = min(fused)
        if len(fused) > 1 or any(placement.dim == dim and not placement.segments for placement in shards):
            raise
        apart = [S(dim) if placement.segments else placement for placement in layout.forward.placements]
        made = Layout.of(*apart, order=layout.order)
        to_placements(made, mesh)
        return Parts(dim, sizes, made)
    return None


def part_name(name: str, number: int) -> str:
    """The name of one part of the weight `name` in a model."""
    path, _, attribute = name.rpartition(".")
    return f"{path}{'.' * bool(path)}parametrizations.{attribute}.original{number}"
