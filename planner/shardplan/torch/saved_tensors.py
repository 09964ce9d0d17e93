"""Tensors saved for backward, in the form in which the plan saves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, autograd


@contextlib.contextmanager
def saving(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Context: autograd saves `pack(tensor)`. Transforms of `torch.func` (`grad`, `vjp`, `jvp`) refuse to run with such
    hooks, so tensors are saved unchanged while one is under way."""
    refuse = autograd.graph.disable_saved_tensors_hooks

    @contextlib.contextmanager
    def suspended(message: str) -> Iterator[None]:
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - there is no public way
        is_ours = top is not None and top[0] == pack
        if is_ours:
            torch._C._autograd._pop_saved_tensors_default_hooks()  # noqa: SLF001
        try:
            with refuse(message):
                yield
        finally:
            if is_ours:
                torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)  # noqa: SLF001

    autograd.graph.disable_saved_tensors_hooks = suspended
    try:
        with autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        autograd.graph.disable_saved_tensors_hooks = refuse
