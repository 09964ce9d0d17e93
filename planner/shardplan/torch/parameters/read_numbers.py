"""Numbers read from tensors of a plan: of the tensor whole, where torch gives that of a process's own part or sum.

`weight.grad.norm().item()` of a `DTensor` in parts is the norm of one part; whoever scales an update by it (LARS, LAMB,
a threshold for clipping) would change the parts of one weight unequally. All processes have to read it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from shardplan.torch.parameters.between_steps import is_on_planned_mesh

_READ = ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "__complex__")
"""Methods that give numbers of Python."""


@functools.cache
def read_whole() -> None:
    """From now on numbers that are read from DTensors of plans are those of the tensor whole."""
    for name in _READ:
        setattr(DTensor, name, _reading(getattr(Tensor, name)))


def _reading(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def called(tensor: DTensor) -> Any:
        return own(tensor.detach().full_tensor() if is_on_planned_mesh(tensor) else tensor)

    return called
