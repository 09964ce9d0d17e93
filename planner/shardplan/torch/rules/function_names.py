"""Names of torch's functions, and whether one works in place."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

_IN_PLACE = frozenset(
    ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__",
     "__ixor__", "__ilshift__", "__irshift__", "__setitem__")
)  # fmt: skip
"""Operators of Python that change their first operand; torch's own names for others end with one underscore."""
_NUMBERS = frozenset(("__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero"))
"""What makes a number of Python of a tensor; `int`, `float` and `bool` are methods that make another tensor of it."""


def name_of(func: Any) -> str:
    """`add` for `torch.add`, `Tensor.__add__`, `Tensor.add_`, `aten.add.Tensor` and `operator.add`."""
    schema = func._schema.name if isinstance(func, OpOverload) else ""  # noqa: SLF001 - there is no public name
    if getattr(func, "__name__", "") in _NUMBERS:
        return "item"
    name = str(schema.split("::")[-1] or getattr(func, "__name__", func))
    name = name.removeprefix("__").removesuffix("__") if name.startswith("__") else name
    return name if name == "_" else name.rstrip("_") or name


_NUMPY = {"axis": "dim", "keepdims": "keepdim"}
"""NumPy's names of arguments, which torch takes in place of its own."""


def in_torch_names(func: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names that torch has for them; functions written in Python have names of their own."""
    if isinstance(func, FunctionType):
        return dict(kwargs)
    return {_NUMPY.get(key, key): value for key, value in kwargs.items()}


def out_of_place(func: Any) -> Any:
    """The operator of ATen that returns what one that works in place writes; `func` itself where there is none."""
    if not isinstance(func, OpOverload) or not func._schema.name.endswith("_"):  # noqa: SLF001 - as above
        return func
    packet = getattr(torch.ops.aten, func._schema.name.split("::")[-1].rstrip("_"), None)  # noqa: SLF001
    return getattr(packet, func._overloadname, func)  # noqa: SLF001


def in_place(func: Any) -> bool:
    """Whether an operation changes its first operand."""
    if isinstance(func, OpOverload):
        first = func._schema.arguments[:1]  # noqa: SLF001 - as above
        return any(given.alias_info is not None and given.alias_info.is_write for given in first)
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        return name in _IN_PLACE
    return name.endswith("_") and not name.endswith("__")


def is_pointwise(func: Any) -> bool:
    """Whether a function makes one tensor of the corresponding elements of its operands, as torch says of operators."""
    if isinstance(func, OpOverload) and torch.Tag.pointwise in func.tags:
        return len(func._schema.returns) == 1  # noqa: SLF001 - as above
    if isinstance(func, FunctionType) or (isinstance(func, OpOverload) and func.namespace != "prims"):
        return False
    return _is_pointwise_name(name_of(func))


@functools.cache
def _is_pointwise_name(name: str) -> bool:
    """Of an operator of ATen, or of the primitive that one is made of."""
    plain = name.removeprefix("bessel_")
    for known in (name, f"special_{name}", plain, f"special_{plain}"):
        packet = getattr(torch.ops.aten, known, None) if known.isidentifier() else None
        if isinstance(packet, OpOverloadPacket):
            kinds = [getattr(packet, overload) for overload in packet.overloads()]
            is_one = all(len(each._schema.returns) == 1 for each in kinds)  # noqa: SLF001 - as above
            return is_one and any(torch.Tag.pointwise in each.tags for each in kinds)
    return False


@functools.cache
def draws(func: Any) -> bool:
    """Whether a function of torch draws random numbers."""
    packet = getattr(torch.ops.aten, name_of(func), None)
    overloads = () if packet is None else (getattr(packet, name) for name in packet.overloads())
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
