"""What a distributed checkpoint has, and what it is read into: checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._storage_utils import _storage_setup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error, reason_of
from shardplan.layout.mesh import Mesh
from shardplan.torch.optimizer_states import Weight, make_state, saved_names, target_state


def metadata_of(path: str | Path) -> Metadata:
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


def read_into(state: dict[str, Any], path: str | Path) -> None:
    """Fills `state`. Raises `ShardplanError` (`unreadable-checkpoint`)."""
    try:
        dcp.load(state, checkpoint_id=path)
    except CheckpointException as problem:
        first, _ = problem.failures[min(problem.failures)]
        raise ShardplanError(_unreadable(_reason(first), path)) from problem


def check_weights(weights: Mapping[str, Any], saved: Metadata, path: str | Path) -> None:
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


def optimizer_targets(
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


def optimizer_options(saved: Metadata, path: str | Path) -> dict[str, Any]:
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
