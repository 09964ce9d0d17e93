"""Process groups of a plan's mesh: this process's coordinates, and its group along any set of mesh axes."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan
from shardplan.runtime.lookup import coordinates_of
from shardplan.torch.argument_types import check_mesh
from shardplan.torch.collectives.lanes import lanes_of

Purpose = Literal["backward", "update", "p2p", "check"]
"""What is sent: gradients, and what is gathered again for them; and outside of the forward and backward pass, updated
weights from the shards of the optimizer; tensors of other stages; signatures of moves, compared over processes."""
_PURPOSE: Final[ContextVar[Purpose | None]] = ContextVar("purpose", default=None)
_LANE: Final[ContextVar[str]] = ContextVar("lane", default="")
_MADE: Final[Counter[tuple[str, tuple[int, ...]]]] = Counter()
"""How many groups of a lane and of ranks this process has made."""


class ProcessGroups:
    """The mesh of a plan over processes. `first`: the process that is its rank 0; `rank`, `coordinates`: of this
    process in the mesh; `along(axes)`: the processes that differ only in `axes`."""

    def __init__(self, plan: Plan, device_mesh: DeviceMesh, first: int = 0) -> None:
        """Raises `ShardplanError`: `bad-argument`, and `wrong-mesh` for a mesh of other axes than the plan's."""
        check_mesh(device_mesh)
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
        self._groups: dict[tuple[str, tuple[int, ...]], tuple[ProcessGroup, tuple[int, ...]]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> ProcessGroups:
        """A copy of what communicates in these groups does so, too."""
        return self

    @classmethod
    def elsewhere(cls, plan: Plan, device_mesh: DeviceMesh) -> ProcessGroups:
        """Groups for rank 0 of a mesh that this process need not be in: to compute layouts there, not to communicate.
        `device_mesh`: any on the same kind of devices."""
        made = object.__new__(cls)
        made.mesh, made.device_mesh, made.first, made.rank = plan.mesh, device_mesh, 0, 0
        made.coordinates, made._groups = coordinates_of(plan.mesh, 0), {}
        return made

    @property
    def purpose(self) -> Purpose | None:
        """What this thread sends now; see `sending`."""
        return _PURPOSE.get()

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        kind = self.device_mesh.device_type
        if kind == "cpu":
            return torch.device("cpu")
        return torch.device(kind, torch.accelerator.current_device_index())

    @contextlib.contextmanager
    def sending(self, purpose: Purpose | None) -> Iterator[None]:
        """Context: this thread issues collectives for this purpose (None: those of the forward and backward pass)."""
        before = _PURPOSE.set(purpose)
        try:
            yield
        finally:
            _PURPOSE.reset(before)

    @contextlib.contextmanager
    def on_lane(self, lane: str) -> Iterator[None]:
        """Context: this thread uses the groups of a lane (see `shardplan.torch.collectives.lanes`)."""
        before = _LANE.set(lane)
        try:
            yield
        finally:
            _LANE.reset(before)

    def along(self, axes: tuple[int, ...]) -> tuple[ProcessGroup, tuple[int, ...]]:
        """The group of this process along `axes`, and its members as ranks of the mesh, in the group's order.

        A group of several axes, or of a lane, is made when it is first asked for, by its members together.
        """
        key = _LANE.get(), tuple(sorted(axes))
        if key not in self._groups:
            group = self._made(*key)
            self._groups[key] = (group, tuple(rank - self.first for rank in dist.get_process_group_ranks(group)))
        return self._groups[key]

    def _made(self, lane: str, axes: tuple[int, ...]) -> ProcessGroup:
        mine = next(ranks for ranks in self.mesh.groups(axes) if self.rank in ranks)
        members = tuple(self.first + rank for rank in mine)
        if not lane and len(axes) == 1:
            return self.device_mesh.get_group(axes[0])
        if not lane and len(members) == dist.get_world_size():
            return dist.group.WORLD
        shared = lanes_of(self.device_mesh, self.device).groups
        if (lane, members) not in shared:
            shared[lane, members] = _new_group(lane, members)
        return shared[lane, members]


def _new_group(lane: str, members: tuple[int, ...]) -> ProcessGroup:
    """A group that its members create together. torch names a group by the number of groups in its process, which may
    differ between members of pipeline stages: they would then wait for each other under different names."""
    number = _MADE[lane, members]
    _MADE[lane, members] += 1
    name = hashlib.sha1(f"shardplan {lane} {members} {number}".encode(), usedforsecurity=False).hexdigest()
    named = distributed_c10d._hash_ranks_to_str  # noqa: SLF001 - there is no public way to name a group
    distributed_c10d._hash_ranks_to_str = lambda ranks: name  # noqa: SLF001, ARG005 - put back below
    try:
        return dist.new_group(list(members), use_local_synchronization=True)
    finally:
        distributed_c10d._hash_ranks_to_str = named  # noqa: SLF001


def refuse_together(faults: Sequence[Diagnostic]) -> None:
    """Raises `ShardplanError` on all processes if one of them has found `faults`, so that none waits for the others.
    All processes have to call it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, tuple(faults))
    for theirs in filter(None, found):
        raise ShardplanError(*theirs)
