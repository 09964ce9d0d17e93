"""How a graph is called: as the program was when it was exported, by place or by name, in any order of names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.torch.with_loss import WithLoss, argument_names


@dataclass(frozen=True)
class CallForm:
    """The arguments with which a model was exported: their names, the first `places` of which were given by place, and
    what is in them, with one mark in the place of all tensors. `called`: what has the model's signature."""

    called: Any
    names: tuple[str, ...]
    places: int
    given: tuple[tuple[Any, ...], dict[str, Any]]

    def __deepcopy__(self, memo: dict[int, Any]) -> CallForm:
        """Nothing of it changes."""
        return self

    @staticmethod
    def of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        """The form of a call of `model`."""
        names = (*argument_names(model, args, kwargs), *kwargs)
        given = pytree.tree_map(lambda leaf: _TENSOR if isinstance(leaf, Tensor) else leaf, (tuple(args), dict(kwargs)))
        return CallForm(_signature(model), names, len(args), given)

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """What a call gives, in the order of the graph's own arguments.

        Raises `ShardplanError` (`wrong-inputs`) if the program was exported with others.
        """
        names = [*argument_names(self.called, args, kwargs), *kwargs]
        given = dict(zip(names, [*args, *kwargs.values()], strict=True))
        if given.keys() != set(self.names):
            self._refuse_names(names, len(args))
        by_place = tuple(given[name] for name in self.names[: self.places])
        by_name = {name: given[name] for name in self.names[self.places :]}
        leaves, spec = pytree.tree_flatten(_ordered(self.given, (by_place, by_name)))
        expected, wanted = pytree.tree_flatten(self.given)
        if spec != wanted:
            self._refuse("other structures of them")
        for leaf, each in zip(leaves, expected, strict=True):
            if isinstance(leaf, Tensor) != (each is _TENSOR) or (each is not _TENSOR and leaf != each):
                self._refuse(f"{_said(leaf)} where that was {_said(each)}")
        return list(leaves)

    def _refuse_names(self, names: Sequence[str], by_place: int) -> NoReturn:
        """What is given by place is told as if nothing were missing: of too few arguments a loss takes the last."""
        if isinstance(self.called, WithLoss) and by_place <= self.places:
            names = [*self.names[:by_place], *names[by_place:]]
        missing = [name for name in self.names if name not in names]
        hint = (
            f"give it {', '.join(missing)} too, by place or by name" if missing and set(names) < set(self.names) else ""
        )
        self._refuse(", ".join(names) or "nothing", hint)

    def _refuse(self, found: str, hint: str = "") -> NoReturn:
        summary = f"the graph is of the model called with {', '.join(self.names) or 'nothing'}; it is given {found}"
        hint = hint or "call it with the arguments of example_inputs, or export it with these"
        raise ShardplanError(error("wrong-inputs", summary, hint=hint))


_TENSOR = object()
"""What stands for any tensor."""


def _said(leaf: Any) -> str:
    return "a tensor" if leaf is _TENSOR or isinstance(leaf, Tensor) else repr(leaf)


def _signature(model: nn.Module) -> Any:
    """What `argument_names` asks of a model, without its weights: stages of a pipeline are not to keep them all."""
    if isinstance(model, WithLoss):
        return model
    kept = functools.partial(_nothing)
    kept.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    return SimpleNamespace(forward=kept)


def _nothing() -> None:
    """It is never called."""


def _ordered(form: Any, given: Any) -> Any:
    """`given` with the keys of dictionaries in the order of `form`."""
    if type(form) is dict and type(given) is dict and form.keys() == given.keys():
        return {key: _ordered(each, given[key]) for key, each in form.items()}
    if type(form) in {list, tuple} and type(given) is type(form) and len(form) == len(given):
        return type(form)(_ordered(*pair) for pair in zip(form, given, strict=True))
    return given
