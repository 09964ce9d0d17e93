"""A program's own `autograd.Function`s on planned tensors.

Torch runs the `forward` of such a function on what it is given, with gradients off: every operation in it is the
engine's. It is then put into the graph of local tensors as one function, whose backward calls the program's own
`backward`, on planned tensors too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.checkpoint import CheckpointFunction

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, R
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value

Wrap = Callable[[Value, Engine], Any]
"""Makes a planned tensor."""


@dataclass(eq=False)
class AppliedFunction:
    """A function that has run. `prepared` gives its backward with what it has saved, brought now, which takes the
    gradients of all results, of these shapes and dtypes (None: of what is no tensor); `inputs`: those that take a
    gradient, by position. `_outputs`: the results that have been read, without what this process has of them;
    `_arrived`: their gradients in the backward pass under way."""

    prepared: Callable[[], Callable[..., Any]]
    results: Sequence[tuple[tuple[int, ...], torch.dtype] | None]
    engine: Engine
    inputs: Sequence[tuple[int, Value]]
    wrap: Wrap
    _outputs: dict[int, Value] = field(default_factory=dict)
    _arrived: dict[int, Tensor] = field(default_factory=dict)

    def opened(self) -> OpenedFunction:
        """The function as a node of autograd."""
        with torch.enable_grad():
            return OpenedFunction(self, _Joint.apply(self, *(of.local for _, of in self.inputs)))

    def read(self, number: int, value: Value) -> Value:
        """The result `number`, `value`, in the layout in which its gradient comes back."""
        layout = _differentiable(value.layout, [of.layout for _, of in self.inputs])
        made = replace(value, layout=layout, grad=True, forms={})
        self._outputs[number] = replace(made, local=None)
        return made

    def arrive(self, number: int, gradient: Tensor) -> None:
        """The gradient of a result has come back."""
        self._arrived[number] = gradient

    def gradients(self) -> list[Tensor | None]:
        """Of the inputs, as each takes it, for the gradients of the results."""
        arrived, self._arrived = self._arrived, {}
        backward = self.prepared()  # what a checkpoint computes for it again has a place in the plan
        with self.engine.beside_plan():
            given = [
                self._gradient(arrived[number], self._outputs[number]) if number in arrived else of and self._zeros(*of)
                for number, of in enumerate(self.results)
            ]
            made = backward(*given)
            found = made if isinstance(made, tuple) else (made,)
            return [self._local(found[position], value) for position, value in self.inputs]

    def _gradient(self, local: Tensor, output: Value) -> Any:
        """The gradient of a result, as it has come back."""
        key = Key(self.engine.graph.signatures.leaf("gradient"), output.shape)
        told = output.lineage.then("gradient") if output.lineage else None
        layout = output.layout.gradient
        return self.wrap(Value(local, layout, output.shape, local.dtype, False, key, lineage=told), self.engine)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """The gradient of a result that nothing has come back for."""
        zeros = torch.zeros(shape, dtype=dtype, device=self.engine.groups.device)
        return self.wrap(self.engine.constant(zeros, shape), self.engine)

    def _local(self, gradient: Any, of: Value) -> Tensor | None:
        if gradient is None:
            return None
        value = gradient.value if hasattr(gradient, "value") else self.engine.constant(gradient, gradient.shape)
        made: Tensor = self.engine.convert(value, of.layout.gradient, inner=True).local
        return made


@dataclass(eq=False)
class OpenedFunction:
    """A function as a node of autograd, which comes after all of its results have their gradients: `tokens`, one for
    each result, hold them together. Results refer to it, and it to nothing that does."""

    applied: AppliedFunction
    tokens: Sequence[Tensor]

    def result(self, number: int, value: Value) -> Value:
        """A result with its gradient."""
        made = self.applied.read(number, value)
        with torch.enable_grad():
            local = _Result.apply(self, number, value.local, self.tokens[number])
        return replace(made, local=local)


class _Joint(torch.autograd.Function):  # type: ignore[misc]
    """The tokens of a function's results, behind which its backward runs, once."""

    @staticmethod
    def forward(ctx: Any, applied: AppliedFunction, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.applied = applied
        return tuple(torch.zeros((), device=inputs[0].device) for _ in applied.results)

    @staticmethod
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Tensor | None, ...]:
        del tokens
        return None, *ctx.applied.gradients()


