"""The shard of a rank: the slices of the whole tensor that it holds, and their places in its local tensor.

A dim that is not sharded is one run, a sharded dim the run of this rank, a segmented dim (a fused q, k, v) one run for
each segment. The shard is the product of the runs of all dims, in order; every combination of runs is one `Piece`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardplan.layout.layout import Layout
from shardplan.layout.legal import tile
from shardplan.layout.mesh import Mesh
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import Plan
from shardplan.runtime.lookup import coordinates_of, find_tensor

Run = tuple[int, int]
"""Half-open range of indices of one dim."""
Runs = tuple[tuple[Run, ...], ...]
Form = Literal["kept", "served"]


@dataclass(frozen=True, slots=True)
class Piece:
    """`whole[source]` is `local[target]`; both index every dim, with explicit bounds."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """What `rank` holds of `tensor` (checkpoint name of a parameter, else value name) of whole `shape`.

    `runs`: per dim, in local order. `replica`: which of the equal copies this is; 0 for exactly one rank of those that
    hold the same, so that writing the shards of replica 0 writes everything once. `partial`: the values are still to be
    combined with those of other ranks.
    """

    tensor: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    runs: Runs
    replica: int = 0
    partial: bool = False

    @property
    def local_shape(self) -> tuple[int, ...]:
        return tuple(sum(stop - start for start, stop in runs) for runs in self.runs)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The smallest list of slices, in row-major order of their places in the local tensor."""
        dims = [_placed(runs) for runs in self.runs]
        return tuple(
            Piece(tuple(source for source, _ in chosen), tuple(target for _, target in chosen))
            for chosen in itertools.product(*dims)
        )


def slices(plan: Plan, tensor: str, rank: int, form: Form = "kept") -> tuple[Piece, ...]:
    """What `rank` holds of `tensor`: pairs of slices of the whole tensor and of the local one.

    `tensor`: a checkpoint name, an alias or a value of the graph; parameters have their dims as the checkpoint stores
    them. `form`: the layout in which the tensor is kept, or the one in which it is served to its readers (gathered).
    One piece for an ordinary shard, several for a fused dim.

    Raises `ShardplanError` (`unknown-tensor`, `unknown-rank`).
    """
    return shard_of(plan, tensor, rank, form).pieces


def shard_of(plan: Plan, tensor: str, rank: int, form: Form = "kept") -> Shard:
    """The same with shapes, element type and copy number."""
    place = coordinates_of(plan.mesh, rank)
    decision = find_tensor(plan, tensor)
    layout = checkpoint_layout(decision.layout if form == "kept" else decision.served, decision.perm)
    shape = checkpoint_shape(decision.shape, decision.perm)
    return Shard(
        tensor=decision.checkpoint or decision.name,
        rank=rank,
        shape=shape,
        dtype=decision.dtype,
        runs=runs_of(layout, plan.mesh, shape, place),
        replica=replica_of(layout, plan.mesh, place),
        partial=any(placement.kind == "P" for placement in layout.placements),
    )


def runs_of(layout: Layout, mesh: Mesh, shape: Sequence[int], coordinates: Sequence[int]) -> Runs:
    """Per dim of a tensor of `shape`, what the device at `coordinates` holds; adjacent runs are merged.

    `ValueError` if the layout is illegal for the shape.
    """
    return tuple(_joined(runs) for runs in tile(layout.forward, mesh, shape, coordinates))


def replica_of(layout: Layout, mesh: Mesh, coordinates: Sequence[int]) -> int:
    """The number of a device among those that hold the same part, row-major over the axes that do not shard."""
    copies = [axis for axis, placement in enumerate(layout.placements) if not placement.is_shard]
    return mesh.number(copies, coordinates)


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    found: list[Run] = []
    for start, stop in runs:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _placed(runs: Sequence[Run]) -> list[tuple[slice, slice]]:
    """Every run as a slice of the whole dim and of the local one."""
    placed, offset = [], 0
    for start, stop in runs:
        placed.append((slice(start, stop), slice(offset, offset + stop - start)))
        offset += stop - start
    return placed
