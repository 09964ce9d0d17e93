"""Moves of a plan as autograd functions: forward collectives for the value, backward collectives for its gradient.

A move from the dual pair `source` to `target` (see `shardplan.layout.placement`) brings the value from `source.forward`
to `target.forward`, and its gradient from `target.gradient` to `source.gradient`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardplan.torch.collectives.executor import MoveExecutor
from shardplan.torch.collectives.order import Label
from shardplan.torch.collectives.routes import Route
from shardplan.torch.gradients.accumulation import GradientAccumulator


class Context(NamedTuple):
    """What moves run in: the executor of their collectives, and the state of the optimizer step."""

    executor: MoveExecutor
    accumulator: GradientAccumulator


class _Move(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, local: Tensor, route: Route, context: Context, label: Label) -> Tensor:
        ctx.route, ctx.context, ctx.is_last, ctx.label = route, context, context.accumulator.is_last, label
        if not route.forward:
            return local.view_as(local)
        if route.is_update:
            return context.accumulator.once_per_step(
                route, lambda: context.executor.run([local], [route.forward_steps], label, "update")[0]
            ).detach()
        (made,) = context.executor.run([local], [route.forward_steps], label)
        return made if made is not local else local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        route, total = ctx.route, gradient
        if route.accumulates:
            total = ctx.context.accumulator.accumulate(route, gradient, is_last=ctx.is_last)
        if total is None:
            return None, None, None, None
        label = ctx.label.of("the gradient of")
        (made,) = ctx.context.executor.run([total], [route.backward_steps], label, is_backward=True)
        return made, None, None, None


def move(local: Tensor, route: Route, context: Context, label: Label) -> Tensor:
    """The local tensor after a move; `local` itself where the move does nothing."""
    if route.is_identity:
        return local
    return _Move.apply(local, route, context, label)


def with_own_memory(local: Tensor) -> Tensor:
    """`local`, cloned if it is a view: autograd forbids to change what a move has returned as it was."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - of a node there is no view
        is_view = local._is_view()  # noqa: SLF001 - no public name
    return local.clone() if is_view else local