class _Result(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, opened: OpenedFunction, number: int, local: Tensor, token: Tensor) -> Tensor:
        del token
        ctx.opened, ctx.number = opened, number
        return local.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.opened.applied.arrive(ctx.number, gradient)
        return None, None, None, torch.zeros((), device=gradient.device)


class _Context:
    """What a `backward` is given; what is brought again for it is brought now."""

    def __init__(self, node: Any) -> None:
        self._node, self.saved_tensors = node, node.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def with_gradient(value: Value, node: Any, number: int, engine: Engine, wrap: Wrap) -> Value:
    """The result `value` of a function of the program, connected to its gradient. `node`: torch's record of the
    function, of which it is result `number`.

    Raises `ShardplanError` (`lost-gradient`) for reentrant checkpoints, results of another function that this one has
    not read, and arguments that have been changed since.
    """
    opened = engine.functions.get(id(node))
    if opened is None:
        results = [(tuple(of.shape), of.dtype) for of in node._input_metadata]  # noqa: SLF001 - no public name

        def prepared() -> Callable[..., Any]:
            return functools.partial(backward_of(node._forward_cls), _Context(node))  # noqa: SLF001 - as torch does

        opened = AppliedFunction(prepared, results, engine, _inputs(node, engine), wrap).opened()
        engine.functions[id(node)] = opened
    made: Value = opened.result(number, value)
    return made


def _inputs(node: Any, engine: Engine) -> list[tuple[int, Value]]:
    """The inputs that take a gradient, by position, as the function has read them."""
    if getattr(node, "_forward_cls", None) is BackwardHookFunction:
        raise ShardplanError(_HOOKED)
    takers = [edge for edge in node.next_functions if edge[0] is not None]
    if getattr(node, "_forward_cls", None) in (None, CheckpointFunction):
        raise ShardplanError(_lost(node, "it brings weights gradients that it is not given"))
    places = [position for position, needed in enumerate(node.needs_input_grad) if needed]
    return [(position, _given(edge, node, engine)) for position, edge in zip(places, takers, strict=True)]


def _given(edge: tuple[Any, int], node: Any, engine: Engine) -> Value:
    if hasattr(edge[0], "variable"):
        return _read(edge[0].variable, node, engine)
    if edge not in engine.returned:
        raise ShardplanError(_lost(node, "it is given what another one has returned, and does not read it"))
    value, version = engine.returned[edge]
    return _unchanged(value, version, node)


_HOOKED = error(
    "lost-gradient",
    "a module inside a model under a plan has full backward hooks, which would not be called",
    hint="hook what it is given or returns instead, in a forward hook: tensor.register_hook(...)",
)


def _read(variable: Tensor, node: Any, engine: Engine) -> Value:
    if not hasattr(variable, "seen"):
        return engine.constant(variable, variable.shape)
    value: Value = variable.value
    kept, version = variable.seen or (value, value.local._version)  # noqa: SLF001 - as autograd does
    return _unchanged(kept, version, node)


def _unchanged(value: Value, version: int, node: Any) -> Value:
    if version != value.local._version:  # noqa: SLF001
        raise ShardplanError(_lost(node, "its argument is changed in place before its result is read"))
    return value


def _lost(node: Any, why: str) -> Diagnostic:
    name = node.name().removesuffix("Backward")
    summary = f"'{name}' is an autograd.Function, whose backward would be lost: {why}"
    hint = "compute it with torch's own functions; torch.utils.checkpoint takes use_reentrant=False"
    return error("lost-gradient", summary, hint=hint)


def backward_of(function: Any) -> Callable[..., Any]:
    """What a function of the program has for its backward, under one of two names."""
    base = torch.autograd.Function
    found: Callable[..., Any] = function.backward if function.vjp is base.vjp else function.vjp
    return found


def _differentiable(forward: Layout, inputs: Sequence[Layout]) -> Layout:
    """The layout of a result and its gradient, of what is in `forward`. Where all inputs take partial gradients of
    whole values, so does a result that is whole."""
    placements = [
        RP if p == R and all(layout.placements[axis] == RP for layout in inputs) else p
        for axis, p in enumerate(forward.placements)
    ]
    return Layout.of(*placements, order=forward.order)
