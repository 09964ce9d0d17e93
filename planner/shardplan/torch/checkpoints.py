"""Distributed checkpoints (torch.distributed.checkpoint) of models under a plan and of their optimizers.

Torch assumes that a process holds one block of a tensor. Under a plan it may hold several (of a fused q, k, v, for
instance), so every tensor lists its own blocks, by the protocol that torch has for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor

from shardplan.layout.mesh import Mesh
from shardplan.runtime.shards import Shard, runs_of
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.pipelines.states import PipelineOptimizer, held_by_stage, written_here
from shardplan.torch.placements import to_layout
from shardplan.torch.state_dicts import stored_by_name


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


def save_checkpoint(
    path: str | Path, model: nn.Module | Pipeline, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Write what every process holds of `model`, and of the state of `optimizer`, into the folder `path`, once.

    Weights have the names and shapes of the module without a plan, so that `torch.distributed.checkpoint` reads them
    under any plan and without one. All processes have to call it.
    """
    state = _written_state(model, optimizer) if isinstance(model, Pipeline) else _state(model, optimizer)
    dcp.save(state, checkpoint_id=path)


def load_checkpoint(
    path: str | Path, model: nn.Module | Pipeline, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Fills `model`, and the state of `optimizer`, from what `save_checkpoint` wrote under this plan or another, on any
    number of processes. Every process reads what it keeps. All processes have to call it."""
    if isinstance(model, Pipeline):
        _load_stages(path, model, optimizer)
        return
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, _origins(state["optimizer"]))


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    mesh = applied_to(model).groups.mesh
    weights = {name: _joined(stored, mesh) for name, stored in stored_by_name(model)}
    if optimizer is None:
        return {"model": weights}
    return {"model": weights, "optimizer": _blocks_in(get_optimizer_state_dict(model, optimizer), mesh)}


def _written_state(pipeline: Pipeline, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """What this process writes of a pipeline: of every weight the first stage that has it."""
    meshes = {stage.number: stage.applied.groups.mesh for stage in pipeline.stages}
    written = list(written_here(pipeline, held_by_stage(pipeline)))
    state: dict[str, Any] = {"model": {name: _joined(stored, meshes[number]) for number, name, stored in written}}
    if optimizer is not None:
        given = PipelineOptimizer(pipeline, optimizer)
        own = {(number, name) for number, name, _ in written}
        of_weights = {
            name: _blocks_in(found, meshes[number])
            for number in meshes
            for name, found in given.of_stage(number).items()
            if (number, name) in own or name not in pipeline.names  # a part of a fused weight
        }
        state["optimizer"] = {"state": of_weights, "param_groups": given.groups()}
    return state


def _load_stages(path: str | Path, pipeline: Pipeline, optimizer: torch.optim.Optimizer | None) -> None:
    """Fills the stages of this process one after the other: two of them may have one weight. All processes have as
    many."""
    held = held_by_stage(pipeline)
    given = None if optimizer is None else PipelineOptimizer(pipeline, optimizer)
    filled: dict[int, Any] = {}
    groups = [] if given is None else given.groups()
    for stage in pipeline.stages:
        mesh = stage.applied.groups.mesh
        state: dict[str, Any] = {"model": {name: _joined(each, mesh) for name, each in held[stage.number].items()}}
        if given is not None:
            state["optimizer"] = {"state": _blocks_in(given.of_stage(stage.number), mesh), "param_groups": groups}
        dcp.load(state, checkpoint_id=path)
        if given is not None:
            filled[stage.number] = _origins(state["optimizer"]["state"])
            groups = state["optimizer"]["param_groups"]
    if given is not None:
        given.fill(filled, groups)


def _joined(stored: Any, mesh: Mesh) -> Any:
    """A tensor, or the tensors in which a fused weight is, with its parts, as blocks."""
    if not isinstance(stored, tuple):
        return _blocks(stored, mesh)
    *tensors, parts = stored
    views = {
        whole: piece
        for number, tensor in enumerate(tensors)
        for offsets, view in _blocks(tensor, mesh).views.items()
        for whole, piece in parts.blocks(number, offsets, view, tensor.shape)
    }
    shape = parts.join([torch.empty(tensor.shape, device="meta") for tensor in tensors]).shape
    return Blocks.of(shape, views, stored, tensors[0])


def _blocks(tensor: Any, mesh: Mesh) -> Any:
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


def _blocks_in(state: Any, mesh: Mesh) -> Any:
    if isinstance(state, Mapping):
        return {key: _blocks_in(value, mesh) for key, value in state.items()}
    return _blocks(state, mesh) if isinstance(state, DTensor) else state


def _origins(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _origins(value) for key, value in state.items()}
    return state.origin if isinstance(state, Blocks) else state
