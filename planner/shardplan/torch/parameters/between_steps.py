"""What a program does to parameters between steps, where torch would forget it in silence.

A program that assigns (`weight.data = merged`, as adapters do that are merged into weights) goes on with the old
numbers: torch changes what a `DTensor` says of itself, and not its local tensor. What it writes into a part
(`weight[0] = 0.0`) is written into a copy. While a plan is applied to some model, DTensors on its mesh take both; what
is changed in a part by other functions (`weight[0].zero_()`) is refused when the next forward pass begins.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.utils._pytree import tree_map_only

from shardplan.errors import ShardplanError, error
from shardplan.torch.parameters.fused import Parts
from shardplan.torch.placements import from_local, like

_MESHES: weakref.WeakSet[Any] = weakref.WeakSet()
_COPIES: list[tuple[Any, DTensor]] = []
"""Parts of parameters that are copies: a weak reference, and a tensor without entries of the same version."""
_JOINED, _DATA = "_shardplan_joined", "_shardplan_data"
_VIEWS = (
    "__getitem__", "narrow", "select", "chunk", "split", "unbind", "diagonal", "view", "reshape", "flatten", "ravel",
    "unflatten", "detach", "t", "transpose", "permute", "squeeze", "unsqueeze",
)  # fmt: skip
"""Methods that give views of a tensor, which programs change in place."""


def keep_changes(mesh: DeviceMesh) -> None:
    """From now on DTensors on `mesh` take what is assigned to their data and to parts of them.

    Raises `ShardplanError` (`wrong-shape`) then, where their data is set to a tensor of another shape.
    """
    _MESHES.add(mesh)
    _register()


@functools.cache
def _register() -> None:
    DTensor.data = property(_data, _assign)
    DTensor.__setitem__, DTensor.copy_ = _set_part, _copy
    for name in _VIEWS:
        setattr(DTensor, name, _noting(getattr(Tensor, name)))
    DTensor.T = property(_noting(Tensor.T.__get__))


def joined(whole: DTensor, of: Sequence[DTensor], parts: Parts) -> DTensor:
    """`whole`, put together from tensors that are stored: what is assigned to it is assigned to them."""
    setattr(whole, _JOINED, (of, parts))
    if not torch.is_grad_enabled() and isinstance(whole, DTensor):
        _note(whole)
    return whole


def refuse_lost_changes() -> None:
    """Raises `ShardplanError` (`lost-change`) if a part of a parameter has been changed that is a copy."""
    changed = [tensor for _, tensor in _COPIES if tensor._version]  # noqa: SLF001 - torch has no public name for it
    _COPIES[:] = [entry for entry in _COPIES if entry[0]() is not None and not entry[1]._version]  # noqa: SLF001
    if changed:
        summary = f"a part of a parameter, of shape {list(changed[0].shape)}, has been changed in place between steps"
        detail = "under a plan such a part may be a copy, and the parameter would be as before"
        hint = "assign to it (weight[0] = 0.0), or change it in: with shardplan.torch.whole(model, name) as weight"
        raise ShardplanError(error("lost-change", summary, detail=detail, hint=hint))


def _note(copy: DTensor) -> None:
    """From now on it is looked whether `copy` is changed; its memory is not kept for it."""
    alias = Tensor.detach(copy)
    alias._local_tensor = torch.empty(0, device="meta")  # noqa: SLF001 - as above
    _COPIES.append((weakref.ref(copy), alias))


def _forget(copy: Any) -> None:
    """`copy` has been assigned to what it is a part of."""
    _COPIES[:] = [entry for entry in _COPIES if entry[0]() is not copy]


def _is_weight(tensor: DTensor) -> bool:
    known = getattr(tensor, "_is_param", False) or hasattr(tensor, _DATA) or hasattr(tensor, _JOINED)
    return known and tensor.device_mesh in _MESHES


def _noting(own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that gives views, whose results are looked after where they are none."""

    @functools.wraps(own)
    def called(tensor: DTensor, *args: Any, **kwargs: Any) -> Any:
        made = own(tensor, *args, **kwargs)
        if not _is_weight(tensor):
            return made
        return tree_map_only(DTensor, functools.partial(_part, tensor), made)

    return called


def _part(tensor: DTensor, part: DTensor) -> DTensor:
    if not hasattr(tensor, _JOINED) and _memory(part) == _memory(tensor):
        setattr(part, _DATA, True)
        return part
    if torch.is_grad_enabled() and part.requires_grad:  # torch refuses changes of what it differentiates
        return part
    own = like(part, part._local_tensor)  # noqa: SLF001 - as above
    _note(own)  # a tensor with a version of its own
    return own


