"""The blocks of tensors that a process holds, as checkpoints have them.

Torch assumes that a process holds one block of a tensor. Under a plan it may hold several (of a fused q, k, v, for
instance), so every tensor lists its own blocks, by the protocol that torch has for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from shardplan.layout.mesh import Mesh
from shardplan.runtime.shards import Shard, runs_of
from shardplan.torch.placements import to_layout


class Blocks(Tensor):  # type: ignore[misc]
    """The blocks of a tensor that this process holds: `views` by their offsets. `origin`: the original tensor. It is a
    tensor subclass only because torch requires one; nothing computes with it."""

    views: Mapping[tuple[int, ...], Tensor]
    origin: Any

    @classmethod
    def of(cls, shape: torch.Size, views: Mapping[tuple[int, ...], Tensor], origin: Any, like: Tensor) -> Blocks:
        """`shape`: of the whole tensor; `like`: any tensor of its dtype."""
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)  # noqa: SLF001
        made.views, made.origin = views, origin
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del cls, types, args, kwargs
        raise NotImplementedError(f"{function} of blocks of a checkpoint")

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(offsets)), type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offsets), view.shape),
                    properties=TensorProperties.create_from_tensor(view), size=self.shape,
                ),
            )
            for offsets, view in self.views.items()
        ]  # fmt: skip

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offsets), view.shape) for offsets, view in self.views.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.views[tuple(index.offset or (0,) * len(self.shape))]


def blocks_of(stored: Any, mesh: Mesh) -> Any:
    """A tensor, or the tensors in which a fused weight is, and its `Parts`, as blocks of the whole. A tensor that every
    process has as it is stays so."""
    if not isinstance(stored, tuple):
        return _blocks_of_one(stored, mesh)
    *tensors, parts = stored
    views = {
        whole: piece
        for number, tensor in enumerate(tensors)
        for offsets, view in _blocks_of_one(tensor, mesh).views.items()
        for whole, piece in parts.blocks(number, offsets, view, tensor.shape)
    }
    shape = parts.join([torch.empty(tensor.shape, device="meta") for tensor in tensors]).shape
    return Blocks.of(shape, views, stored, tensors[0])


def _blocks_of_one(tensor: Any, mesh: Mesh) -> Any:
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    layout = to_layout(tensor.placements, mesh, tensor.shape)
    place = tensor.device_mesh.get_coordinate()
    if layout is None or place is None:
        return tensor.detach()
    shape = tuple(tensor.shape)
    shard = Shard("", 0, shape, "", runs_of(layout, mesh, shape, place))
    local = tensor.detach().to_local()
    views = {tuple(each.start for each in piece.source): local[piece.target] for piece in shard.pieces}
    return Blocks.of(tensor.shape, views, tensor, tensor)


def blocks_in(state: Any, mesh: Mesh) -> Any:
    """`state`, a dictionary of dictionaries, with blocks in place of its DTensors."""
    if isinstance(state, Mapping):
        return {key: blocks_in(value, mesh) for key, value in state.items()}
    return _blocks_of_one(state, mesh) if isinstance(state, DTensor) else state


def origins_of(state: Any, part: int = 0) -> Any:
    """`state` with the tensors that its blocks are of; of a fused weight in parts, those of one part, each with its own
    of what is one number."""
    if isinstance(state, Mapping):
        return {key: origins_of(value, part) for key, value in state.items()}
    if isinstance(state, Blocks):
        return state.origin[part] if isinstance(state.origin, tuple) else state.origin
    return state.clone() if part and isinstance(state, Tensor) else state
