"""Where the stages of a pipeline run: a mesh for each, and which processes hand values to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardplan.plan.types import Pipeline, Stage
from shardplan.torch.grid import Grid


@dataclass(frozen=True)
class Places:
    """`firsts`: the first process of each stage; `numbers`: the stages that this process runs; `group`: of this process
    and those at its place in the other stages."""

    firsts: tuple[int, ...]
    numbers: tuple[int, ...]
    own: DeviceMesh
    group: dist.ProcessGroup

    def grid(self, stage: Stage) -> Grid:
        """The mesh of one of this process's stages."""
        return Grid(stage.plan, self.own, stage.first_device)

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        kind = self.own.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())

    def peer(self, stage: int) -> int:
        """The process at this one's place in another stage."""
        return self.firsts[stage] + int(dist.get_rank()) - self.firsts[self.numbers[0]]


def places_of(pipeline: Pipeline, device_type: str) -> Places:
    """Meshes and groups, made by all processes together. All stages have as many devices."""
    stages, rank = pipeline.stages, dist.get_rank()
    firsts = tuple(stage.first_device for stage in stages)
    size = stages[0].plan.mesh.size
    meshes = {}
    for stage in stages:
        if stage.first_device not in meshes:
            ranks = torch.arange(stage.first_device, stage.first_device + size).view(stage.plan.mesh.shape)
            meshes[stage.first_device] = DeviceMesh(device_type, ranks, mesh_dim_names=stage.plan.mesh.names)
    mine = rank - rank % size
    everyone = [[first + place for first in sorted(set(firsts))] for place in range(size)]
    group, _ = dist.new_subgroups_by_enumeration(everyone)
    numbers = tuple(number for number, first in enumerate(firsts) if first == mine)
    return Places(firsts, numbers, meshes[mine], group)