def _memory(tensor: DTensor) -> int:
    return int(tensor._local_tensor.untyped_storage().data_ptr())  # noqa: SLF001 - as above


def _data(tensor: DTensor) -> DTensor:
    made: DTensor = Tensor.data.__get__(tensor)
    if not _is_weight(tensor):
        return made
    if hasattr(tensor, _JOINED):
        made = like(made, made._local_tensor)  # noqa: SLF001 - as above
        _note(made)
    setattr(made, _DATA, True)
    return made


@torch.no_grad()  # type: ignore[untyped-decorator]
def _assign(stored: DTensor, given: Any) -> None:
    if not isinstance(given, Tensor) or stored.device_mesh not in _MESHES:
        Tensor.data.__set__(stored, given)
        return
    if given.shape != stored.shape:
        summary = f"the data of a parameter of shape {list(stored.shape)} is set to a tensor of {list(given.shape)}"
        hint = "a plan is for the shapes that it was made with: change the model, and plan again"
        raise ShardplanError(error("wrong-shape", summary, hint=hint))
    _forget(given)
    if hasattr(stored, _JOINED):
        tensors, parts = getattr(stored, _JOINED)
        whole = given.full_tensor() if isinstance(given, DTensor) else Tensor.detach(given)
        for part, piece in zip(tensors, parts.split(whole), strict=True):
            _assign(part, piece)
        return
    made = like(stored, _local(stored, Tensor.detach(given)).contiguous())
    Tensor.data.__set__(stored, made)
    stored._local_tensor, stored._spec = made._local_tensor, made._spec  # noqa: SLF001 - torch has no public way


def _local(stored: DTensor, given: Tensor) -> Tensor:
    """What this process is to hold. A plain tensor is whole, and the same on all processes."""
    if not isinstance(given, DTensor):
        given = distribute_tensor(given, stored.device_mesh, stored.placements, src_data_rank=None)
    elif given.placements != stored.placements:
        given = given.redistribute(placements=stored.placements)
    return given.to_local()


def is_planned_mesh(mesh: DeviceMesh) -> bool:
    """Whether a plan has been applied to some model on a mesh."""
    return mesh in _MESHES


def is_on_planned_mesh(stored: DTensor) -> bool:
    """The same of the mesh of a tensor."""
    return is_planned_mesh(stored.device_mesh)


def is_planned(stored: DTensor) -> bool:
    """Whether a tensor is on the mesh of a plan, in parts that are no partial sums."""
    return is_on_planned_mesh(stored) and not any(placement.is_partial() for placement in stored.placements)


def _copy(stored: DTensor, given: Any, *args: Any, **kwargs: Any) -> DTensor:
    """`stored.copy_(given)`, also of a plain tensor."""
    is_plain = isinstance(given, Tensor) and not isinstance(given, DTensor)
    if is_plain and is_planned(stored) and not (torch.is_grad_enabled() and given.requires_grad):
        whole = given.detach().to(stored.device).expand(stored.shape)
        if hasattr(stored, _JOINED):
            stored.data = whole
            return stored
        given = like(stored, _local(stored, whole.contiguous()))
    copied: DTensor = Tensor.copy_(stored, given, *args, **kwargs)
    return copied


def _set_part(stored: DTensor, index: Any, given: Any) -> None:
    """`stored[index] = given`, of the tensor whole; all processes have to do it alike."""
    if not is_planned(stored):
        Tensor.__setitem__(stored, index, given)
        return
    _forget(given)
    whole = stored.full_tensor().clone()
    whole[tree_map_only(DTensor, DTensor.full_tensor, index)] = tree_map_only(DTensor, DTensor.full_tensor, given)
    keep_whole(stored, whole)


def keep_whole(stored: DTensor, whole: Tensor) -> None:
    """`stored` becomes `whole`, a plain tensor that is the same on all processes."""
    if hasattr(stored, _JOINED):
        stored.data = whole
    elif whole.requires_grad:
        everywhere = [Replicate()] * stored.device_mesh.ndim
        there = from_local(whole, stored.device_mesh, everywhere, stored.shape)
        stored.copy_(there.redistribute(placements=stored.placements))
    else:
        stored.copy_(like(stored, _local(stored, whole)))
