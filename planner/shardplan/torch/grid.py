"""The mesh of a plan as processes: torch's `DeviceMesh`, the place of this process in it, and its groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan
from shardplan.runtime.lookup import coordinates_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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


Purpose = Literal["update", "handover"]
"""What is sent beside the forward and backward pass: new weights from where the optimizer made them; values handed on
by another stage."""


class Grid:
    """The mesh of a plan as this process sees it. `first`: the process that its rank 0 is; `rank`, `coordinates`: the
    place of this process in it; `group(axes)`: those that differ only in `axes`; `purpose`: see `sending`."""

    def __init__(self, plan: Plan, device_mesh: DeviceMesh, first: int = 0) -> None:
        """Raises `ShardplanError` (`wrong-mesh`) for a mesh of other axes than the plan's."""
        names = tuple(device_mesh.mesh_dim_names or ())
        if tuple(device_mesh.shape) != plan.mesh.shape or (names and names != plan.mesh.names):
            shape = " x ".join(f"{name}={size}" for name, size in zip(names, device_mesh.shape, strict=False))
            summary = f"the mesh is {shape or tuple(device_mesh.shape)}, the plan's is {plan.mesh}"
            raise ShardplanError(error("wrong-mesh", summary, hint="make it with shardplan.torch.mesh(plan)"))
        if device_mesh.mesh.flatten().tolist() != list(range(first, first + plan.mesh.size)):
            summary = f"the mesh orders its ranks differently than the plan, whose ranks are row-major from {first}"
            raise ShardplanError(error("wrong-mesh", summary, hint="make it with shardplan.torch.mesh(plan)"))
        self.mesh: Mesh = plan.mesh
        self.device_mesh = device_mesh
        self.first, self.rank = first, dist.get_rank() - first
        self.coordinates = coordinates_of(plan.mesh, self.rank)
        self.purpose: Purpose | None = None
        self._groups: dict[tuple[int, ...], tuple[ProcessGroup, tuple[int, ...]]] = {}

    @classmethod
    def elsewhere(cls, plan: Plan, device_mesh: DeviceMesh) -> Grid:
        """The first place of a mesh that this process need not be in: to work out what is done there, not to do it.
        `device_mesh`: any on the same kind of devices."""
        made = object.__new__(cls)
        made.mesh, made.device_mesh, made.first, made.rank = plan.mesh, device_mesh, 0, 0
        made.coordinates, made._groups = coordinates_of(plan.mesh, 0), {}
        made.purpose = None
        return made

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        kind = self.device_mesh.device_type
        if kind == "cpu":
            return torch.device("cpu")
        return torch.device(kind, torch.accelerator.current_device_index())

    @contextlib.contextmanager
    def sending(self, purpose: Purpose) -> Iterator[None]:
        """While something is sent for this purpose."""
        self.purpose = purpose
        try:
            yield
        finally:
            self.purpose = None

    def group(self, axes: tuple[int, ...]) -> tuple[ProcessGroup, tuple[int, ...]]:
        """The group of this process along `axes` and its ranks, in the mesh, in the group's order.

        A group of several axes is made when it is first asked for, by its members together.
        """
        key = tuple(sorted(axes))
        if key not in self._groups:
            members = next(ranks for ranks in self.mesh.groups(key) if self.rank in ranks)
            if len(key) == 1:
                group = self.device_mesh.get_group(key[0])
            elif len(members) == dist.get_world_size():
                group = dist.group.WORLD
            else:
                group = dist.new_group([self.first + rank for rank in members], use_local_synchronization=True)
            self._groups[key] = (group, tuple(rank - self.first for rank in dist.get_process_group_ranks(group)))
        return self._groups[key]
