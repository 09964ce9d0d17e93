"""What a program reads from the values of its tensors, told to its export as the example batch has it.

A graph has no values. Where a program goes on with as many entries as a mask picks, with a number that it reads from a
tensor, or through a branch, it is run once with the example, and every answer is kept. The export gives the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

Form = Callable[..., tuple[Any, Any]]


class ExampleValues:
    """Answers in the order of the program: collected while `is_example`, and told afterwards."""

    def __init__(self, *, also_masks: bool) -> None:
        """`also_masks`: what masks pick is asked for, too, beside numbers and conditions."""
        self._also_masks = also_masks
        self._answers: list[tuple[str, Any]] = []
        self._at = 0
        self.is_example = True

    def begin(self) -> None:
        """A pass of the program begins."""
        self._at = 0
        if self.is_example:
            self._answers.clear()

    def form(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call that looks at values; `NotImplemented` where it does not. Raises `LookupError` where the
        export goes another way than the example."""
        name = getattr(func, "__name__", "")
        asked = _asked(func, name, args, kwargs)
        if asked is None or not (self._also_masks or name in _NUMBERS):
            return NotImplemented
        if self.is_example:
            answer = asked(*args, **kwargs)
            self._answers.append((name, tree_map_only(Tensor, lambda each: each.detach().clone(), answer)))
        else:
            called, answer = self._answers[self._at]
            if called != name:
                raise LookupError(f"{called} in the example is {name} in the export")
        self._at += 1
        answer = tree_map_only(Tensor, lambda each: torch.tensor(each.tolist(), dtype=each.dtype), answer)
        return _USES[name](func, answer, *args, **kwargs) if name in _USES else answer


def is_mask(item: Any) -> bool:
    """Whether an index is a mask."""
    return isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8)


def _asked(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What computes the answer that a call asks for; None where it asks for none."""
    if name in ("__getitem__", "__setitem__"):
        items = args[1] if isinstance(args[1], tuple) else (args[1],)
        return _places_in_index if any(is_mask(item) for item in items) else None
    if name == "where":
        return func if len(args) == 1 and not kwargs else None
    if name == "repeat_interleave":
        return _repeated if any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values())) else None
    if name == "one_hot":
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        return _classes if isinstance(classes, Tensor) or classes == -1 else None
    return _OWN.get(name, func if name in _READ else None)


_NUMBERS = frozenset(
    ("__bool__", "__int__", "__index__", "__float__", "__contains__", "item", "tolist", "is_nonzero", "equal",
     "allclose", "one_hot"),
)  # fmt: skip
_READ = _NUMBERS | {"nonzero", "argwhere", "unique", "unique_consecutive", "_unique2", "bincount"}
"""Functions whose result is an answer itself."""


def _places_in_index(tensor: Tensor, index: Any, *value: Any) -> list[Any]:
    """For every item of an index the positions that it picks, if it is a mask."""
    del tensor, value
    items = index if isinstance(index, tuple) else (index,)
    return [list(item.nonzero(as_tuple=True)) if is_mask(item) else None for item in items]


def _repeated(given: Tensor, repeats: Any = None, dim: int | None = None, **named: Any) -> Tensor:
    """Which entry is where in the result."""
    if repeats is None:
        return torch.repeat_interleave(given)
    size = given.numel() if dim is None else given.shape[dim]
    return torch.repeat_interleave(torch.arange(size), repeats.expand(size), **named)


def _classes(given: Tensor, num_classes: Any = -1) -> int:
    return int(num_classes) if isinstance(num_classes, Tensor) else int(given.max()) + 1


def _picked_by(input: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: A002 - as torch
    return list(torch.broadcast_tensors(input, mask)[1].nonzero(as_tuple=True))


_OWN: Mapping[str, Callable[..., Any]] = {"masked_select": _picked_by}


def _with_places(func: Any, places: Sequence[Any], tensor: Tensor, index: Any, *value: Any) -> Any:
    """An index with positions in the place of masks."""
    items = index if isinstance(index, tuple) else (index,)
    plain = [each for item, own in zip(items, places, strict=True) for each in ([item] if own is None else own)]
    return func(tensor, tuple(plain), *value)


def _taken(
    func: Any, order: Tensor, given: Tensor, repeats: Any = None, dim: int | None = None, **named: Any
) -> Tensor:
    del func, named
    if repeats is None:
        return order
    return given.reshape(-1)[order] if dim is None else given.index_select(dim, order)


def _selected(func: Any, places: Sequence[Tensor], input: Tensor, mask: Tensor) -> Tensor:  # noqa: A002 - as torch
    del func
    return torch.broadcast_tensors(input, mask)[0][tuple(places)]


_USES: Mapping[str, Callable[..., Any]] = {
    "__getitem__": _with_places,
    "__setitem__": _with_places,
    "repeat_interleave": _taken,
    "masked_select": _selected,
    "one_hot": lambda func, classes, given, *_, **named: functional.one_hot(given, classes),  # noqa: ARG005 - told
}
"""What is made of an answer, where it is not the result itself."""
