"""A program's own `autograd.Function`s in an exported graph: what `forward` does as nodes, then a marker.

An exporter writes what `forward` does and would differentiate that. So while a program is exported, the results of such
a function pass through an operator that is given all that `backward` reads. What is written from the graph has a node
in its place that runs the program's `backward` (`shardplan.torch.exported.own_backward`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch.autograd.function import (
    BackwardCFunction,
    Function,
    FunctionCtx,
    _is_setup_context_defined,
    _SingleLevelFunction,
)
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from shardplan.torch.exported.reentrant import written_checkpoint
from shardplan.torch.exported.untraceable import having, untraceable

_META = "own_function"
_APPLY = vars(torch._C._FunctionBase)["apply"]  # noqa: SLF001 - torch has no public name for what `apply` ends in
_FUNCTION_APPLY = vars(Function)["apply"]
_PROXIES = torch._C._TorchDispatchModeKey.PROXY  # noqa: SLF001 - as above


_NO_CHANGE = "let it return a new tensor"
_BY_ITS_NAME = "call `F.apply(...)` where it is used; an `apply` that was taken before cannot be seen"
_NO_HOOKS = "hook the gradients of parameters, before or after the plan is applied, or change gradients after backward"


def _results(results: Sequence[Tensor], inputs: Sequence[Tensor], saved: Sequence[Tensor], number: int) -> list[Tensor]:
    """The differentiable results of a call. `inputs`: its arguments that take a gradient; `saved`: what backward reads;
    `number`: which call of the program."""
    del inputs, saved, number
    return [result.clone() for result in results]


def _undifferentiated(ctx: Any, *gradients: Any) -> Any:
    """Only while a program is exported would autograd ask for it."""
    del ctx, gradients
    raise untraceable("it differentiates a function of its own (autograd.Function) inside")


own_function = torch.library.custom_op("shardplan::own_function", _results, mutates_args=())
own_function.register_fake(_results)
own_function.register_autograd(_undifferentiated)


@dataclass(frozen=True)
class Saved:
    """Stands for a tensor among what a call has saved."""

    place: int


@dataclass(frozen=True)
class Call:
    """A call of a function of the program. `needed`: which arguments take a gradient; `results`: shape and dtype by
    result, None for what is no tensor; `marked`: which of them are differentiable; `kept`, `attributes`: what backward
    finds at its context, with places for tensors."""

    function: type[Function]
    needed: tuple[bool, ...]
    results: tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]
    marked: tuple[int, ...]
    kept: tuple[Any, ...]
    attributes: dict[str, Any]


class _Recorder(FunctionCtx):  # type: ignore[misc]
    """The context that a `forward` is given while its program is exported."""

    def __init__(self, function: type[Function], needed: tuple[bool, ...]) -> None:
        self.recorded: dict[str, Any] = {"function": function, "kept": (), "without": ()}
        self.needs_input_grad = needed

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """As torch's."""
        self.recorded["kept"] = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """As torch's."""
        self.recorded["without"] = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Raises `ShardplanError` (`cannot-export`)."""
        del tensors
        name = self.recorded["function"].__name__
        raise untraceable(f"{name}, an autograd.Function, changes its argument (mark_dirty)", _NO_CHANGE)

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always there."""


