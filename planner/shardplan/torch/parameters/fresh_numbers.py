"""Weights that are drawn or set anew under a plan, with the numbers that one process would draw.

torch draws a `DTensor` part by part: processes that have drawn unequally much before differ in what they hold twice,
and parts are alike where generators are. Some functions of `torch.nn.init` are errors. Here each is run on the tensor
whole, by every process alike, which then keeps its part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import init
from torch.utils._pytree import tree_map_only

from shardplan.torch.parameters.between_steps import is_planned, keep_whole

_DRAWN = (
    "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_",
)  # fmt: skip
"""Methods that draw every entry of a tensor."""
_SET_WHOLE = ("eye_", "dirac_", "orthogonal_", "sparse_")
"""Functions of `torch.nn.init` that look at places of entries, or at all entries together."""


@functools.cache
def draw_whole() -> None:
    """From now on what is drawn into DTensors of plans is drawn whole."""
    for name in _DRAWN:
        setattr(DTensor, name, _drawing(getattr(Tensor, name)))
    for name in _SET_WHOLE:
        setattr(init, name, _setting(getattr(init, name)))


def _drawing(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def called(stored: DTensor, *args: Any, **kwargs: Any) -> Any:
        if not is_planned(stored) or (torch.is_grad_enabled() and stored.requires_grad):
            return own(stored, *args, **kwargs)
        whole = torch.empty(stored.shape, dtype=stored.dtype, device=stored.device)
        own(whole, *tree_map_only(DTensor, DTensor.full_tensor, args), **kwargs)
        keep_whole(stored, whole)
        return stored

    return called


def _setting(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def called(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(tensor, DTensor) or not is_planned(tensor):
            made: Tensor = own(tensor, *args, **kwargs)
            return made
        with torch.no_grad():
            keep_whole(tensor, own(tensor.full_tensor().clone(), *args, **kwargs))
        return tensor

    return called
