"""Layouts of a plan as DTensor placements and back, such that `full_tensor()` gives the global tensor.

An order of axes within a dim other than the mesh's, and shards of every segment of a fused dim, are torch's
`_StridedShard`. Torch has no placement for segments of unequal sizes, or for segments that several axes shard, unless
one axis gives every device one whole segment, which the other cuts: these are two axes in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.layout.placement import Placement as Planned
from shardplan.torch.process_groups import ProcessGroups


def whole_of(value: Any) -> Any:
    """A DTensor put together, on all processes of its mesh, which all have to call it; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def to_placements(layout: Layout, mesh: Mesh) -> tuple[Placement, ...]:
    """The forward half of `layout`, one placement per mesh axis. `ValueError`, with the reason, if torch has none."""
    found = [_plain(placement) for placement in layout.forward.placements]
    for (dim, segments), axes in layout.forward.dims().items():
        for place, axis in enumerate(axes):
            before = [other for other in axes[:place] if other > axis]  # more major, but later in the mesh
            factor = mesh.ways(before) * _pieces(layout, mesh, dim, segments)
            found[axis] = _StridedShard(dim, split_factor=factor) if factor > 1 else Shard(dim)
    return tuple(found)


def nameless_dims(layout: Layout, mesh: Mesh) -> frozenset[int]:
    """The dims that `layout` shards as no placements of torch do."""
    found = set()
    for dim in {placement.dim for placement in layout.placements if placement.segments}:
        alone = [R if placement.is_shard and placement.dim != dim else placement for placement in layout.placements]
        try:
            to_placements(Layout.of(*alone, order=layout.order), mesh)
        except ValueError:
            found.add(dim)
    return frozenset(found)


def nameable(layout: Layout, mesh: Mesh) -> Layout:
    """`layout`, or where torch has no placements for it another one, in which more is replicated."""
    dims = nameless_dims(layout, mesh)
    placements = [R if placement.segments and placement.dim in dims else placement for placement in layout.placements]
    return Layout.of(*placements, order=layout.order)


def _pieces(layout: Layout, mesh: Mesh, dim: int, segments: tuple[int, ...]) -> int:
    """How many segments one device has of a dim, if they are sharded in a way that torch can express."""
    if not segments:
        return 1
    axes = [axis for axis in layout.forward.dims()[dim, segments] if mesh.shape[axis] > 1]
    plain = layout.forward.dims().get((dim, ()), ())
    if len(set(segments)) > 1:
        raise ValueError(f"dim {dim} is sharded in segments of unequal sizes {list(segments)}")
    later = [other for axis in axes for other in plain if other > axis]
    if len(axes) > 1 or (later and (later != list(plain) or mesh.ways(later) != len(segments))):
        raise ValueError(f"several axes shard dim {dim}, which consists of segments")
    return len(segments) // mesh.ways([other for other in plain if other not in later])


def _plain(placement: Planned) -> Placement:
    if placement.kind == "P":
        return Partial(placement.reduction)
    return Shard(placement.dim) if placement.is_shard else Replicate()


def to_layout(placements: Sequence[Placement], mesh: Mesh, shape: Sequence[int]) -> Layout | None:
    """The layout that DTensor placements mean; None if the plan's algebra has no name for them."""
    found, order = [], list(range(len(mesh)))
    for axis, placement in enumerate(placements):
        if isinstance(placement, _StridedShard):
            axes = [a for a, other in enumerate(placements) if a > axis and other == Shard(placement.dim)]
            factor, dim = int(placement.split_factor), placement.dim % len(shape)
            if factor == mesh.ways(axes):
                found.append(S(dim))
                order.remove(axis)
                order.insert(order.index(axes[-1]) + 1, axis)
            elif not axes and shape[dim] % factor == 0:
                before = [a for a, other in enumerate(placements) if a < axis and other == Shard(placement.dim)]
                pieces = factor * mesh.ways(before)
                found.append(S(dim, (shape[dim] // pieces,) * pieces))
            else:
                return None
        elif isinstance(placement, Shard):
            found.append(S(placement.dim % len(shape)))
        elif isinstance(placement, Partial):
            if placement.reduce_op not in {"sum", "max", "min"}:
                return None
            found.append(P(placement.reduce_op))
        else:
            found.append(R)
    return Layout.of(*found, order=order)


def wrap(
    local: torch.Tensor,
    layout: Layout,
    shape: Sequence[int],
    groups: ProcessGroups,
    *,
    gradient: Layout | None = None,
) -> DTensor:
    """The DTensor of global `shape` of which this process holds `local`; differentiable as `DTensor.from_local` is.

    `gradient`: the plain layout in which its gradient comes back, if not as torch has it.
    """
    placements = to_placements(layout, groups.mesh)
    back = None if gradient is None else to_placements(gradient, groups.mesh)
    return from_local(local, groups.device_mesh, placements, shape, grad_placements=back)


def like(tensor: DTensor, local: torch.Tensor, shape: Sequence[int] | None = None) -> DTensor:
    """A DTensor of `local` on the mesh and with the placements of `tensor`; of another global `shape` if given."""
    return from_local(local, tensor.device_mesh, tensor.placements, tensor.shape if shape is None else shape)


def from_local(
    local: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    *,
    grad_placements: Sequence[Placement] | None = None,
) -> DTensor:
    """`DTensor.from_local` of a contiguous tensor of global `shape`, without checks that communicate."""
    whole = torch.empty(tuple(shape), device="meta")
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride(),
        grad_placements=grad_placements,
    )  # fmt: skip