@contextlib.contextmanager
def marking_own_functions() -> Iterator[list[Call]]:
    """Programs that are exported within have markers for their own functions; gives the calls, by number."""
    calls: list[Call] = []
    inside: list[Any] = []

    def as_it_is(cls: Any, args: tuple[Any, ...]) -> Any:
        inside.append(cls)
        try:
            return _APPLY.__get__(None, cls)(*args)
        finally:
            inside.pop()

    def marked(cls: Any, *args: Any) -> Any:
        if _get_dispatch_mode_pre_dispatch(_PROXIES) is None:  # it is called by what is a node already
            return as_it_is(cls, args)
        return _written(cls, args, calls, as_it_is)

    def of_function(cls: Any, *args: Any, **named: Any) -> Any:
        if torch._C._are_functorch_transforms_active():  # noqa: SLF001 - torch's own `apply` asks this
            return _FUNCTION_APPLY.__get__(None, cls)(*args, **named)
        if _is_setup_context_defined(cls.setup_context):
            bound = inspect.signature(cls.forward).bind(*args, **named)
            bound.apply_defaults()
            args, named = bound.args, bound.kwargs
        return marked(cls, *args, **named)

    def check(context: Any) -> None:
        """Raises `ShardplanError` for a call that none of the functions above has seen."""
        if not inside and _get_dispatch_mode_pre_dispatch(_PROXIES) is not None:
            name = type(context).__name__.removesuffix("Backward")
            raise untraceable(f"{name}.apply, of an autograd.Function, is called by another name", _BY_ITS_NAME)

    with contextlib.ExitStack() as stack:
        stack.enter_context(having(_SingleLevelFunction, "apply", classmethod(marked)))
        if not isinstance(_FUNCTION_APPLY, classmethod):  # since torch 2.14 it does not end in the one of its base
            stack.enter_context(having(Function, "apply", classmethod(of_function)))
        stack.enter_context(having(BackwardCFunction, "__init__", check))
        yield calls


def _written(cls: Any, args: tuple[Any, ...], calls: list[Call], as_it_is: Callable[..., Any]) -> Any:
    """What a call returns. One of torch's is written as what it means, one without gradients as what it does
    (`as_it_is`)."""
    if cls is CheckpointFunction:
        return written_checkpoint(args)
    if cls is BackwardHookFunction:
        raise untraceable("a module in it has full backward hooks (register_full_backward_hook)", _NO_HOOKS)
    needed = tuple(isinstance(each, Tensor) and each.requires_grad for each in args)
    if not torch.is_grad_enabled() or not any(needed):
        return as_it_is(cls, args)
    if not issubclass(cls, Function):
        raise untraceable("it calls a function of its own (autograd.Function) within a transform of torch.func")
    recorder = _Recorder(cls, needed)
    made = _forward(cls, recorder, [each.detach() if take else each for each, take in zip(args, needed, strict=True)])
    results = list(made) if isinstance(made, tuple) else [made]
    without = {id(each) for each in recorder.recorded["without"]}
    places = [at for at, each in enumerate(results) if _has_gradient(each) and id(each) not in without]
    saved: list[Tensor] = []
    calls.append(_call_of(recorder, needed, results, places, saved))
    inputs = [each for each, take in zip(args, needed, strict=True) if take]
    told = own_function([results[at] for at in places], inputs, saved, len(calls) - 1) if places else []
    for at, each in zip(places, told, strict=True):
        results[at] = each
    return tuple(results) if isinstance(made, tuple) else results[0]


def _forward(cls: Any, recorder: _Recorder, args: Sequence[Any]) -> Any:
    if not _is_setup_context_defined(cls.setup_context):
        return cls.forward(recorder, *args)
    made = cls.forward(*args)
    cls.setup_context(recorder, tuple(args), made)
    return made


def _has_gradient(result: Any) -> bool:
    return isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex())


def _call_of(
    recorder: _Recorder, needed: tuple[bool, ...], results: Sequence[Any], places: Sequence[int], saved: list[Tensor]
) -> Call:
    """What is known of a call; tensors that it saves go to `saved`."""

    def place(tensor: Tensor) -> Saved:
        saved.append(tensor)
        return Saved(len(saved) - 1)

    own = {key: value for key, value in vars(recorder).items() if key not in {"recorded", "needs_input_grad"}}
    looks = ((tuple(each.shape), each.dtype) if isinstance(each, Tensor) else None for each in results)
    kept, attributes = pytree.tree_map_only(Tensor, place, (tuple(recorder.recorded["kept"]), own))
    return Call(recorder.recorded["function"], needed, tuple(looks), tuple(places), kept, attributes)


def remember_calls(graph: fx.GraphModule, calls: Sequence[Call]) -> None:
    """Let markers of a graph, and of graphs in it, know which calls they are of."""
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if is_marker(node):
                node.meta[_META] = calls[node.args[3]]


def is_marker(node: fx.Node) -> bool:
    """Whether a node marks the results of a function of the program."""
    return node.target is torch.ops.shardplan.own_function.default


def call_of(node: fx.Node) -> Call:
    """The call that a marker is of."""
    found: Call = node.meta[_META]
    return found
