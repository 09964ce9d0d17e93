"""Views of planned tensors: in-place changes of a view change its base, and the other way round.

The local tensors of a value and of its view need not share memory, as there may be a move between them. So a view
records how it was made: it is made again after its base has changed, and written into the base when it is changed
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.function_names import name_of
from shardplan.torch.rules.views import LIKE

SELVES = frozenset(("to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "cpu", "cuda"))
"""Functions that return their operand where there is nothing to do."""


@dataclass
class View:
    """How a planned tensor was made: by `func` of `base` (result `number`, if there are several), after `seen` changes
    of the base."""

    base: Any
    func: Callable[..., Any]
    rest: Sequence[Any]
    named: Mapping[str, Any]
    number: int | None
    seen: int

    def of(self, base: Any) -> Any:
        """The same view of another tensor or value; `func` must be able to take it."""
        made = self.func(base, *self.rest, **self.named)
        return made if self.number is None else made[self.number]


def note_views(made: Any, base: Any, func: Callable[..., Any], rest: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Records in the planned tensors among `made` that they are views of `base`."""
    like = LIKE.get(name_of(func))
    if like is not None:
        func, rest, named = like, (tuple(made.shape),), {}
    several = isinstance(made, (tuple, list))
    for number, each in enumerate(made if several else [made]):
        if each is not base and hasattr(each, "view_of"):
            each.view_of = View(base, func, rest, named, number if several else None, base.changes)


def is_contiguous(planned: Any) -> bool:
    """Whether a tensor of the program has its entries in their order in memory."""
    return bool(in_memory(planned).is_contiguous())


def shares(view: View) -> bool:
    """Whether a view shares memory with its base in the program; it may have had to be a copy (`reshape` of a
    transposed tensor)."""
    base = in_memory(view.base)
    return bool(view.of(base).untyped_storage()._cdata == base.untyped_storage()._cdata)  # noqa: SLF001 - no public name


def in_memory(planned: Any) -> Tensor:
    """An empty tensor with the program's memory layout; other arguments are returned as they are. Tensors that are not
    views are assumed to be contiguous."""
    if not hasattr(planned, "view_of"):
        plain: Tensor = planned
        return plain
    view = planned.view_of
    if view is None:
        held = planned.value
        return torch.empty(held.shape, dtype=held.dtype, device="meta")
    made: Tensor = view.of(in_memory(view.base))
    return made


def written_through(view: View, value: Value, made: Value, engine: Engine) -> Value:
    """The value of a view's base, after the view became `made`. Both are gathered for it."""
    whole = engine.convert(value, engine.constant(value.local, value.shape).layout)
    local = torch.empty_strided(
        value.shape, in_memory(view.base).stride(), dtype=value.dtype, device=value.local.device
    )
    local.copy_(whole.local)
    view.of(local).copy_(engine.convert(made, engine.constant(made.local, made.shape).layout).local)
    dtype, grad = engine.backend.describe(local)
    source = Value(local, whole.layout if grad else whole.layout.forward, value.shape, dtype, grad, value.key)
    target = Value(
        value.local, value.layout, value.shape, dtype, value.grad, value.key, lineage=made.lineage or value.lineage
    )
    engine.write(target, source)
    return target


def with_gradient_of(before: Value, made: Value, engine: Engine) -> Value:
    """The value `made` of a tensor that was changed in place. With gradients off, its gradient stays as it was."""
    if made.grad or not before.grad or torch.is_grad_enabled():
        return made
    kept = engine.convert(made, before.layout, inner=True)
    with torch.enable_grad():
        local = _Changed.apply(before.local, kept.local)
    return replace(made, local=local, layout=before.layout, grad=True, forms={})


class _Changed(torch.autograd.Function):  # type: ignore[misc]
    """Another value, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, now: Tensor) -> Tensor:
        del ctx, before
        return now.view_as(now)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None
