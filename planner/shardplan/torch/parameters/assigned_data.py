"""What is assigned to `parameter.data` between steps, where torch keeps it in sight of nobody.

The setter of torch changes what a `DTensor` says of itself and not its local tensor, so a program that assigns
(`weight.data = merged`, as adapters do that are merged into weights) goes on with the old numbers. While a plan is
applied to some model, DTensors on its mesh take the new ones.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from shardplan.errors import ShardplanError, error
from shardplan.torch.parameters.fused import Parts
from shardplan.torch.placements import like

_MESHES: weakref.WeakSet[Any] = weakref.WeakSet()
_JOINED = "_shardplan_joined"


def keep_assigned_data(mesh: DeviceMesh) -> None:
    """From now on `tensor.data = other` changes what DTensors on `mesh` hold.

    Raises `ShardplanError` (`wrong-shape`) then, where `other` is of another shape.
    """
    _MESHES.add(mesh)
    _register()


@functools.cache
def _register() -> None:
    DTensor.data = property(Tensor.data.__get__, _assign)


def joined(whole: DTensor, of: Sequence[DTensor], parts: Parts) -> DTensor:
    """`whole`, put together from tensors that are stored: what is assigned to its data is assigned to theirs."""
    setattr(whole, _JOINED, (of, parts))
    return whole


@torch.no_grad()  # type: ignore[untyped-decorator]
def _assign(stored: DTensor, given: Any) -> None:
    if not isinstance(given, Tensor) or stored.device_mesh not in _MESHES:
        Tensor.data.__set__(stored, given)
        return
    if given.shape != stored.shape:
        summary = f"the data of a parameter of shape {list(stored.shape)} is set to a tensor of {list(given.shape)}"
        hint = "a plan is for the shapes that it was made with: change the model, and plan again"
        raise ShardplanError(error("wrong-shape", summary, hint=hint))
    if hasattr(stored, _JOINED):
        tensors, parts = getattr(stored, _JOINED)
        for part, piece in zip(tensors, parts.split(given), strict=True):
            part.data = piece
        return
    made = like(stored, _local(stored, given.detach()).contiguous())
    Tensor.data.__set__(stored, made)
    stored._local_tensor, stored._spec = made._local_tensor, made._spec  # noqa: SLF001 - torch has no public way


def _local(stored: DTensor, given: Tensor) -> Tensor:
    """What this process is to hold. A plain tensor is whole, and the same on all processes."""
    if not isinstance(given, DTensor):
        given = distribute_tensor(given, stored.device_mesh, stored.placements, src_data_rank=None)
    elif given.placements != stored.placements:
        given = given.redistribute(placements=stored.placements)
    return given.to_local()
