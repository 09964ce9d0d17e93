"""Plain tensors beside weights and gradients between steps: each is whole, and the same on all processes.

torch refuses to compute with a `DTensor` and a plain tensor. What a program has as plain tensors when it changes
weights by hand (noise of a generator, masks, averages from a file) is the same in every process, as all it does between
steps. What needs a gradient is left alone: there, a plain tensor may be the part of one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_map_only

from shardplan.torch.parameters.between_steps import is_on_planned_mesh
from shardplan.torch.placements import from_local

_METHODS = (
    "add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "clamp_", "clamp_min_", "clamp_max_",
    "masked_fill_", "__iadd__", "__isub__", "__imul__", "__itruediv__", "add", "sub", "mul", "div", "lerp", "__add__",
    "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__getitem__", "gather",
    "index_select",
)  # fmt: skip
"""Methods by which programs change weights and look entries up, with tensors beside."""


@functools.cache
def take_plain_tensors() -> None:
    """From now on these methods of DTensors of plans take plain tensors, where no gradient is asked for."""
    for name in _METHODS:
        setattr(DTensor, name, _taking(getattr(DTensor, name)))


def _taking(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def called(stored: DTensor, *args: Any, **kwargs: Any) -> Any:
        if not any(map(_has_plain, (*args, *kwargs.values()))) or not _is_held(stored):
            return own(stored, *args, **kwargs)
        args, kwargs = tree_map_only(Tensor, functools.partial(_beside, stored), (args, kwargs))
        return own(stored, *args, **kwargs)

    return called


def _is_held(stored: DTensor) -> bool:
    return is_on_planned_mesh(stored) and not (torch.is_grad_enabled() and stored.requires_grad)


def _has_plain(argument: Any) -> bool:
    return any(map(_is_plain, argument)) if isinstance(argument, tuple) else _is_plain(argument)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, DTensor) and value.ndim > 0


def _beside(stored: DTensor, value: Tensor) -> Tensor:
    """`value` on the mesh of `stored`, whole on every process."""
    if not _is_plain(value):
        return value
    mesh = stored.device_mesh
    return from_local(value.contiguous(), mesh, [Replicate()] * mesh.ndim, value.shape)
