"""`torch.autograd.grad` inside of a program: gradients of local parts, in the layouts in which gradients come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, P, Placement, R
from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.elementwise import as_value

_NAMES = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused")


def gradients(engine: Engine, op: Op) -> tuple[Value | None, ...]:
    """Gradients of `outputs` for `inputs`. The local graph is kept: later readers share what weights are moved by.

    Raises `NotImplementedError` for batches of gradients.
    """
    given = {**dict(zip(_NAMES, op.args, strict=False)), **op.kwargs}
    if given.pop("is_grads_batched", False):
        raise NotImplementedError("batches of gradients")
    outputs, inputs = _listed(given.pop("outputs")), _listed(given.pop("inputs"))
    starts = given.pop("grad_outputs", None)
    starts = [None] * len(outputs) if starts is None else _listed(starts)
    of_outputs = [_start(engine, value, start) for value, start in zip(outputs, starts, strict=True)]
    given["retain_graph"], again = True, bool(given.get("create_graph"))
    found = torch.autograd.grad(
        [getattr(each, "local", each) for each in outputs], [getattr(each, "local", each) for each in inputs],
        of_outputs, **given,
    )  # fmt: skip
    values = [as_value(engine, each) for each in inputs]
    signatures = [value.key.signature for value in (*values, *(as_value(engine, each) for each in outputs))]
    signature = engine.graph.signatures.nonlinear(signatures)
    return tuple(
        None if local is None else _gradient(local, value, signature, again=again)
        for local, value in zip(found, values, strict=True)
    )


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (tuple, list)) else [given]


def _start(engine: Engine, output: Any, start: Any) -> Any:
    """The gradient of an output, as it comes back to it; one where none is given."""
    value = as_value(engine, output)
    if start is None:
        start = torch.ones(value.shape, dtype=value.dtype, device=engine.groups.device)
    return engine.convert(as_value(engine, start), _dual(value.layout), inner=True).local


def _gradient(local: Any, of: Value, signature: int, *, again: bool) -> Value:
    layout = _dual(of.layout)
    has_gradient = again and bool(local.requires_grad)
    return Value(
        local, layout if has_gradient else layout.forward, of.shape, local.dtype, has_gradient, Key(signature, of.shape)
    )


def _dual(layout: Layout) -> Layout:
    """The layout of the gradient of what is in `layout`: of whole values with partial gradients it is partial, of
    partial ones whole."""
    return Layout.of(*map(_turned, layout.placements), order=layout.order)


def _turned(placement: Placement) -> Placement:
    if placement == RP:
        return P()
    return RP if placement.kind == "P" else placement if placement.is_shard else R
