"""Planned tensors: the tensors of a model's own code while it runs under a plan.

A planned tensor has the shape, dtype and device of the global tensor and holds the part of this process. Every function
of torch that is called with one is run by the engine, so code written for one device runs unchanged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.distributed.tensor import DTensor

from shardplan.torch.eager.aliases import (
    SELVES,
    View,
    in_memory,
    is_contiguous,
    note_views,
    shares,
    with_gradient_of,
    written_through,
)
from shardplan.torch.eager.autograd_functions import with_gradient
from shardplan.torch.eager.composites import body_of, is_composite
from shardplan.torch.eager.control_flow import CONTROL_FLOW
from shardplan.torch.eager.refused_calls import refuse_backward, refuse_collective
from shardplan.torch.gradients.flights import close
from shardplan.torch.plain_forms import plain_form
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.dispatch import apply, has_rule
from shardplan.torch.rules.function_names import in_place, in_torch_names, name_of
from shardplan.torch.rules.views import is_view
from shardplan.torch.strides import in_order

_ASKED_OF_LOCAL = frozenset(("requires_grad", "grad_fn", "is_leaf"))
_SET = (Tensor.requires_grad, Tensor.data)
"""Attributes that a program may set."""


class Planned(Tensor):  # type: ignore[misc]
    """The global tensor by shape, dtype and device; holds the part of this process. The adapter makes them: programs
    meet them only inside of a model. `seen`: the value that was last read with gradients off, and its version then;
    `has_gradient_node`: it is the result of a program's `autograd.Function` whose backward is in the graph; `view_of`:
    how it was made, if it is a view; `changes`: the number of in-place changes."""

    __module__ = "torch.planned"  # libraries find the functions for a tensor by the first name (opt_einsum, autoray)
    engine: Engine
    seen: tuple[Value, int] | None
    has_gradient_node: bool
    view_of: View | None
    changes: int
    _held: Value | Callable[[], Value]

    @staticmethod
    def of(value: Value, engine: Engine, *, is_leaf: bool = True) -> Planned:
        """A planned tensor of a value. It is a leaf of autograd, so that an `autograd.Function` leaves a trace."""
        make = Tensor._make_wrapper_subclass  # noqa: SLF001 - torch documents no other way
        made: Planned = make(
            Planned, value.shape, dtype=value.dtype, device=value.local.device, requires_grad=value.grad and is_leaf
        )
        made.value, made.engine, made.seen, made.has_gradient_node = value, engine, None, False
        made.view_of, made.changes = None, 0
        return made

    @staticmethod
    def weight(local: Tensor, shape: tuple[int, ...], engine: Engine, make: Callable[[], Value]) -> Planned:
        """A planned tensor of global `shape` whose value is made on first read. So autograd runs the backward that
        sends the weight's gradient before the backward of earlier computations."""
        made: Planned = Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch documents no other way
            Planned, shape, dtype=local.dtype, device=local.device, requires_grad=local.requires_grad
        )
        made._held, made.engine, made.seen, made.has_gradient_node = make, engine, None, False
        made.view_of, made.changes = None, 0
        return made

    @property
    def value(self) -> Value:
        """What this process has of it."""
        if not isinstance(self._held, Value):
            with self.engine.lasting():
                self._held = self._held()
        return self._held

    @value.setter
    def value(self, value: Value) -> None:
        self._held = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _transforms() and not _is_transformed((args, kwargs)) and getattr(func, "__name__", "") not in _DUALS:
            with temporarily_clear_interpreter_stack():  # the same for all that is mapped or differentiated
                return cls.__torch_function__(func, types, args, kwargs)
        return cls._called(func, args, in_torch_names(func, kwargs) if kwargs else {})

    @classmethod
    def _called(cls, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        refuse_collective(func)
        if name == "__get__" or (name == "__set__" and func.__self__ in _SET):
            return _attribute(func, args)
        if name in _PLAIN or _transforms():
            if name in _OF_MEMORY and not _transforms():
                args = in_memory(args[0]), *args[1:]
            if name == "__format__" and not args[0].dim():  # as torch writes a tensor of one number
                func, args = format, (args[0].item(), *args[1:])
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
                return func(*args, **kwargs)
        if func is torch.ops.aten.detach.default or (name == "detach" and _asks_a_checkpoint()):
            return Planned.of(args[0].value, args[0].engine, is_leaf=False)  # as below, past a mode of torch's too
        engine = next(_planned((args, kwargs))).engine
        if not engine.is_running:
            args, kwargs = _with_weights(args, engine), _with_weights(kwargs, engine)
        if name == "backward":
            refuse_backward(is_running=engine.is_running)
        body = _body(func, args, kwargs)
        if body is not None:
            return body(*args, **kwargs)
        if not has_rule(func) and is_composite(func):
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - its operators come to __torch_dispatch__
                return func(*args, **kwargs)
        return _run(func, args, kwargs, engine)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Functions are handled at `__torch_function__`; operators that come here have bypassed it, as operators of
        ATen."""
        if func is torch.ops.aten.detach.default:  # autograd gives back what it has saved, for a block to be recomputed
            return Planned.of(args[0].value, args[0].engine, is_leaf=False)
        refuse_collective(func)
        engine = next(_planned((args, kwargs))).engine
        if kwargs and kwargs.get("out") is not None:
            return _filled(func.overloadpacket, *args, **kwargs)
        hidden = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD  # noqa: SLF001 - there is no public way
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), hidden):  # noqa: SLF001
            named = {key: _value(argument) for key, argument in (kwargs or {}).items()}
            made = _applied(func, args, kwargs or {}, [_value(argument) for argument in args], named, engine)
            if in_place(func):
                return _changed(args[0], made, engine, func, args[1:], kwargs)
        wrapped = _wrap(made, engine, is_leaf=False)
        if args and isinstance(args[0], Planned) and is_view(func, args[1:]):
            note_views(wrapped, args[0], func, args[1:], kwargs or {})
        return wrapped

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Planned(shape={self.value.shape}, layout={self.value.layout.placements})"


_PLAIN = frozenset(
    ("size", "dim", "__len__", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "get_device",
     "__repr__", "__hash__", "is_contiguous", "stride", "storage_offset", "element_size",
     "data_ptr", "__format__", "is_nonzero_shape")
)  # fmt: skip
_OF_MEMORY = frozenset(("stride", "storage_offset"))
_DUALS = frozenset(("_make_dual", "_unpack_dual"))
"""Functions that bring a tensor into a transform, or out of it (`torch.func.jvp`)."""
_CHECKPOINT = torch.utils.checkpoint.__name__
_VIEWS = {"T": torch.t, "mT": lambda tensor: tensor.transpose(-2, -1)}


def _run(func: Any, args: Any, kwargs: Any, engine: Engine) -> Any:
    """Runs a function by its rule. If it changes its first operand, that is what it returns."""
    changes = in_place(func) or bool(kwargs.get("inplace"))
    values = [_value(argument) for argument in args]
    if changes and isinstance(args[0], Planned) and args[0].view_of is not None:  # it is written into what it views
        values[0] = replace(values[0], local=values[0].local.clone(), forms={})
    named = {key: _value(argument) for key, argument in kwargs.items() if key != "inplace"}
    made = _applied(func, args, kwargs, values, named, engine)
    if changes:
        return _changed(args[0], made, engine, func, args[1:], kwargs)
    if name_of(func) in SELVES and isinstance(args[0], Planned) and made.dtype == args[0].dtype:
        is_copy = kwargs.get("copy") or (name_of(func) == "contiguous" and not is_contiguous(args[0]))
        return _wrap(made, engine) if is_copy else args[0]
    wrapped = _named(name_of(func), _wrap(made, engine))
    if args and isinstance(args[0], Planned) and is_view(func, args[1:]):
        note_views(wrapped, args[0], func, args[1:], kwargs)
    return wrapped


def _applied(func: Any, args: Any, kwargs: Any, values: Any, named: Any, engine: Engine) -> Any:
    """A function of `values` and `named`, those of its arguments. Operands beside the first into which it writes (sums
    of a batch norm, lists of tensors) have changed, and so have what they are views of, and their own views."""
    outer, engine.written = engine.written, []
    try:
        made = apply(engine, func, values, named)
        written = {id(value) for value in engine.written}
    finally:
        engine.written = outer
    for planned in _planned((args, kwargs)) if written else ():
        if id(planned.value) in written:
            planned.changes += 1
            _write_through(planned)
    return made


def _named(name: str, made: Any) -> Any:
    """Several results under the names that torch has for them (`values`, `indices`)."""
    kind = getattr(torch.return_types, name, None)
    return made if kind is None or not isinstance(made, (tuple, list)) else kind(made)


def _attribute(func: Any, args: Any) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    planned: Planned = args[0]
    if func.__name__ == "__set__" and name == "data":
        with torch.no_grad():
            planned.detach().copy_(args[1])
        return None
    if func.__name__ == "__set__":
        planned.value = apply(planned.engine, Tensor.requires_grad_, [value_of(planned), args[1]], {})
        return None
    if name in _ASKED_OF_LOCAL:
        return getattr(value_of(planned).local, name)
    if name in _VIEWS:
        return _VIEWS[name](planned)
    if name == "data":
        return planned.detach()
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as above
        return func(*args)


def _changed(target: Any, made: Any, engine: Engine, func: Any, rest: Any, named: Any) -> Any:
    """The operand that a function has changed in place, with the value `made`. `rest`, `named`: its other arguments."""
    if isinstance(target, Planned) and made.shape != target.shape:
        _reshape(target, made, getattr(Tensor, name_of(func)), rest, named or {})
    elif isinstance(target, Planned):
        target.value = with_gradient_of(target.value, made, engine)
        target.changes += 1
        _write_through(target)
    elif isinstance(made, Value):  # a tensor of the program, which every process has whole
        whole = engine.convert(made, engine.constant(target, target.shape).layout)
        if whole.local is not target:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as above
                target.copy_(whole.local)
    return target


def _reshape(target: Planned, made: Value, func: Any, rest: Any, named: Any) -> None:
    """Changes the shape of a tensor in place (`unsqueeze_`) without changing its entries. If it is a view, it remains
    one of the same base."""
    before = Planned.of(target.value, target.engine)
    before.view_of, before.changes, target.value = target.view_of, target.changes, made
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - no other way
        Tensor.data.__set__(target, Planned.of(made, target.engine))
    if target.view_of is not None:
        target.view_of = View(before, func, rest, named, None, before.changes)


def _body(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The result of a function without a rule that calls functions with rules; else None."""
    if func is Tensor.register_hook:
        return _hooked
    if kwargs.get("out") is not None:
        return functools.partial(_filled, func)
    if func in _STRIDED and not is_contiguous(args[0]):
        return _strided
    if func in CONTROL_FLOW:
        return CONTROL_FLOW[func]
    return plain_form(func, args, kwargs) or (None if has_rule(func) else body_of(func))


def _strided(planned: Planned, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """`as_strided` of a view, whose strides are those of the program's memory."""
    strides, offset = in_order(in_memory(planned), size, stride, storage_offset)
    return torch.as_strided(planned.contiguous(), size, strides, offset)


_STRIDED = (torch.as_strided, Tensor.as_strided)


def _filled(func: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
    """The `out=` arguments of a function, filled with its results."""
    made = func(*args, **kwargs)
    with torch.no_grad():
        for given, each in zip(out, made, strict=True) if isinstance(out, (tuple, list)) else [(out, made)]:
            given.copy_(each)
    return out


def _hooked(planned: Planned, hook: Callable[[Planned], Tensor | None]) -> Any:
    """A hook on a value's gradient: it is given the gradient as a planned tensor and may return another."""
    value, engine = value_of(planned), planned.engine

    def run(gradient: Tensor) -> Tensor | None:
        key = Key(engine.graph.signatures.leaf("gradient"), value.shape)
        told = value.lineage.then("gradient") if value.lineage else None
        given = Value(gradient, value.layout.gradient, value.shape, gradient.dtype, False, key, lineage=told)
        with engine.beside_plan():
            made = hook(Planned.of(given, engine))
            if made is None:
                return None
            found = value_of(made) if isinstance(made, Planned) else engine.constant(made, made.shape)
            return engine.convert(found, value.layout.gradient, inner=True).local

    close(value.local)
    return value.local.register_hook(run)


def _write_through(planned: Planned) -> None:
    """Writes a changed view into its base."""
    view = _view_of(planned)
    if view is None:
        return
    before, engine = value_of(view.base), planned.engine
    view.base.value = with_gradient_of(before, written_through(view, before, planned.value, engine), engine)
    view.base.changes += 1
    view.seen = view.base.changes
    _write_through(view.base)


def _renew(planned: Planned) -> None:
    """Makes a view again if its base has changed."""
    if planned.view_of is None:
        return
    base = value_of(planned.view_of.base)
    view = _view_of(planned) if planned.view_of.base.changes != planned.view_of.seen else None
    if view is not None:
        made = apply(planned.engine, view.func, [base, *view.rest], dict(view.named))
        planned.value = made if view.number is None else made[view.number]
        planned.changes += 1
        view.seen = view.base.changes


def _view_of(planned: Planned) -> View | None:
    """How a tensor that has been changed, or whose base has, is a view; one that is none is forgotten."""
    if planned.view_of is not None and not shares(planned.view_of):
        planned.view_of = None
    return planned.view_of


def _planned(argument: Any) -> Iterator[Planned]:
    if isinstance(argument, Planned):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _planned(item)
    elif isinstance(argument, dict):
        yield from _planned(list(argument.values()))


def _with_weights(argument: Any, engine: Engine) -> Any:
    """With planned tensors in place of weights: a checkpoint runs a function of the program again, which reads weights
    of modules that do not run then."""
    if isinstance(argument, DTensor):
        weight = engine.weight_of(argument)
        if weight is not None:
            return weight
        whole = argument.full_tensor()
        return Planned.of(engine.constant(whole, whole.shape), engine)
    if type(argument) in {tuple, list}:
        return type(argument)(_with_weights(item, engine) for item in argument)
    if type(argument) is dict:
        return {key: _with_weights(item, engine) for key, item in argument.items()}
    return argument


def _asks_a_checkpoint() -> bool:
    """Whether torch's checkpoints call: the outer of two nested checkpoints keeps what the inner one needs, and
    autograd connects it to its gradient again."""
    return bool(sys._getframe(3).f_globals.get("__name__") == _CHECKPOINT)  # noqa: SLF001 - it has no name of its own


def _transforms() -> bool:
    """Whether a transform of `torch.func` is under way. What it does comes to `__torch_dispatch__`."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001 - no public name


def _is_transformed(argument: Any) -> bool:
    """Whether there is a tensor in it that a transform of `torch.func` (`vmap`) has wrapped."""
    if isinstance(argument, Tensor):
        wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(argument)  # noqa: SLF001 - no public name
        return wrapped
    if isinstance(argument, dict):
        return _is_transformed(list(argument.values()))
    return isinstance(argument, (tuple, list)) and any(map(_is_transformed, argument))


def value_of(planned: Planned) -> Value:
    """The value of a planned tensor. A result of the program's `autograd.Function` is connected to its gradient now.

    Raises `ShardplanError` (`lost-gradient`): see `shardplan.torch.eager.autograd_functions`.
    """
    _renew(planned)
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
        made_by = planned.grad_fn
    if hasattr(made_by, "_forward_cls") and not planned.has_gradient_node and not planned.engine.is_beside_plan:
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            number = planned.output_nr
        planned.value = with_gradient(planned.value, made_by, number, planned.engine, Planned.of)
        planned.has_gradient_node = True
    if planned.value.grad and not torch.is_grad_enabled():
        planned.seen = planned.value, planned.value.local._version  # noqa: SLF001 - as autograd does
        if planned.has_gradient_node:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                planned.engine.returned[made_by, planned.output_nr] = planned.seen
    return planned.value


def _value(argument: Any) -> Any:
    if isinstance(argument, Planned):
        return value_of(argument)
    if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
        return type(argument)(_value(item) for item in argument)
    return argument


def _wrap(made: Any, engine: Engine, *, is_leaf: bool = True) -> Any:
    if isinstance(made, Value):
        return Planned.of(made, engine, is_leaf=is_leaf)
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*(_wrap(item, engine, is_leaf=is_leaf) for item in made))
    if isinstance(made, (tuple, list)):
        return type(made)(_wrap(item, engine, is_leaf=is_leaf) for item in made)
    return made


_AUTOGRAD = functools.reduce(
    lambda one, other: one | other,
    [
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))  # noqa: SLF001 - there is no public name
        for name in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView", "Conjugate", "Negative")
    ],
)
"""What has been done with an operation when it comes below torch's functions, and is to be done with local ones."""
