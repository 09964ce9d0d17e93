"""Upper bounds on data-dependent shapes, for plans: every entry of a mask is taken.

The planner's graphs have fixed shapes and no branches. The result of a mask (`x[mask]`, `masked_select`, `nonzero`) is
therefore planned as if the mask took everything; programs run with the actual result, whole on every process.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shardplan.torch.plain_forms import is_by_sequences, masked_scatter, with_stacked_index
from shardplan.torch.planning.example_values import ExampleValues, is_mask
from shardplan.torch.planning.packed_sequences import PackedSequences, is_projected, projected

_MOST = 256
"""So many conditions are guessed: a loop that waits for one ends."""
Numbers = np.ndarray
"""What is known to be in a tensor."""


class LargestShapes(TorchFunctionMode):  # type: ignore[misc]
    """Context: results of masks have their largest possible shape. A program that looks at the positions in a mask's
    result (a loop over experts that have tokens) sees all positions."""

    def __init__(self) -> None:
        """`guesses`: whether a condition that depends on data is assumed to be false; `guessed`: how often it was;
        `asked`: how often in the last pass of the program; `held`: which of these conditions, counted from 1, are
        assumed to hold, as checks of a program do; `enlarged`: whether a mask has picked more than
        it does; `example`: what is known of the example's values, if it is to be asked; `told`: whether
        the export is of what it has said."""
        super().__init__()
        self._known: dict[int, tuple[Tensor, Numbers]] = {}
        self._packed = PackedSequences()
        self.guesses, self.guessed = False, 0
        self.asked, self.held = 0, set[int]()
        self.example: ExampleValues | None = None
        self.enlarged, self.told = False, False

    def begin(self) -> None:
        """A pass of the program begins."""
        self.asked = 0
        if self.example is not None:
            self.example.begin()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = _unseeded(kwargs or {}), getattr(func, "__name__", "")
        for form in (self._rewritten, self._told, self._looked):
            made = form(func, args, kwargs, name)
            if made is not NotImplemented:
                return made
        made = self._formed(func, args, kwargs)
        if made is NotImplemented:
            made = func(*args, **kwargs)
            numbers = self._numbers_in(args)
            if numbers is not None and name in _PARTS:
                self._note(made, _PARTS[name](numbers, *args[1:], **kwargs))
        return made

    def _told(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """What the example says."""
        del name
        if self.example is None:
            return NotImplemented
        given = self.example.with_numbers(func, args, kwargs)
        if given is None:
            return self.example.form(func, args, kwargs)
        with self:
            return func(*given[0], **given[1])

    def _looked(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """What a program sees that looks at numbers, or asks for a condition."""
        del func
        numbers = self._numbers_in(args)
        if numbers is not None and name in _LOOKS:
            looked = _LOOKS[name](numbers, *args[1:], **kwargs)
            if looked is not NotImplemented:
                return looked
        asks = name == "__bool__" or (name == "item" and args[0].dtype == torch.bool)
        if not self.guesses or not asks or self.asked >= _MOST:
            return NotImplemented
        self.guessed += 1
        self.asked += 1
        return self.asked in self.held

    def _formed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call in another form, the largest."""
        made = self._packed.form(func, args)
        if made is NotImplemented and is_projected(func, args):
            made = projected(func, *args)
        if made is NotImplemented and (func in _FORMS or func in _PLACES):
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - so that forms see torch's own
                if func in _FORMS:
                    made = _FORMS[func](*args, **kwargs)
                else:
                    made = self._places(args, as_tuple=func is torch.where or bool(kwargs.get("as_tuple")))
            self.enlarged |= made is not NotImplemented and (func in _PLACES or func in _PICKS)
        return made

    def _numbers_in(self, args: Any) -> Numbers | None:
        """What is known to be in the first argument."""
        return self._known[id(args[0])][1] if args and id(args[0]) in self._known else None

    def _rewritten(self, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """What an exporter takes in another form."""
        del kwargs
        if getattr(func, "__self__", None) is Tensor.data:  # it takes it for numbers that are known
            return args[0].detach() if name == "__get__" else args[0].detach().copy_(args[1])
        if not is_by_sequences(func, args):
            return NotImplemented
        with self:
            return with_stacked_index(func, *args)

    def _places(self, args: Sequence[Any], *, as_tuple: bool) -> Any:
        """`nonzero` and `where` of one tensor: the positions of all entries."""
        if len(args) != 1 or not args[0].dim():
            return NotImplemented
        shape = args[0].shape
        places = np.array(list(itertools.product(*map(range, shape)))).reshape(-1, len(shape))
        made = torch.tensor(places.tolist(), device=args[0].device)
        self._note(made, places)
        if not as_tuple:
            return made
        columns = made.unbind(-1)
        self._note(columns, places.T)
        return columns

    def _note(self, made: Any, numbers: Any) -> None:
        """Records that the numbers in the tensors `made` are known."""
        if isinstance(made, (tuple, list)) and numbers is not None:
            for each, own in zip(made, numbers, strict=True):
                self._note(each, np.asarray(own))
        elif isinstance(made, Tensor) and numbers is not None and tuple(made.shape) == numbers.shape:
            self._known[id(made)] = made, numbers


def _compared(compare: Callable[[int, int], bool], numbers: Numbers, other: Any) -> Any:
    return compare(int(numbers.item()), other) if numbers.size == 1 and isinstance(other, int) else NotImplemented


def _indexed(numbers: Numbers, index: Any) -> Numbers | None:
    items = index if isinstance(index, tuple) else (index,)
    is_plain = all(isinstance(item, (int, slice)) or item is None or item is Ellipsis for item in items)
    return np.asarray(numbers[index]) if is_plain else None


_LOOKS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("item", "__int__", "__index__"), lambda numbers: int(numbers.item())),
    "tolist": lambda numbers: numbers.tolist(),
    **{
        form.format(name): functools.partial(_compared, getattr(operator, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("{}", "__{}__")
    },
}
"""How a program looks at numbers."""
_PARTS: Mapping[str, Callable[..., Any]] = {
    "unbind": lambda numbers, dim=0: np.moveaxis(numbers, dim, 0),
    "__getitem__": _indexed,
    "squeeze": lambda numbers, dim=None: numbers.squeeze(dim),
    "flatten": lambda numbers: numbers.reshape(-1),
}


def _unseeded(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without a generator of random numbers, which no graph holds: a plan is the same whatever is drawn."""
    return {key: value for key, value in kwargs.items() if not isinstance(value, torch.Generator)}


def _subtracted(tensor: Tensor, other: Any) -> Any:
    """`1.0 - tensor` of whole numbers, whose promotion to floats torch's exporter fails at."""
    return -(tensor - other) if isinstance(other, float) and not tensor.is_floating_point() else NotImplemented


def _item(tensor: Tensor, index: Any) -> Any:
    """`tensor[mask]`, and `tensor[..., mask]`: the dims of the mask as one."""
    found = _mask_in(tensor, index)
    if found is None:
        return NotImplemented
    mask, dim = found
    return tensor.flatten(dim, dim + mask.dim() - 1) if mask.dim() else tensor.unsqueeze(dim)


def _set_item(tensor: Tensor, index: Any, value: Any) -> Any:
    """Of `tensor[mask] = values`, values that are as many as the mask picks."""
    found = _mask_in(tensor, index)
    if found is None or not isinstance(value, Tensor):
        return NotImplemented
    mask, dim = found
    if not mask.dim() or value.dim() <= dim or value.shape[dim] != mask.numel() or mask.numel() == 1:
        return NotImplemented
    wide = mask.reshape(*mask.shape, *[1] * (tensor.dim() - dim - mask.dim()))
    tensor.copy_(torch.where(wide, value.unflatten(dim, mask.shape).to(tensor.dtype), tensor))
    return None


def _mask_in(tensor: Tensor, index: Any) -> tuple[Tensor, int] | None:
    """The mask that is all of an index but for whole dims, and the dim at which it begins."""
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    masks = [item for item in items if is_mask(item)]
    others = [item for item in items if not isinstance(item, Tensor)]
    if len(masks) != 1 or len(masks) + len(others) != len(items):
        return None
    if any(item is not Ellipsis and item != slice(None) for item in others):
        return None
    place = next(number for number, item in enumerate(items) if isinstance(item, Tensor))
    hidden = tensor.dim() - masks[0].dim() - sum(item is not Ellipsis for item in others)
    return masks[0], place + (hidden - 1 if any(item is Ellipsis for item in items[:place]) else 0)


def _masked_select(input: Tensor, mask: Tensor) -> Tensor:  # noqa: A002 - as torch
    return torch.broadcast_tensors(input, mask)[0].reshape(-1)


def _ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Any = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """A stand-in for a CTC loss, for which ONNX has no operator, with the same cost: the probability of every label at
    every time, summed over paths and times. It has the operands and the shape of the loss and not its value, which no
    plan needs."""
    del input_lengths, target_lengths, blank, zero_infinity
    many = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    times, rows = many.shape[:2]
    labels = targets.reshape(-1)
    labels = functional.pad(labels, (0, -labels.shape[0] % rows)).view(rows, -1)
    own = many.gather(2, labels.unsqueeze(0).expand(times, -1, -1).to(torch.long))
    loss = -own.logsumexp(-1).sum(0)
    if reduction in ("none", 0):
        return loss if log_probs.dim() == 3 else loss.squeeze(0)
    return loss.sum() if reduction in ("sum", 2) else loss.mean()


def _counts(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:  # noqa: A002 - as torch
    """`bincount` with numbers assumed to be below `minlength`."""
    if not minlength:
        return NotImplemented
    same = input.unsqueeze(-1) == torch.arange(minlength, device=input.device)
    return same.sum(0) if weights is None else (same * weights.unsqueeze(-1)).sum(0)


def _clamped(input: Tensor, *given: Any, **named: Any) -> Tensor:  # noqa: A002 - as torch
    """With numbers of the tensor's kind for bounds: torch's exporter cannot write a whole one beside another."""
    is_float = input.is_floating_point()
    own = [float(each) if is_float and type(each) is int else each for each in given]
    more = {key: float(each) if is_float and type(each) is int else each for key, each in named.items()}
    return torch.clamp(input, *own, **more)


def _counted(*given: Any, **named: Any) -> Any:
    """`arange`, whose numbers torch's exporter writes as they are given, whole ones beside others."""
    if not any(isinstance(each, float) for each in (*given, *named.values())):
        return NotImplemented
    bounds = {key: float(each) if type(each) is int else each for key, each in named.items()}
    return torch.arange(*(float(each) if type(each) is int else each for each in given), **bounds)


def _first(func: Callable[..., Any]) -> Callable[..., Any]:
    """The first result of a function, without a look whether a matrix can be decomposed: a graph has no numbers."""
    return lambda *args, **kwargs: func(*args, **kwargs)[0]


_FORMS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.linalg.inv, torch.inverse, Tensor.inverse), _first(torch.linalg.inv_ex)),
    torch.linalg.solve: _first(torch.linalg.solve_ex),
    torch.linalg.cholesky: _first(torch.linalg.cholesky_ex),
    functional.ctc_loss: _ctc,
    torch.ctc_loss: _ctc,
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
    Tensor.__rsub__: _subtracted,
    **dict.fromkeys((torch.bincount, Tensor.bincount), _counts),
    torch.arange: _counted,
    **dict.fromkeys((torch.clamp, Tensor.clamp, torch.clip, Tensor.clip), _clamped),
    **dict.fromkeys((torch.masked_scatter, Tensor.masked_scatter), masked_scatter),
    torch.masked_select: _masked_select,
    Tensor.masked_select: _masked_select,
}
_PLACES = frozenset((torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.where))
_PICKS = frozenset((Tensor.__getitem__, Tensor.__setitem__, torch.masked_select, Tensor.masked_select))
"""Functions whose result has as many entries as a mask picks."""
