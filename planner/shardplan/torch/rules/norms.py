"""Softmax and normalisations: torch's kernels if their dims are whole, else from statistics of all parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, R
from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key, softmax
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise, unary
from shardplan.torch.rules.reductions import reduction

_NORMS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}


def normalised(engine: Engine, op: Op) -> Value:
    """`softmax`, `log_softmax` over one dim, and `_safe_softmax`, which gives zeros where all is minus infinity."""
    value = op.args[0]
    given = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else -1)
    dim, is_log = int(-1 if given is None else given) % value.rank, "log" in op.name
    is_safe = "safe" in op.name
    dtype = op.kwargs.get("dtype", op.args[2] if len(op.args) > 2 and isinstance(op.args[2], torch.dtype) else None)
    key = Key(softmax(engine.graph.signatures, [value.key.signature]), value.shape)
    read = engine.read(value, [key])
    if is_split(read, (dim,)):
        if dtype is not None:
            read = elementwise(engine, Op("to", torch.Tensor.to, [unknown(read), dtype]))
        return known_as(engine, _split_softmax(engine, read, dim, is_log=is_log, is_safe=is_safe), key)
    made = torch.log_softmax if is_log else torch._safe_softmax if is_safe else torch.softmax  # noqa: SLF001 - no other
    call = unary(read, key, lambda locals_, _: made(locals_[0], dim, dtype=dtype), [dim])
    call.ready = True
    return engine.run(call)[0]


def _split_softmax(engine: Engine, value: Value, dim: int, *, is_log: bool, is_safe: bool) -> Value:
    """The maximum and the sum of exponentials of a row come from all its parts."""
    value = unknown(value)
    top = over_parts(engine, _partial(engine, value, dim, lambda local: local.detach().amax(dim, True), "max"))
    if is_safe:
        top = elementwise(engine, Op("where", lambda most: torch.where(most.isneginf(), 0, most), [top]))
    shifted = elementwise(engine, Op("sub", torch.sub, [value, top]))
    powers = elementwise(engine, Op("exp", torch.exp, [shifted]))
    total = over_parts(engine, reduction(engine, Op("sum", torch.sum, [powers, dim, True])))
    if is_safe:
        total = elementwise(engine, Op("where", lambda most: torch.where(most == 0, 1, most), [total]))
    if is_log:
        return elementwise(engine, Op("sub", torch.sub, [shifted, elementwise(engine, Op("log", torch.log, [total]))]))
    return elementwise(engine, Op("div", torch.div, [powers, total]))


def layer_norm(engine: Engine, op: Op) -> Value:
    """`layer_norm`, `rms_norm` over the last dims."""
    given = {**dict(zip(_NORMS[op.name], op.args, strict=False)), **op.kwargs}
    value, size = given["input"], len(given["normalized_shape"])
    affine = {part: as_value(engine, given[part]) for part in ("weight", "bias") if given.get(part) is not None}
    operands = [value, *affine.values()]
    dims = tuple(range(value.rank - size, value.rank))
    key = Key(engine.graph.signatures.nonlinear([operand.key.signature for operand in operands]), value.shape)
    read = [engine.read(operand, [key]) for operand in operands]
    if any(is_split(operand, range(operand.rank - size, operand.rank)) for operand in read):
        epsilon = given.get("eps")
        epsilon = torch.finfo(value.dtype).eps if epsilon is None else epsilon
        parts = dict(zip(affine, map(unknown, read[1:]), strict=True))
        centred = op.name == "layer_norm"
        return known_as(engine, _split_norm(engine, unknown(read[0]), parts, dims, epsilon, centred=centred), key)

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        rest = dict(zip(affine, locals_[1:], strict=True))
        made = functional.layer_norm if op.name == "layer_norm" else functional.rms_norm
        return made(locals_[0], given["normalized_shape"], **rest, **_epsilon(given))

    call = unary(value, key, run, dims)
    call.ready, call.operands, call.dims = (
        True,
        read,
        [call.dims[0], *[tuple((f"x{dim}",) for dim in dims)] * len(affine)],
    )
    return engine.run(call)[0]


def weight_norm(engine: Engine, op: Op) -> tuple[Value, Value]:
    """A direction and a length, which the norms over all dims but one are brought to: the product, and the norms."""
    direction, length = (as_value(engine, item) for item in op.args[:2])
    dim = int(op.kwargs.get("dim", op.args[2] if len(op.args) > 2 else 0))
    dims = tuple(each for each in range(direction.rank) if each != dim)
    square = elementwise(engine, Op("square", torch.square, [direction]))
    norms = elementwise(
        engine,
        Op("sqrt", torch.sqrt, [over_parts(engine, reduction(engine, Op("sum", torch.sum, [square, dims, True])))]),
    )
    share = elementwise(engine, Op("div", torch.div, [length, norms]))
    return elementwise(engine, Op("mul", torch.mul, [direction, share])), norms


def _epsilon(given: dict[str, Any]) -> dict[str, Any]:
    return {"eps": given["eps"]} if given.get("eps") is not None else {}


def _split_norm(
    engine: Engine, value: Value, affine: dict[str, Value], dims: tuple[int, ...], epsilon: float, *, centred: bool
) -> Value:
    """Mean and mean square come from all parts."""
    if centred:
        value = elementwise(engine, Op("sub", torch.sub, [value, mean_over(engine, value, dims)]))
    square = mean_over(engine, elementwise(engine, Op("square", torch.square, [value])), dims)
    scale = elementwise(engine, Op("rsqrt", lambda local: torch.rsqrt(local + epsilon), [square]))
    made = elementwise(engine, Op("mul", torch.mul, [value, scale]))
    if "weight" in affine:
        made = elementwise(engine, Op("mul", torch.mul, [made, affine["weight"]]))
    return elementwise(engine, Op("add", torch.add, [made, affine["bias"]])) if "bias" in affine else made


def mean_over(engine: Engine, value: Value, dims: tuple[int, ...]) -> Value:
    """The mean over dims, which stay, of all parts."""
    return over_parts(engine, reduction(engine, Op("mean", torch.mean, [value, dims, True])))


def is_split(value: Value, dims: Sequence[int]) -> bool:
    """Whether any of `dims` is sharded."""
    return any(placement.is_shard and placement.dim in dims for placement in value.layout.placements)


def unknown(value: Value) -> Value:
    """The value as one that no plan knows: what happens inside an operator is not the plan's business."""
    return replace(value, key=Key(CONSTANT, value.shape), forms={}, reads=0)


def _partial(engine: Engine, value: Value, dim: int, func: Callable[[Any], Any], how: str) -> Value:
    """A reduction of each part, still to be combined."""
    call = unary(value, value.key, lambda locals_, _: func(locals_[0]))
    shape = (*value.shape[:dim], 1, *value.shape[dim + 1 :])
    call.results, call.shapes, call.reduction = [(*call.dims[0][:dim], (), *call.dims[0][dim + 1 :])], [shape], how
    call.keys = [Key(CONSTANT, shape)]
    return engine.run(call)[0]


def over_parts(engine: Engine, value: Value) -> Value:
    """A statistic of all parts, from those of each."""
    placements = (p if p.kind != "P" else RP if value.grad else R for p in value.layout.placements)
    return engine.convert(value, Layout.of(*placements, order=value.layout.order), inner=True)


def known_as(engine: Engine, value: Value, key: Key) -> Value:
    """A value as what the plan knows by `key`, and in its layout."""
    return engine.result(value.local, value.layout, value.shape, key)
