"""Where the stages of a pipeline run: a mesh for each part of the processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardplan.plan.types import Pipeline, Stage
from shardplan.torch.grid import Grid


@dataclass(frozen=True)
class Places:
    """`firsts`: the first process of each stage; `numbers`: the stages that this process runs; `own`: its mesh;
    `alone`: a group of this process."""

    firsts: tuple[int, ...]
    numbers: tuple[int, ...]
    own: DeviceMesh
    alone: dist.ProcessGroup

    def grid(self, stage: Stage) -> Grid:
        """The mesh of one of this process's stages."""
        return Grid(stage.plan, self.own, stage.first_device)

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        kind = self.own.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())


def places_of(pipeline: Pipeline, device_type: str) -> Places:
    """Meshes and groups, made by all processes together."""
    rank = int(dist.get_rank())
    sizes = {stage.first_device: stage.plan.mesh.size for stage in pipeline.stages}
    meshes = {}
    for stage in pipeline.stages:
        first = stage.first_device
        if first not in meshes:
            ranks = torch.arange(first, first + sizes[first]).view(stage.plan.mesh.shape)
            meshes[first] = DeviceMesh(device_type, ranks, mesh_dim_names=stage.plan.mesh.names)
    mine = next(first for first, size in sizes.items() if first <= rank < first + size)
    firsts = tuple(stage.first_device for stage in pipeline.stages)
    numbers = tuple(number for number, first in enumerate(firsts) if first == mine)
    alone = dist.new_group([rank], use_local_synchronization=True)
    return Places(firsts, numbers, meshes[mine], alone)
