"""Planned tensors: the tensors of a model's own code while it runs under a plan.

A planned tensor has the shape, dtype and device of the global tensor and holds the part of this process. Every function
of torch that is called with one is run by the engine, so code written for one device runs unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shardplan.torch.eager.autograd_functions import with_gradient
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.dispatch import apply
from shardplan.torch.rules.function_names import in_place

_ASKED_OF_LOCAL = frozenset(("requires_grad", "grad_fn", "is_leaf"))


class Planned(Tensor):  # type: ignore[misc]
    """The global tensor by shape, dtype and device; holds the part of this process. Made by the adapter: programs meet
    them only inside a model. `seen`: the value that was last read with gradients off, and its version then;
    `has_gradient_node`: it is the result of a program's `autograd.Function`, and its backward is in the graph."""

    value: Value
    engine: Engine
    seen: tuple[Value, int] | None
    has_gradient_node: bool

    @staticmethod
    def of(value: Value, engine: Engine, *, is_leaf: bool = True) -> Planned:
        """A planned tensor of a value. It is a leaf of autograd, so that an `autograd.Function` leaves a trace."""
        make = Tensor._make_wrapper_subclass  # noqa: SLF001 - torch documents no other way
        made: Planned = make(
            Planned, value.shape, dtype=value.dtype, device=value.local.device, requires_grad=value.grad and is_leaf
        )
        made.value, made.engine, made.seen, made.has_gradient_node = value, engine, None, False
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return _attribute(func, args)
        if name in _PLAIN:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
                return func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:  # as below, past a mode of torch's that looks on
            return cls.__torch_dispatch__(func, types, args, kwargs)
        engine = next(_planned((args, kwargs))).engine
        if name == "backward":
            raise RuntimeError("call backward on what the model returns, not on a value inside it")
        values = [_value(argument) for argument in args]
        made = apply(engine, func, values, {key: _value(argument) for key, argument in kwargs.items()})
        if in_place(func) and isinstance(args[0], Planned):
            args[0].value = made
            return args[0]
        return _wrap(made, engine)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function is taken at `__torch_function__`; what comes here has bypassed it."""
        if func is torch.ops.aten.detach.default:  # autograd gives back what it has saved, for a block to be recomputed
            return Planned.of(args[0].value, args[0].engine, is_leaf=False)
        raise RuntimeError(f"{func} met a planned tensor below torch's functions; it has no layout there")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Planned(shape={self.value.shape}, layout={self.value.layout.placements})"


_PLAIN = frozenset(
    ("size", "dim", "__len__", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "get_device",
     "__repr__", "__hash__", "is_contiguous", "stride", "element_size", "data_ptr", "__format__", "is_nonzero_shape")
)  # fmt: skip
_VIEWS = {"T": torch.t, "mT": lambda tensor: tensor.transpose(-2, -1)}


def _attribute(func: Any, args: Any) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    planned: Planned = args[0]
    if name in _ASKED_OF_LOCAL:
        return getattr(value_of(planned).local, name)
    if name in _VIEWS:
        return _VIEWS[name](planned)
    if name == "data":
        return planned
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as above
        return func(*args)


def _planned(argument: Any) -> Iterator[Planned]:
    if isinstance(argument, Planned):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _planned(item)
    elif isinstance(argument, dict):
        yield from _planned(list(argument.values()))


def value_of(planned: Planned) -> Value:
    """The value of a planned tensor. What an `autograd.Function` of the program has returned gets its gradient now.

    Raises `ShardplanError` (`lost-gradient`): see `shardplan.torch.custom`.
    """
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
        made_by = planned.grad_fn
    if made_by is not None and not planned.has_gradient_node and not planned.engine.is_beside_plan:
        planned.value = with_gradient(planned.value, made_by, planned.engine, Planned.of)
        planned.has_gradient_node = True
    if planned.value.grad and not torch.is_grad_enabled():
        planned.seen = planned.value, planned.value.local._version  # noqa: SLF001 - as autograd does
    return planned.value


def _value(argument: Any) -> Any:
    if isinstance(argument, Planned):
        return value_of(argument)
    if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
        return type(argument)(_value(item) for item in argument)
    return argument


def _wrap(made: Any, engine: Engine) -> Any:
    if isinstance(made, Value):
        return Planned.of(made, engine)
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*(_wrap(item, engine) for item in made))
    if isinstance(made, (tuple, list)):
        return type(made)(_wrap(item, engine) for item in made)
    return made
