"""Functions of torch that are written in Python: on planned tensors their own code runs, operation by operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.nn import functional

_ASKED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""What such a function asks first: whether an operand wants to run it itself."""


@functools.cache
def body_of(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of `torch.nn.functional` that does not ask its operands and runs its own code; None for others."""
    if not isinstance(func, FunctionType) or func.__code__.co_filename != functional.__file__:
        return None
    names = {**functional.__dict__, **dict.fromkeys(_ASKED, _nobody)}
    made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _nobody(*operands: Any) -> bool:
    del operands
    return False
