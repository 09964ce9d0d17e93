"""Composite functions of torch: planned tensors run them operation by operation.

Some are written in Python, others in C++ (`cosine_similarity`, `unflatten`), which torch takes apart by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

from shardplan.torch.rules.function_names import in_place, name_of

_ASKED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""What such a function asks first: whether an operand wants to run it itself."""


@functools.cache
def body_of(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of `torch.nn.functional` that does not dispatch on its operands and runs its own code; None for
    others."""
    if not isinstance(func, FunctionType) or func.__code__.co_filename != functional.__file__:
        return None
    names = {**functional.__dict__, **dict.fromkeys(_ASKED, _nobody)}
    made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


@functools.cache
def is_composite(func: Callable[..., Any]) -> bool:
    """Whether torch takes a function apart into operators of ATen, which autograd sees in its place."""
    if isinstance(func, FunctionType) or in_place(func):
        return False
    packet = getattr(torch.ops.aten, name_of(func), None)
    return packet is not None and any(_is_taken_apart(f"aten::{name_of(func)}", name) for name in packet.overloads())


def _is_taken_apart(name: str, overload: str) -> bool:
    full = name if overload == "default" else f"{name}.{overload}"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - there is no public name
    try:
        return bool(has_kernel(full, "CompositeImplicitAutograd"))
    except RuntimeError:  # some overloads are of TorchScript alone
        return False


def _nobody(*operands: Any) -> bool:
    del operands
    return False
