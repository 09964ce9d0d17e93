"""Device meshes of pipeline stages: one for each set of processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Pipeline, Stage
from shardplan.torch.process_groups import ProcessGroups


@dataclass(frozen=True)
class StageMeshes:
    """`first_ranks`: the first process of each stage; `stage_numbers`: the stages of this process; `own`: its mesh;
    `self_group`: a process group of this process alone."""

    first_ranks: tuple[int, ...]
    stage_numbers: tuple[int, ...]
    own: DeviceMesh
    self_group: dist.ProcessGroup

    def groups(self, stage: Stage) -> ProcessGroups:
        """The process groups of one of this process's stages."""
        return ProcessGroups(stage.plan, self.own, stage.first_device)

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        kind = self.own.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def stage_meshes(pipeline: Pipeline, mesh: DeviceMesh) -> StageMeshes:
    """Meshes and groups of the stages on `mesh`; called by all processes together. Pipelines on one mesh share those of
    equal stages: a group costs threads or a communicator as long as its process lives."""
    rank = int(dist.get_rank())
    made = mesh.__dict__.setdefault("_shardplan_stages", _Made())
    sizes = {stage.first_device: stage.plan.mesh.size for stage in pipeline.stages}
    meshes = {}
    for stage in pipeline.stages:
        first = stage.first_device
        if first not in meshes:
            meshes[first] = made.mesh(mesh.device_type, first, stage.plan.mesh)
    mine = next(first for first, size in sizes.items() if first <= rank < first + size)
    first_ranks = tuple(stage.first_device for stage in pipeline.stages)
    stage_numbers = tuple(number for number, first in enumerate(first_ranks) if first == mine)
    return StageMeshes(first_ranks, stage_numbers, meshes[mine], made.self_group(rank))


class _Made:
    """Meshes of stages and the group of this process alone, as far as they were asked for."""

    def __init__(self) -> None:
        self._meshes: dict[tuple[int, Mesh], DeviceMesh] = {}
        self._self_group: dist.ProcessGroup | None = None

    def __deepcopy__(self, memo: object) -> _Made:
        """The same: a copy of a mesh has the same processes."""
        return self

    def mesh(self, device_type: str, first: int, shape: Mesh) -> DeviceMesh:
        """That of the processes from `first` on."""
        if (first, shape) not in self._meshes:
            ranks = torch.arange(first, first + shape.size).view(shape.shape)
            self._meshes[first, shape] = DeviceMesh(device_type, ranks, mesh_dim_names=shape.names)
        return self._meshes[first, shape]

    def self_group(self, rank: int) -> dist.ProcessGroup:
        """That of this process alone."""
        if self._self_group is None:
            self._self_group = dist.new_group([rank], use_local_synchronization=True)
        return self._self_group
