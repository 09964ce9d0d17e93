"""Tensors in what a model is called with, and in what it returns: arguments may be dicts, lists, tuples and registered
dataclasses of them.

A plan calls such a tensor by its argument and the way to it: `batch_x` is `x` of the dictionary `batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

Inputs = Any
"""Arguments of a module: one tensor, a tuple or list of them, or a mapping of names to them."""


def called_with(
    example_inputs: Inputs, example_kwargs: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by place and by name of a call with these; `example_kwargs`: more of the latter."""
    named = dict(example_kwargs or {})
    if isinstance(example_inputs, Mapping):
        return (), {**{str(name): value for name, value in example_inputs.items()}, **named}
    return (tuple(example_inputs), named) if isinstance(example_inputs, tuple | list) else ((example_inputs,), named)


def named_tensors(arguments: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in arguments (name, value), in order, with the names that plans have for them."""
    for name, value in arguments:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, Tensor):
                yield _joined(name, path), leaf


def with_tensors(name: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    """An argument with `change(name, leaf)` for every leaf in it; the same object where that changes none."""
    leaves, spec = pytree.tree_flatten_with_path(value)
    made = [change(_joined(name, path), leaf) for path, leaf in leaves]
    if all(new is leaf for new, (_, leaf) in zip(made, leaves, strict=True)):
        return value
    return pytree.tree_unflatten(made, spec)


def tensors_in(result: Any) -> Iterator[Tensor]:
    """The tensors in what a model returns, in order, also in records that torch does not know."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for item in result.values():
            yield from tensors_in(item)
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for item in result:
            yield from tensors_in(item)
    elif is_dataclass(result):
        for each in fields(result):
            yield from tensors_in(getattr(result, each.name))


def _joined(name: str, path: Iterable[Any]) -> str:
    return "_".join([name, *(_step(each) for each in path)])


def _step(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))
