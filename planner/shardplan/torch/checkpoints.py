"""Distributed checkpoints (torch.distributed.checkpoint) of models under a plan and of their optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

from shardplan.layout.mesh import Mesh
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.checkpoint_blocks import blocks_of
from shardplan.torch.checkpoint_reading import (
    check_weights,
    metadata_of,
    optimizer_options,
    optimizer_targets,
    read_into,
)
from shardplan.torch.optimizer_states import groups_of, loaded, state_by_name, state_that_was_read, weights_of
from shardplan.torch.pipelines.checkpoints import load_stages, written_state
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.state_dicts import stored_by_name


def save_checkpoint(
    path: str | Path, model: nn.Module | Pipeline, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Write what every process holds of `model`, and of the state of `optimizer`, into the folder `path`, once.

    Weights have the names and shapes of the module without a plan, so that `torch.distributed.checkpoint` reads them
    under any plan and without one. All processes have to call it.

    Raises `ShardplanError`: `not-parallel`, `foreign-parameter` (an optimizer of another model), `refused-optimizer`.
    """
    if isinstance(model, Pipeline):
        dcp.save(written_state(model, optimizer), checkpoint_id=path)
        return
    mesh = applied_to(model).groups.mesh
    state: dict[str, Any] = {"model": _weights(model, mesh)}
    if optimizer is not None:
        weights = weights_of(model, optimizer)
        state["optimizer"] = {
            "state": state_by_name(optimizer, weights, mesh),
            "param_groups": groups_of(optimizer, weights),
        }
    dcp.save(state, checkpoint_id=path)


def load_checkpoint(
    path: str | Path, model: nn.Module | Pipeline, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Fills `model`, and the state of `optimizer`, from what `save_checkpoint` wrote under this plan or another, on any
    number of processes. Every process reads what it keeps. All processes have to call it. Parameters that had no state
    then have none now.

    Raises `ShardplanError`, on all processes: `unreadable-checkpoint`, `missing-weight`, `wrong-weight-shape`,
    `missing-state`, `another-state` (the state is of an optimizer of another kind), `state-in-parts`, and as
    `save_checkpoint`.
    """
    saved = metadata_of(path)
    if isinstance(model, Pipeline):
        load_stages(path, saved, model, optimizer)
        return
    mesh = applied_to(model).groups.mesh
    state: dict[str, Any] = {"model": _weights(model, mesh)}
    check_weights(state["model"], saved, path)
    if optimizer is None:
        read_into(state, path)
        return
    weights, before = weights_of(model, optimizer), dict(optimizer.state)
    try:
        state["optimizer"] = {"state": optimizer_targets(optimizer, weights, saved, mesh, path)}
        options = optimizer_options(saved, path)
        state |= options
        read_into(state, path)
    except BaseException:
        optimizer.state.clear()
        optimizer.state.update(before)
        raise
    read = state["optimizer"]["state"]
    states = dict(pair for weight in weights for pair in state_that_was_read(weight, read))
    found = unflatten_state_dict({key: state[key] for key in options}, saved.planner_data)
    optimizer.load_state_dict(loaded(optimizer, weights, states, found["optimizer"]["param_groups"]))


def _weights(model: nn.Module, mesh: Mesh) -> dict[str, Any]:
    return {name: blocks_of(stored, mesh) for name, stored in stored_by_name(model)}
