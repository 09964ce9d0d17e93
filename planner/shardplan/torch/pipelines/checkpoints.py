"""What the processes of a pipeline write into a distributed checkpoint, and read from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata

from shardplan.errors import Diagnostic, ShardplanError
from shardplan.torch.checkpoint_blocks import blocks_of
from shardplan.torch.checkpoint_reading import check_weights, optimizer_options, read_into
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.pipelines.states import Held, PipelineOptimizer, held_by_stage, written_here
from shardplan.torch.process_groups import refuse_together


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
            name: found
            for number in meshes
            for name, found in given.of_stage(number).items()
            if (number, name) in own or name not in pipeline.names  # a part of a fused weight
        }
        state["optimizer"] = {"state": of_weights, "param_groups": given.groups()}
    return state


def load_stages(path: str | Path, saved: Metadata, pipeline: Pipeline, optimizer: torch.optim.Optimizer | None) -> None:
    """Fills the stages of this process one after the other: two of them may have one weight. All processes have as
    many. Raises `ShardplanError` as `load_checkpoint`."""
    held = held_by_stage(pipeline)
    given = None if optimizer is None else PipelineOptimizer(pipeline, optimizer)
    before = {} if optimizer is None else dict(optimizer.state)
    try:
        read, options = _read(path, saved, pipeline, given, held)
    except BaseException:
        if optimizer is not None:
            optimizer.state.clear()
            optimizer.state.update(before)
        raise
    if given is not None:
        groups = unflatten_state_dict(options, saved.planner_data)["optimizer"]["param_groups"]
        given.fill(read, groups)


def _read(
    path: str | Path, saved: Metadata, pipeline: Pipeline, given: PipelineOptimizer | None, held: Mapping[int, Held]
) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Fills the weights of the stages; by stage what is read of the state of the optimizer, and its options."""
    targets: dict[int, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    weights = {
        stage.number: {name: blocks_of(each, stage.applied.groups.mesh) for name, each in held[stage.number].items()}
        for stage in pipeline.stages
    }
    faults: Sequence[Diagnostic] = ()
    try:
        for of_stage in weights.values():
            check_weights(of_stage, saved, path)
        if given is not None:
            targets, options = given.targets(saved, path), optimizer_options(saved, path)
    except ShardplanError as problem:
        faults = problem.diagnostics
    refuse_together(faults)
    for number, of_stage in weights.items():
        state = {"model": of_stage} | options
        if given is not None:
            state["optimizer"] = {"state": targets[number]}
        read_into(state, path)
        targets[number] = state.get("optimizer", {}).get("state", {})
        options = {key: state[key] for key in options}
    return targets, options
