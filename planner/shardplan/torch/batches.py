"""Batches as DTensors in the layouts of the plan's inputs, and the part that each rank has to read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.legal import local_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.shards import Piece, shard_of
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.placements import wrap
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.with_loss import INPUT


def inputs(plan: Plan, mesh: DeviceMesh, batch: Mapping[str, Tensor], *, local: bool = False) -> dict[str, DTensor]:
    """The tensors of `batch` (argument of the model, as the plan calls it -> tensor) as DTensors in the layouts of the
    plan, under the same names.

    `local=False`: every process has the whole batch and keeps its part. `local=True`: every process has read only its
    part (see `part_of`). Nothing is sent. DTensors stay as they are.

    Raises `ShardplanError`: `pipeline-plan`, `unknown-input`, `missing-input`, `wrong-shape`.
    """
    refuse_stages(plan)
    groups = ProcessGroups(plan, mesh)
    planned = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "input"}
    known = {_asked_for(name, planned, batch): tensor for name, tensor in planned.items()}
    faults = [
        error("unknown-input", f"the plan has no input '{name}'", hint=did_you_mean(name, known) or _listed(known))
        for name in batch
        if name not in known
    ]
    faults += [error("missing-input", f"the batch has no '{name}'") for name in known if name not in batch]
    faults += [
        fault for name in batch if name in known for fault in _check(known[name], batch[name], groups, local=local)
    ]
    if faults:
        raise ShardplanError(*faults)
    return {name: _distributed(known[name], tensor, groups, local=local) for name, tensor in batch.items()}


def refuse_stages(plan: Plan) -> None:
    """Raises `ShardplanError` (`pipeline-plan`) for a plan with stages, whose inputs are those of several meshes."""
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages, which take their inputs themselves"
        hint = "call step and forward of shardplan.torch.pipeline(...) with the whole batch on every process"
        raise ShardplanError(error("pipeline-plan", summary, hint=hint))


def _asked_for(name: str, planned: Container[str], batch: Container[str]) -> str:
    """The name of an input in a batch: without the prefix `input.` of arguments that share a name with a tensor of the
    model."""
    short = name.removeprefix(INPUT)
    return short if short in batch and short not in planned and name not in batch else name


def part_of(plan: Plan, name: str, rank: int) -> tuple[Piece, ...]:
    """The part of input `name` that a rank's data loader has to read."""
    return shard_of(plan, name, rank).pieces


def _listed(known: Mapping[str, TensorDecision]) -> str:
    return f"its inputs are {', '.join(sorted(known))}"


def _check(decision: TensorDecision, tensor: Tensor, groups: ProcessGroups, *, local: bool) -> list[Diagnostic]:
    wanted = local_shape(decision.layout.forward, groups.mesh, decision.shape) if local else decision.shape
    if tuple(tensor.shape) == wanted:
        return []
    whose = "a process's part of " if local else ""
    summary = f"{whose}input '{decision.name}' has shape {list(tensor.shape)}, the plan is for {list(wanted)}"
    return [error("wrong-shape", summary, hint="solve again for this batch, or pad it")]


def _distributed(decision: TensorDecision, tensor: Tensor, groups: ProcessGroups, *, local: bool) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    part: Any = tensor.to(groups.device)
    layout = decision.layout.forward
    if not local:
        part = shard_of_whole(part, layout, groups)
    return wrap(torch.as_tensor(part), layout, decision.shape, groups)
