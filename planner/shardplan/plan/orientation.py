"""Parameters in checkpoint orientation: dims as the checkpoint stores them, not as the graph reads them.

A graph tensor is the checkpoint tensor transposed by `perm`: graph dim i is checkpoint dim perm[i], so a shard of
graph dim i is a shard of checkpoint dim perm[i]. An empty `perm` is the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardplan.layout.layout import Layout
from shardplan.plan.types import TensorDecision


def checkpoint_tensor(tensor: TensorDecision) -> TensorDecision:
    """`tensor` with shape and layouts in checkpoint orientation."""
    if not tensor.perm:
        return tensor
    shape = checkpoint_shape(tensor.shape, tensor.perm)
    return _turned(replace(tensor, shape=shape), lambda layout: checkpoint_layout(layout, tensor.perm))


def graph_tensor(tensor: TensorDecision) -> TensorDecision:
    """The inverse of `checkpoint_tensor`."""
    if not tensor.perm:
        return tensor
    shape = graph_shape(tensor.shape, tensor.perm)
    return _turned(replace(tensor, shape=shape), lambda layout: graph_layout(layout, tensor.perm))


def _turned(tensor: TensorDecision, turn: Callable[[Layout], Layout]) -> TensorDecision:
    optimizer = None if tensor.optimizer is None else turn(tensor.optimizer)
    return replace(tensor, layout=turn(tensor.layout), served=turn(tensor.served), optimizer=optimizer)


def checkpoint_shape(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the checkpoint tensor whose transpose by `perm` has `shape`."""
    if not perm:
        return shape
    stored = [0] * len(shape)
    for graph_dim, checkpoint_dim in enumerate(perm):
        stored[checkpoint_dim] = shape[graph_dim]
    return tuple(stored)


def graph_shape(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the graph tensor made from a checkpoint tensor of `shape`."""
    return tuple(shape[dim] for dim in perm) if perm else shape


def checkpoint_layout(layout: Layout, perm: tuple[int, ...]) -> Layout:
    """The graph tensor's layout, in checkpoint orientation."""
    return _rename_dims(layout, lambda dim: perm[dim]) if perm else layout


def graph_layout(layout: Layout, perm: tuple[int, ...]) -> Layout:
    """The checkpoint tensor's layout, in graph orientation."""
    return _rename_dims(layout, perm.index) if perm else layout


def _rename_dims(layout: Layout, rename: Callable[[int], int]) -> Layout:
    placements = (replace(p, dim=rename(p.dim)) if p.is_shard else p for p in layout.placements)
    return Layout.of(*placements, order=layout.order)


def dim_axes(layout: Layout, rank: int, names: tuple[str, ...]) -> list[list[str]]:
    """Per dim, the names of the mesh axes that shard it, major first: `[["machine", "gpu"], []]`."""
    return [[names[axis] for axis in axes] for axes in dim_shards(layout, rank)]


def dim_shards(layout: Layout, rank: int) -> list[list[int]]:
    """Per dim, the positions of the mesh axes that shard it, major first: `[[0, 1], []]`."""
    axes: list[list[int]] = [[] for _ in range(rank)]
    for (dim, _), sharding in layout.dims().items():
        axes[dim] += sharding
    return axes


def dim_segments(layout: Layout) -> dict[str, list[int]]:
    """Dim -> sizes of the segments that are sharded each on its own, for the dims that have them."""
    return {str(dim): list(segments) for dim, segments in layout.dims() if segments}
