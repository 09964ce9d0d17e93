"""What a program does to gradients that no graph shows, refused in words while the program is exported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from shardplan.errors import ShardplanError, error

_EAGER = "apply a plan without stages with parallelize, which runs the program itself"


def untraceable(what: str, hint: str = _EAGER) -> ShardplanError:
    """The refusal of a program that does `what`."""
    return ShardplanError(error("cannot-export", f"a graph cannot hold all of this model: {what}", hint=hint))


@contextlib.contextmanager
def having(holder: Any, name: str, made: Any) -> Iterator[None]:
    """What torch calls `name` in one of its modules or classes, or what these inherit, is `made` within."""
    is_own, kept = name in vars(holder), vars(holder).get(name)
    setattr(holder, name, made)
    try:
        yield
    finally:
        if is_own:
            setattr(holder, name, kept)
        else:
            delattr(holder, name)


@contextlib.contextmanager
def refusing_untraceable() -> Iterator[None]:
    """Programs that run within raise `ShardplanError` (`cannot-export`) where a graph would leave something out."""
    with contextlib.ExitStack() as stack:
        for holder, name, what in _LEFT_OUT:
            stack.enter_context(having(holder, name, _refused(what)))
        stack.enter_context(having(torch.Tensor, "requires_grad_", _without_weights(torch.Tensor.requires_grad_)))
        yield


_LEFT_OUT: tuple[tuple[Any, str, str], ...] = (
    (torch.Tensor, "register_hook", "it hooks the gradient of a value (Tensor.register_hook)"),
    (torch.autograd, "grad", "it differentiates inside (torch.autograd.grad)"),
    (torch.Tensor, "backward", "it calls backward inside"),
)
"""Where torch has a function, its name, and what a program that calls it does."""


def _refused(what: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise untraceable(what)

    return refused


def _without_weights(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`requires_grad_` for all but weights, of which the program says who trains them."""

    def asked(tensor: Tensor, requires_grad: bool = True) -> Tensor:
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad != requires_grad:
            raise untraceable(
                "it says while it runs whether a weight takes a gradient (requires_grad_)",
                "say it before the plan is made, or read weight.detach() in its place",
            )
        return own(tensor, requires_grad)

    return asked
