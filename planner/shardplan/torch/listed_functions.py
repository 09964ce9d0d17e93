"""torch's functions of lists of tensors (`torch._foreach_mul_`), entry by entry: of single tensors there are rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_PREFIX = "_foreach_"
_NAMES = {"maximum": "clamp_min", "maximum_": "clamp_min_", "minimum": "clamp_max", "minimum_": "clamp_max_"}
"""Functions that take tensors and numbers, and have another name where they are of single tensors."""
_SCALED = ("addcmul", "addcdiv")
"""Functions that take their last operand by name alone where they are of single tensors."""


@functools.cache
def by_entry(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of lists as one that calls torch's function of tensors for each entry; None for all others."""
    name = getattr(func, "__name__", "")
    called = name.removeprefix(_PREFIX)
    own = getattr(Tensor, _NAMES.get(called, called), None) if name.startswith(_PREFIX) else None
    return None if own is None else functools.partial(_each, own)


def listed_functions() -> Mapping[str, Callable[..., Any]]:
    """All functions of lists that can be called entry by entry, by their name in `torch`."""
    found = {name: by_entry(getattr(torch, name)) for name in dir(torch) if name.startswith(_PREFIX)}
    return {name: form for name, form in found.items() if form is not None}


def _each(own: Callable[..., Any], first: Any, *others: Any, **named: Any) -> tuple[Any, ...] | None:
    name = own.__name__
    if name.removesuffix("_") in _SCALED and len(others) > 2:
        others, named = others[:2], {**named, "value": others[2]}
    made = tuple(
        own(each, *(_entry(other, at) for other in others), **{key: _entry(item, at) for key, item in named.items()})
        for at, each in enumerate(first)
    )
    return None if name.endswith("_") else made


def _entry(operand: Any, at: int) -> Any:
    return operand[at] if isinstance(operand, (list, tuple)) else operand
