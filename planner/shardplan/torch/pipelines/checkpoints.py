"""What the processes of a pipeline write into a distributed checkpoint, and read from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from shardplan.torch.checkpoint_blocks import blocks_in, blocks_of, origins_of
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.pipelines.states import PipelineOptimizer, held_by_stage, written_here


def written_state(pipeline: Pipeline, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """What this process writes of a pipeline: of every weight the first stage that has it. All processes have to call
    it."""
    meshes = {stage.number: stage.applied.groups.mesh for stage in pipeline.stages}
    written = list(written_here(pipeline, held_by_stage(pipeline)))
    state: dict[str, Any] = {"model": {name: blocks_of(stored, meshes[number]) for number, name, stored in written}}
    if optimizer is not None:
        given = PipelineOptimizer(pipeline, optimizer)
        own = {(number, name) for number, name, _ in written}
        of_weights = {
            name: blocks_in(found, meshes[number])
            for number in meshes
            for name, found in given.of_stage(number).items()
            if (number, name) in own or name not in pipeline.names  # a part of a fused weight
        }
        state["optimizer"] = {"state": of_weights, "param_groups": given.groups()}
    return state


def load_stages(path: str | Path, pipeline: Pipeline, optimizer: torch.optim.Optimizer | None) -> None:
    """Fills the stages of this process one after the other: two of them may have one weight. All processes have as
    many."""
    held = held_by_stage(pipeline)
    given = None if optimizer is None else PipelineOptimizer(pipeline, optimizer)
    filled: dict[int, Any] = {}
    groups = [] if given is None else given.groups()
    for stage in pipeline.stages:
        mesh = stage.applied.groups.mesh
        state: dict[str, Any] = {"model": {name: blocks_of(each, mesh) for name, each in held[stage.number].items()}}
        if given is not None:
            state["optimizer"] = {"state": blocks_in(given.of_stage(stage.number), mesh), "param_groups": groups}
        dcp.load(state, checkpoint_id=path)
        if given is not None:
            filled[stage.number] = origins_of(state["optimizer"]["state"])
            groups = state["optimizer"]["param_groups"]
    if given is not None:
        given.fill(filled, groups)
