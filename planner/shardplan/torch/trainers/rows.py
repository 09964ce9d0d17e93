"""Batches whose processes each read their own rows, for models under plans with other input layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils import _pytree as pytree

from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan
from shardplan.torch.arguments import match_inputs
from shardplan.torch.placements import to_placements
from shardplan.torch.with_loss import argument_names


def rows_of(mesh: Mesh, readers: int) -> tuple[Placement, ...] | None:
    """The placements of a batch that `readers` groups of processes, in the order of their ranks, have read the rows of;
    None where these groups are not those along the first axes of the mesh."""
    axes = next((count for count in range(len(mesh) + 1) if mesh.ways(range(count)) == readers), None)
    return None if axes is None else (Shard(0),) * axes + (Replicate(),) * (len(mesh) - axes)


def exchange_rows(model: nn.Module, plan: Plan, devices: DeviceMesh, readers: int) -> None:
    """Let `model`, which `plan` has been applied to, be called with the rows that this process has read, and return
    what belongs to them: plain tensors, whose gradients are those of a sum over all rows. `readers`: as in `rows_of`.
    """
    inputs = [tensor for tensor in plan.tensors if tensor.role == "input"]
    rows = rows_of(plan.mesh, readers)
    assert rows is not None, "whose rows are whose is no layout of the mesh"

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(argument_names(module, args, kwargs), args, strict=True)) | kwargs
        tensors = [name for name, value in given.items() if isinstance(value, Tensor)]
        partner = match_inputs(tensors, inputs)
        for name in tensors:
            batch = DTensor.from_local(given[name], devices, rows, run_check=False)
            given[name] = batch.redistribute(placements=to_placements(partner[name].layout, plan.mesh))
        return (), given

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        return pytree.tree_map(own, output)

    def own(result: Any) -> Any:
        if not isinstance(result, DTensor):
            return result
        return result.redistribute(placements=rows).to_local(grad_placements=rows)

    model.register_forward_pre_hook(torch.compiler.disable(enter), with_kwargs=True, prepend=True)
    model.register_forward_hook(torch.compiler.disable(leave))
