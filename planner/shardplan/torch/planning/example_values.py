"""What a program reads from the values of its tensors, told to its export as the example batch has it.

A graph has no values. Where a program goes on with as many entries as a mask picks, with a number that it reads from a
tensor, or through a branch, it is run once with the example, and every answer is kept. The export gives the same ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
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
        if name == "tolist":
            return self._listed(*args)
        asked = _asked(func, name, args, kwargs)
        if asked is None or not (self._also_masks or name in _NUMBERS):
            return NotImplemented
        answer = self._told(name, lambda: asked(*args, **kwargs))
        return _USES[name](func, answer, *args, **kwargs) if name in _USES else answer

    def with_numbers(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]] | None:
        """The arguments of a call with numbers for tensors that are sizes in it, or ends of slices; None where there
        are no such tensors. Raises as `form`."""
        name = getattr(func, "__name__", "")
        told = functools.partial(_mapped, lambda number: self._told("size", number.item))
        if name in ("__getitem__", "__setitem__"):
            items = args[1] if isinstance(args[1], tuple) else (args[1],)
            if not any(_has_number(each) for each in items if isinstance(each, slice)):
                return None
            items = tuple(told(each) if isinstance(each, slice) else each for each in items)
            return (args[0], items if isinstance(args[1], tuple) else items[0], *args[2:]), kwargs
        first = 0 if name in _MAKERS else 1
        if name not in _SIZED or not _has_number((args[first:], *kwargs.values())):
            return None
        return (*args[:first], *told(args[first:])), {key: told(value) for key, value in kwargs.items()}

    def _listed(self, tensor: Tensor) -> Any:
        """`tensor.tolist()`, which is one `item` after the other in an export."""
        each = iter(tensor.detach().flatten()) if self.is_example else itertools.repeat(tensor)
        found = [self._told("item", one.item) for one, _ in zip(each, range(tensor.numel()), strict=False)]
        return np.array(found, dtype=object).reshape(tensor.shape).tolist()

    def _told(self, name: str, asked: Callable[[], Any]) -> Any:
        """The next answer: what `asked` computes of the example, or has computed."""
        if self.is_example:
            answer = asked()
            self._answers.append((name, tree_map_only(Tensor, lambda each: each.detach().clone(), answer)))
        else:
            called, answer = self._answers[self._at]
            if called != name:
                raise LookupError(f"{called} in the example is {name} in the export")
        self._at += 1
        return tree_map_only(Tensor, _constant, answer)


def _constant(answer: Tensor) -> Tensor:
    """A tensor that an export takes for one of the program's own."""
    return torch.tensor(answer.tolist(), dtype=answer.dtype).reshape(answer.shape)


_MAKERS = frozenset(
    ("zeros", "ones", "empty", "full", "rand", "randn", "arange", "linspace", "eye", "tensor"),
)  # fmt: skip
_SIZED = _MAKERS | {
    "view", "reshape", "expand", "broadcast_to", "repeat", "tile", "unflatten", "split", "chunk", "tensor_split",
    "narrow", "unfold", "roll", "as_strided", "interpolate", "pad", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "new_zeros", "new_ones",
    "new_empty", "new_full", "topk", "multinomial",
}  # fmt: skip
"""Functions whose first argument is no tensor to work on, and all that take sizes."""


def _is_number(item: Any) -> bool:
    return isinstance(item, Tensor) and not item.dim() and not item.is_floating_point() and not item.is_complex()


def _has_number(item: Any) -> bool:
    if isinstance(item, slice):
        return any(map(_is_number, (item.start, item.stop, item.step)))
    return any(map(_has_number, item)) if isinstance(item, (tuple, list)) else _is_number(item)


def numbers_in(item: Any) -> list[Tensor]:
    """The tensors in what is given for sizes or slices."""
    found: list[Tensor] = []

    def noted(number: Tensor) -> int:
        found.append(number)
        return 0

    _mapped(noted, item)
    return found


def _mapped(form: Callable[[Tensor], int], item: Any) -> Any:
    """What is given for a size, or a slice, with `form` of its tensors."""
    if isinstance(item, slice):
        return slice(*(_mapped(form, each) for each in (item.start, item.stop, item.step)))
    if isinstance(item, (tuple, list)):
        return type(item)(_mapped(form, each) for each in item)
    return form(item) if _is_number(item) else item


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
