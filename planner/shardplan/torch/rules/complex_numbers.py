"""Complex numbers and pairs of real ones; Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Dims, Value
from shardplan.torch.rules.elementwise import unary

FOURIER = frozenset(f"fft_{name}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")) | frozenset(
    f"fft_{name}{dims}" for name in ("fft", "ifft", "rfft", "irfft") for dims in ("2", "n")
)


def of_pairs(engine: Engine, op: Op) -> Value:
    """`view_as_complex`: a last dim of two parts, which is whole, becomes one number. In the plan both are parts."""
    value: Value = op.args[0]
    shape, terms, last = value.shape[:-1], engine.graph.signatures, value.rank - 1
    signature = value.key.signature
    if signature != CONSTANT:
        signature = terms.linear(terms.part(signature, shape, (last, number), "program") for number in range(2))
    call = unary(value, Key(signature, shape), lambda locals_, _: op.func(locals_[0].contiguous()), [last])
    call.results, call.shapes, call.linear = [call.dims[0][:-1]], [shape], (frozenset({0}),)
    return engine.run(call)[0]


def in_pairs(engine: Engine, op: Op) -> Value:
    """`view_as_real`: every number as two, in a last dim that is whole."""
    value: Value = op.args[0]
    shape = (*value.shape, 2)
    call = unary(value, Key(value.key.signature, shape), lambda locals_, _: op.func(locals_[0].resolve_conj()))
    call.results, call.shapes, call.linear = [(*call.dims[0], ("parts",))], [shape], (frozenset({0}),)
    call.sizes, call.whole = {**call.sizes, "parts": 2}, call.whole | {"parts"}
    return engine.run(call)[0]


def transform(engine: Engine, op: Op) -> Value:
    """Transforms along dims that are whole; they are linear."""
    value: Value = op.args[0]
    probe = torch.empty(value.shape, dtype=value.dtype, device="meta")
    made = op.func(probe, *op.args[1:], **op.kwargs)
    dims = _dims(op, value.rank)
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), tuple(made.shape))

    def run(locals_: list[Any], site: Any) -> Any:
        del site
        return op.func(locals_[0], *op.args[1:], **op.kwargs)

    call = unary(value, key, run, dims)
    after: Dims = tuple((f"y{dim}",) if dim in dims else (f"x{dim}",) for dim in range(value.rank))
    new = {f"y{dim}": int(made.shape[dim]) for dim in dims}
    call.results, call.shapes, call.sizes = [after], [tuple(made.shape)], {**call.sizes, **new}
    call.whole, call.linear = call.whole | frozenset(new), (frozenset({0}),)
    return engine.run(call)[0]


def _dims(op: Op, rank: int) -> tuple[int, ...]:
    """The dims of a transform, by the arguments (size, dim, norm)."""
    given = op.kwargs.get("dim", op.args[2] if len(op.args) > 2 else None)
    if op.name.endswith(("2", "n")):
        sizes = op.kwargs.get("s", op.args[1] if len(op.args) > 1 else None)
        if given is None:
            given = (-2, -1) if op.name.endswith("2") else range(-len(sizes) if sizes else -rank, 0)
        return tuple(sorted(dim % rank for dim in given))
    return ((-1 if given is None else int(given)) % rank,)
