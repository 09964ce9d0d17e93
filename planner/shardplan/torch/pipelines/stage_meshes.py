"""Device meshes of pipeline stages: one for each set of processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

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


def stage_meshes(pipeline: Pipeline, device_type: str) -> StageMeshes:
    """Meshes and groups; called by all processes together."""
    rank = int(dist.get_rank())
    sizes = {stage.first_device: stage.plan.mesh.size for stage in pipeline.stages}
    meshes = {}
    for stage in pipeline.stages:
        first = stage.first_device
        if first not in meshes:
            ranks = torch.arange(first, first + sizes[first]).view(stage.plan.mesh.shape)
            meshes[first] = DeviceMesh(device_type, ranks, mesh_dim_names=stage.plan.mesh.names)
    mine = next(first for first, size in sizes.items() if first <= rank < first + size)
    first_ranks = tuple(stage.first_device for stage in pipeline.stages)
    stage_numbers = tuple(number for number, first in enumerate(first_ranks) if first == mine)
    self_group = dist.new_group([rank], use_local_synchronization=True)
    return StageMeshes(first_ranks, stage_numbers, meshes[mine], self_group)
