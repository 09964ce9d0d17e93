"""A program's own `autograd.Function`s on planned tensors.

Torch runs the `forward` of such a function on what it is given, with gradients off: every operation in it is the
engine's. It is then put into the graph of local tensors as one function, whose backward calls the program's own
`backward`, on planned tensors too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Applied:
    """A function that has run: `node` is its context; `inputs`: those that take a gradient, by position; `output`: its
    result `number`, in the layout in which its gradient comes back. Each of several results has its own object:
    `backward` is linear, and the gradients of all add up."""

    node: Any
    engine: Engine
    inputs: Sequence[tuple[int, Value]]
    output: Value
    number: int
    wrap: Wrap

    def gradients(self, local: Tensor) -> list[Tensor | None]:
        """The gradients of the inputs in their layouts, given the gradient of the output in its layout."""
        output, engine = self.output, self.engine
        key = Key(engine.graph.signatures.leaf("gradient"), output.shape)
        told = output.lineage.then("gradient") if output.lineage else None
        given = Value(local, output.layout.gradient, output.shape, local.dtype, False, key, lineage=told)
        context = _Context(self.node)
        with engine.beside_plan():
            results = [
                self.wrap(given, engine) if number == self.number else self._nothing(of)
                for number, of in enumerate(self.node._input_metadata)  # noqa: SLF001 - there is no public name
            ]
            made = self.node._forward_cls.backward(context, *results)  # noqa: SLF001 - as torch does
            found = made if isinstance(made, tuple) else (made,)
            return [self._local(found[position], value) for position, value in self.inputs]

    def _nothing(self, of: Any) -> Any:
        """The gradient of another result: zeros."""
        zeros = torch.zeros(tuple(of.shape), dtype=of.dtype, device=self.output.local.device)
        return self.wrap(self.engine.constant(zeros, zeros.shape), self.engine)

    def _local(self, gradient: Any, of: Value) -> Tensor | None:
        if gradient is None:
            return None
        value = gradient.value if hasattr(gradient, "value") else self.engine.constant(gradient, gradient.shape)
        made: Tensor = self.engine.convert(value, of.layout.gradient, inner=True).local
        return made


class _Context:
    """What a `backward` is given; what is brought again for it is brought now."""

    def __init__(self, node: Any) -> None:
        self._node, self.saved_tensors = node, node.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class _Run(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, applied: _Applied, *inputs: Tensor) -> Tensor:
        del inputs
        ctx.applied = applied
        made: Tensor = applied.output.local.detach()
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.applied.gradients(gradient)


def with_gradient(value: Value, node: Any, number: int, engine: Engine, wrap: Wrap) -> Value:
    """The result `value` of a function of the program, connected to its gradient. `node`: torch's record of the
    function, of which it is result `number`.

    Raises `ShardplanError` (`lost-gradient`) for reentrant checkpoints, results of another function that this one has
    not read, and arguments that have been changed since.
    """
    inputs = _inputs(node, engine)
    layout = _layout(value.layout, [of.layout for _, of in inputs])
    applied = _Applied(node, engine, inputs, replace(value, layout=layout), number, wrap)
    with torch.enable_grad():
        local = _Run.apply(applied, *(of.local for _, of in inputs))
    return replace(value, local=local, layout=layout, grad=True, forms={})


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


def _layout(forward: Layout, inputs: Sequence[Layout]) -> Layout:
    """If all inputs take partial gradients of whole values, so does a whole result."""
    placements = [
        RP if p == R and all(layout.placements[axis] == RP for layout in inputs) else p
        for axis, p in enumerate(forward.placements)
    ]
    return Layout.of(*placements, order=forward.order)
