"""Launch: the `DeviceMesh` of a plan over the processes of this job, and what is refused about the job."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.plan.types import Plan


def mesh(plan: Plan, device_type: str | None = None) -> DeviceMesh:
    """The plan's mesh over the processes of this job, its axes in the plan's order; ranks are row-major.

    `device_type`: `cuda`, `cpu` ...; by default that of the accelerator there is, else the CPU. The process group is
    made if there is none (by the environment of `torchrun`, with the backend torch prefers for the device).

    Raises `ShardplanError`: `wrong-world` (another number of processes than the mesh has devices), `wrong-host`
    (another number of processes per host than the plan places on one), `no-world` (no process group and no
    `torchrun`).
    """
    kind = device_type or _device_type()
    faults = _check_world(plan)
    if faults:
        raise ShardplanError(*faults)
    if kind != "cpu":
        _take_device(kind)
    return init_device_mesh(kind, plan.mesh.shape, mesh_dim_names=plan.mesh.names)


def _device_type() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else "cpu"


def _take_device(kind: str) -> None:
    """One device for each process of a host, unless the program has chosen one already."""
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is not None and torch.accelerator.current_accelerator() == torch.device(kind):
        torch.accelerator.set_device_index(int(local_rank))


def _check_world(plan: Plan) -> list[Diagnostic]:
    size = plan.mesh.size
    found = dist.get_world_size() if dist.is_initialized() else _environment("WORLD_SIZE")
    if found is None:
        summary = "there is no process group, and the environment names no WORLD_SIZE"
        hint = (
            f"start the program with torchrun --nproc-per-node N (in all {size} processes), or call init_process_group"
        )
        return [error("no-world", summary, hint=hint)]
    if found != size:
        summary = f"the plan is for {size} devices ({plan.mesh}), this job has {found} process{'es' * (found != 1)}"
        hint = f"start {size} processes, or solve again for {found} device{'s' * (found != 1)}"
        return [error("wrong-world", summary, hint=hint)]
    return _check_host(plan, found)


def _check_host(plan: Plan, world: int) -> list[Diagnostic]:
    """Axes within a machine must not reach over its border, nor may its border lie elsewhere than planned."""
    planned, found = devices_per_host(plan), _environment("LOCAL_WORLD_SIZE")
    if planned is None or found is None or found in {planned, world} or planned == world:
        return []
    processes = f"{found} process{'es' * (found != 1)}"
    summary = f"the plan places {planned} devices on a machine, this job runs {processes} on one"
    detail = ", ".join(
        f"axis {axis.name}={axis.size} over {link}" for axis, link in zip(plan.mesh.axes, plan.axis_links, strict=True)
    )
    hint = f"start {planned} processes per machine (torchrun --nproc-per-node {planned})"
    return [error("wrong-host", summary, detail=detail, hint=hint)]


def devices_per_host(plan: Plan) -> int | None:
    """How many devices of the plan's cluster share a machine: those below its outermost link; None for one level."""
    if len(set(plan.axis_links)) < 2:
        return None
    outermost = plan.axis_links[0]
    inner = [axis for axis, link in enumerate(plan.axis_links) if link != outermost]
    return plan.mesh.ways(inner)


def _environment(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
