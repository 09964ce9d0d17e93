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
from shardplan.torch.gradients.flights import Receiver, placeholders, receiver_of, send_early
from shardplan.torch.gradients.prefetch import Prefetcher
from shardplan.torch.placements import whole_of


class Context(NamedTuple):
    """The environment of moves: the executor of their collectives, the state of the optimizer step, and the
    prefetcher."""

    executor: MoveExecutor
    accumulator: GradientAccumulator
    prefetcher: Prefetcher


class _Move(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, local: Tensor, route: Route, context: Context, label: Label, receiver: Receiver | None
    ) -> Tensor:
        ctx.route, ctx.context, ctx.is_last, ctx.label = route, context, context.accumulator.is_last, label
        ctx.receiver, ctx.shape = receiver, local.shape
        if receiver is not None:
            send_early(ctx)
        if not route.forward:
            return local.view_as(local)
        if route.is_update:
            return context.accumulator.once_per_step(
                route, lambda: context.prefetcher.gather([local], [route.forward_steps], label, "update")[0]
            ).detach()
        (made,) = context.prefetcher.gather([local], [route.forward_steps], label)
        return made if made is not local else local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        gradient = _plain(gradient)
        if torch.is_grad_enabled() and gradient.requires_grad:
            return _Back.apply(gradient, ctx.route, ctx.context, ctx.label), None, None, None, None
        route, total = ctx.route, gradient
        if route.accumulates:
            total = ctx.context.accumulator.accumulate(route, gradient, is_last=ctx.is_last)
        if total is None:
            return None, None, None, None, None
        label, executor, moves = ctx.label.of("the gradient of"), ctx.context.executor, [route.backward_steps]
        if ctx.receiver is not None and ctx.receiver.is_open:
            flight = executor.start([total], moves, label, way="reduce", is_backward=True)
            (made,) = placeholders(flight, [ctx.receiver], [ctx.shape], total)
        else:
            (made,) = executor.run([total], moves, label, is_backward=True)
        return made, None, None, None, None


class _Back(torch.autograd.Function):  # type: ignore[misc]
    """The backward of a move, when a program differentiates a gradient. A move is linear, and its gradient is the move
    of the dual layouts: so the gradient of that is the move again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, route: Route, context: Context, label: Label) -> Tensor:
        ctx.route, ctx.context, ctx.label = route, context, label
        told = label.of("the gradient of")
        (made,) = context.executor.run([gradient], [route.backward_steps], told, is_backward=True)
        return made if made is not gradient else gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, twice: Tensor) -> tuple[Tensor, None, None, None]:
        return (
            _Again.apply(_plain(twice), ctx.route, ctx.context, _twice(ctx.label)),
            None,
            None,
            None,
        )


class _Again(torch.autograd.Function):  # type: ignore[misc]
    """A move in the backward of a double differentiation."""

    @staticmethod
    def forward(ctx: Any, twice: Tensor, route: Route, context: Context, label: Label) -> Tensor:
        ctx.route, ctx.context, ctx.label = route, context, label
        (made,) = context.executor.run([twice], [route.forward_steps], label, is_backward=True)
        return made if made is not twice else twice.view_as(twice)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Back.apply(_plain(gradient), ctx.route, ctx.context, ctx.label), None, None, None


def _plain(gradient: Tensor) -> Tensor:
    """The gradient of a plain tensor, which every process has whole. Where that was computed with beside a DTensor
    outside of the model, torch gives it one."""
    return whole_of(gradient)


def _twice(label: Label) -> Label:
    return label.of("the gradient of the gradient of")


def move(local: Tensor, route: Route, context: Context, label: Label) -> Tensor:
    """The local tensor after a move; `local` itself if the move does nothing."""
    if route.is_identity:
        return local
    return _Move.apply(local, route, context, label, receiver_of(local) if route.defers else None)


def with_own_memory(local: Tensor) -> Tensor:
    """`local`, cloned if it is a view: autograd forbids in-place changes of an input that a move returns unchanged."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - of a node there is no view
        is_view = local._is_view()  # noqa: SLF001 - no public name
    return local.clone() if is_view else local
