"""A model and its loss as one module, so that a plan has both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shardplan.errors import ShardplanError, error

_PREFIX = "model."
INPUT = "input."
"""What plans have before the name of an argument that is also the name of a tensor of the model."""

Divided = tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Arguments of a model by place and by name, and those of its loss."""


class WithLoss(nn.Module):  # type: ignore[misc]
    """See `with_loss`. `targets`: what the loss is called with beside the result of the model, by name."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None:
            summary = f"the loss {type(loss).__name__} has parameters of its own"
            raise ShardplanError(error("loss-parameters", summary, hint="make it a part of the model"))
        self.model, self.loss = model, loss
        self.targets, self._optional = _targets(loss)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of `model(...)`. The last arguments are the targets, unless they are given by name."""
        given, named, targets = self.divided(args, kwargs)
        return self.loss(self.model(*given, **named), **targets)

    def divided(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Divided:
        """Arguments by place and by name of the model, and those of the loss.

        Raises `ShardplanError` (`missing-target`).
        """
        return _divided(self.targets, self._optional, args, kwargs)


def with_loss(model: nn.Module, loss: Callable[..., Any]) -> WithLoss:
    """`model` and `loss` as one module: called with the model's arguments and then the loss's, it gives the loss.

    `loss(result, target, ...)`: any function or module. A plan made of it (`shardplan.torch.plan(..., loss=loss)`) has
    the loss too, so that a vocabulary that is split is not gathered for it. Parameters are the model's, which is still
    there as `.model`, and plans call them by the model's names. Raises `ShardplanError` (`loss-parameters`).
    """
    return WithLoss(model, loss)


def needed_targets(loss: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments that a loss needs beside the result of a model."""
    return _targets(loss)[0]


def divided_for(loss: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Divided:
    """As `WithLoss.divided`, of any loss. Raises `ShardplanError` (`missing-target`)."""
    return _divided(*_targets(loss), args, kwargs)


def _divided(
    targets: tuple[str, ...], optional: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Divided:
    own = {name: value for name, value in kwargs.items() if name in (*targets, *optional)}
    by_place = [name for name in targets if name not in own]
    if len(args) < len(by_place):
        summary = f"the loss needs {', '.join(by_place)}, behind the arguments of the model or by name"
        raise ShardplanError(error("missing-target", summary))
    cut = len(args) - len(by_place)
    rest = {name: value for name, value in kwargs.items() if name not in own}
    return args[:cut], rest, {**dict(zip(by_place, args[cut:], strict=True)), **own}


def planned_name(model: nn.Module, name: str) -> str:
    """The name of a parameter of `model` in plans."""
    return name.removeprefix(_PREFIX) if isinstance(model, WithLoss) else name


def argument_names(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of the positional arguments of `model`."""
    if isinstance(model, WithLoss):
        given, _, targets = model.divided(args, kwargs)
        return [*argument_names(model.model, given, {}), *(name for name in targets if name not in kwargs)]
    parameters = inspect.signature(model.forward).parameters.values()
    found = [each.name for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    return [*found, *(f"argument {number}" for number in range(len(found), len(args)))][: len(args)]


def _targets(loss: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments of a loss beside its first: those that it needs, and those that it can do without."""
    called = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except ValueError:  # of a function that Python knows nothing of: `torch.sum`
        return (), ()
    named = [each for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}][1:]
    needed = tuple(each.name for each in named if each.default is each.empty)
    return needed, tuple(each.name for each in named if each.default is not each.empty)
