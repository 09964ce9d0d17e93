"""Distributed checkpoints (torch.distributed.checkpoint) of models under a plan and of their optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint._storage_utils import _storage_setup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error, reason_of
from shardplan.layout.mesh import Mesh
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.checkpoint_blocks import blocks_of
from shardplan.torch.optimizer_states import (
    Weight,
    loaded,
    make_state,
    saved_names,
    state_by_name,
    state_that_was_read,
    target_state,
    weights_of,
)
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
        state["optimizer"] = state_by_name(optimizer, weights_of(model, optimizer), mesh)
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
    saved = _metadata(path)
    if isinstance(model, Pipeline):
        load_stages(path, model, optimizer)
        return
    mesh = applied_to(model).groups.mesh
    state: dict[str, Any] = {"model": _weights(model, mesh)}
    _check_weights(state["model"], saved, path)
    if optimizer is None:
        _read(state, path)
        return
    weights, before = weights_of(model, optimizer), dict(optimizer.state)
    try:
        state["optimizer"] = {"state": _targets(optimizer, weights, saved, mesh, path)}
        options = _options(saved, path)
        state |= options
        _read(state, path)
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


def _metadata(path: str | Path) -> Metadata:
    """What is in a checkpoint. Raises `ShardplanError` (`unreadable-checkpoint`) on all processes, if one of them
    cannot read it."""
    found, fault = None, None
    try:
        reader: Any = _storage_setup(None, path, reader=True)
        found = reader.read_metadata()
    except FileNotFoundError as problem:
        is_folder = Path(path).is_dir()
        reason = "there is no checkpoint of save_checkpoint in this folder" if is_folder else reason_of(problem)
        fault = _unreadable(reason, path)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the other processes wait to hear of it
        fault = _unreadable(_reason(problem), path)
    faults: list[Diagnostic | None] = [None] * dist.get_world_size()
    dist.all_gather_object(faults, fault)
    if any(faults):
        raise ShardplanError(next(filter(None, faults)))
    return found


def _unreadable(reason: str, path: str | Path) -> Diagnostic:
    hint = "give it the folder of save_checkpoint; safetensors files are read by shardplan.torch.load_"
    return error("unreadable-checkpoint", f"cannot read the checkpoint: {reason}", file=str(path), hint=hint)


def _reason(problem: BaseException) -> str:
    said = str(problem).strip().splitlines() or [""]
    return reason_of(problem) if isinstance(problem, OSError) else f"{type(problem).__name__}: {said[0]}"


def _read(state: dict[str, Any], path: str | Path) -> None:
    """Fills `state`. Raises `ShardplanError` (`unreadable-checkpoint`)."""
    try:
        dcp.load(state, checkpoint_id=path)
    except CheckpointException as problem:
        first, _ = problem.failures[min(problem.failures)]
        raise ShardplanError(_unreadable(_reason(first), path)) from problem


def _check_weights(weights: Mapping[str, Any], saved: Metadata, path: str | Path) -> None:
    """Raises `ShardplanError`: `missing-weight`, `wrong-weight-shape`."""
    there = {key.removeprefix("model."): held for key, held in saved.state_dict_metadata.items()}
    faults: list[Diagnostic] = []
    for name, weight in weights.items():
        if name not in there:
            summary = f"the checkpoint has no tensor '{name}'"
            faults.append(error("missing-weight", summary, file=str(path), hint=did_you_mean(name, there)))
        elif isinstance(there[name], TensorStorageMetadata) and there[name].size != weight.shape:
            shapes = f"{list(there[name].size)} in the checkpoint, the model has {list(weight.shape)}"
            faults.append(error("wrong-weight-shape", f"'{name}' has shape {shapes}", file=str(path)))
    if faults:
        raise ShardplanError(*faults)


def _targets(
    optimizer: torch.optim.Optimizer, weights: list[Weight], saved: Metadata, mesh: Mesh, path: str | Path
) -> dict[str, Any]:
    """What the state that was saved is to be read into, by its names. Raises `ShardplanError`: `missing-state`,
    `another-state`, `state-in-parts`."""
    there: dict[str, set[str]] = {}
    for kind, *rest in _of_optimizer(saved, path).values():
        if kind == "state":
            there.setdefault(rest[0], set()).add(str(rest[1]))
    names = [(weight, saved_names(weight, there)) for weight in weights]
    kept = [each for weight, found in names if found for each in weight.stored]
    asked = {id(each) for group in optimizer.param_groups for each in group["params"]}
    lacking = [each for each in kept if id(each) in asked and not optimizer.state.get(each)]
    if lacking:
        make_state(optimizer, lacking)
    made: dict[str, Any] = {}
    for weight, found in names:
        made |= target_state(optimizer, weight, found, mesh) if found else {}
    for name, state in made.items():
        if {*map(str, state)} != there[name]:
            has, keeps = (", ".join(sorted(map(str, each))) or "nothing" for each in (there[name], state))
            summary = f"of '{name}' the checkpoint has {has}; {type(optimizer).__name__} keeps {keeps}"
            hint = "make the optimizer as the one that was saved: of the same class, with the same options"
            raise ShardplanError(error("another-state", summary, file=str(path), hint=hint))
    return made


def _options(saved: Metadata, path: str | Path) -> dict[str, Any]:
    """What the options of the optimizer are to be read into, by their keys in the checkpoint."""
    found: dict[str, Any] = {}
    for key, (kind, *_) in _of_optimizer(saved, path).items():
        if kind == "param_groups":
            held = saved.state_dict_metadata[key]
            is_tensor = isinstance(held, TensorStorageMetadata)
            found[key] = torch.empty(held.size, dtype=held.properties.dtype) if is_tensor else None
    return found


def _of_optimizer(saved: Metadata, path: str | Path) -> dict[str, tuple[Any, ...]]:
    """The keys of an optimizer in a checkpoint, and where in `state_by_name` they are. Raises `ShardplanError`
    (`missing-state`)."""
    planned: Mapping[str, tuple[Any, ...]] = saved.planner_data or {}
    found = {key: place[1:] for key, place in planned.items() if place[0] == "optimizer"}
    if not found:
        hint = "save it as well: save_checkpoint(folder, model, optimizer), or load the model alone"
        raise ShardplanError(
            error("missing-state", "the checkpoint has no state of an optimizer", file=str(path), hint=hint)
        )
    return found
