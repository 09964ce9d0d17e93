"""Norms and variances over dims: torch's kernels if the dims are whole, else from sums over all parts."""

from __future__ import annotations

import math
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Value, broadcast_dims
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.norms import is_split, known_as, mean_over, over_parts, unknown
from shardplan.torch.rules.reductions import dims_of, reduction

VARIANCES = frozenset(("var", "std", "var_mean", "std_mean"))


def norm(engine: Engine, op: Op) -> Value:
    """`norm`, `linalg_vector_norm`: of split dims, from the sums of powers of all parts."""
    names = ("input", "p", "dim", "keepdim", "dtype")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    value, order = given["input"], given.get("p", given.get("ord", 2))
    kept, dtype = bool(given.get("keepdim", False)), given.get("dtype")
    order = 2 if order is None or order == "fro" else order
    if isinstance(order, str):
        return replicated(engine, op)  # type: ignore[no-any-return]
    dims = dims_of(given.get("dim"), value.rank)

    def of_whole(local: Any, *_: Any) -> Any:
        return torch.linalg.vector_norm(local, order, dims or None, kept, dtype=dtype)

    key, read = _read(engine, value, dims, kept=kept)
    if not is_split(read, dims) or dtype is not None or not 0 < order < math.inf or value.dtype.is_complex:
        return reduction(engine, Op("norm", of_whole, [value, dims]))  # type: ignore[no-any-return]
    powers = elementwise(engine, Op("pow", lambda local: local.abs() ** order, [unknown(read)]))
    total = over_parts(engine, reduction(engine, Op("sum", torch.sum, [powers, dims, kept])))
    return known_as(engine, _root(engine, total, 1 / order), key)


def variance(engine: Engine, op: Op) -> Any:
    """`var`, `std`, and either with the mean: of split dims, from the mean and the squares of all parts."""
    value, dims, correction, kept = _arguments(op)
    key, read = _read(engine, value, dims, kept=kept)
    if not is_split(read, dims) or value.dtype.is_complex:
        named = {"correction": correction, "keepdim": kept}
        return reduction(engine, Op(op.name, getattr(torch, op.name), [value, dims], named))
    value = unknown(read)
    apart = elementwise(engine, Op("sub", torch.sub, [value, mean_over(engine, value, dims)]))
    square = elementwise(engine, Op("square", torch.square, [apart]))
    total = over_parts(engine, reduction(engine, Op("sum", torch.sum, [square, dims, kept])))
    count = max(0, math.prod(value.shape[dim] for dim in dims) - correction)
    found = elementwise(engine, Op("pow", lambda local: local / count, [total]))
    found = known_as(engine, _root(engine, found, 0.5) if "std" in op.name else found, key)
    if "mean" not in op.name:
        return found
    return found, over_parts(engine, reduction(engine, Op("mean", torch.mean, [value, dims, kept])))


def distances(engine: Engine, op: Op) -> Value:
    """`cdist`: from each row of one value to each of another; only the last dim, in which rows are, is whole."""
    names = ("x1", "x2", "p", "compute_mode")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    pair = [as_value(engine, given.pop(name)) for name in names[:2]]
    batch = tuple(torch.broadcast_shapes(*(value.shape[:-2] for value in pair)))
    shape = (*batch, *(value.shape[-2] for value in pair))
    sizes = {f"b{dim}": size for dim, size in enumerate(batch)}
    sizes |= {"m": shape[-2], "n": shape[-1], "k": pair[0].shape[-1]}
    lead = [broadcast_dims(value.shape[:-2], batch) for value in pair]
    key = Key(engine.graph.signatures.nonlinear([value.key.signature for value in pair]), shape)
    call = Call(
        pair, [(*lead[0], ("m",), ("k",)), (*lead[1], ("n",), ("k",))],
        [(*((f"b{dim}",) for dim in range(len(batch))), ("m",), ("n",))], [shape], [key], sizes,
        lambda locals_, _: torch.cdist(*locals_, **given), frozenset({"k"}),
    )  # fmt: skip
    return engine.run(call)[0]


def _read(engine: Engine, value: Value, dims: tuple[int, ...], *, kept: bool) -> tuple[Key, Value]:
    """The key of what is left of a value, and the value as it is read for that."""
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(value.shape) if kept or dim not in dims)
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)
    return key, engine.read(value, [key])


def _root(engine: Engine, value: Value, power: float) -> Value:
    """A power below one, whose gradient at 0 is 0, as that of a norm is."""

    def root(local: Any) -> Any:
        return torch.where(local == 0, 0.0, torch.where(local == 0, 1.0, local) ** power)

    return elementwise(engine, Op("pow", root, [value]))


def _arguments(op: Op) -> tuple[Value, tuple[int, ...], float, bool]:
    """Value, dims, correction and whether dims stay, of any form of a call: `(x, unbiased)`,
    `(x, dim, unbiased, keepdim)` or `(x, dim, correction=, keepdim=)`."""
    value, *rest = op.args
    if rest and isinstance(rest[0], bool):
        rest.insert(0, None)
    given = {**dict(zip(("dim", "unbiased", "keepdim"), rest, strict=False)), **op.kwargs}
    correction = given.get("correction")
    if correction is None:
        correction = 1 if given.get("unbiased", True) else 0
    return value, dims_of(given.get("dim"), value.rank), correction, bool(given.get("keepdim", False))
