"""Spatial windows (pooling, interpolation), whose space is whole, and padding, whose padded dims are whole."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Dims, Value
from shardplan.torch.rules.elementwise import as_value, unary

POOLS = frozenset(
    f"{kind}_pool{space}d{more}"
    for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg")
    for space in (1, 2, 3)
    for more in ("", "_with_indices")
)
SAMPLINGS = frozenset(("interpolate", "upsample", "grid_pool", "pixel_shuffle", "pixel_unshuffle"))


def pool(engine: Engine, op: Op) -> Any:
    """Pools over the last dims, with or without indices."""
    space = int(next(letter for letter in op.name if letter.isdigit()))
    value = op.args[0] if op.args else op.kwargs["input"]
    return _of_dims(engine, op, range(value.rank - space, value.rank), is_linear="avg" in op.name)


def sampling(engine: Engine, op: Op) -> Any:
    """What makes other positions of space out of those there are; `pixel_shuffle` also of channels."""
    value = op.args[0] if op.args else op.kwargs["input"]
    first = value.rank - 3 if op.name.startswith("pixel") else 2
    return _of_dims(engine, op, range(first, value.rank), is_linear=False)


def grid(engine: Engine, op: Op) -> Value:
    """Samples of a map at places of a grid: of every sample of a batch, channel and place by itself."""
    names = ("input", "grid", "mode", "padding", "align_corners")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    value, places = as_value(engine, given.pop("input")), as_value(engine, given.pop("grid"))
    space: Dims = tuple((f"g{dim}",) for dim in range(1, places.rank - 1))
    shape = (*value.shape[:2], *places.shape[1:-1])
    sizes = {f"x{dim}": size for dim, size in enumerate(value.shape)}
    sizes |= {f"g{dim}": size for dim, size in enumerate(places.shape)}
    dims = tuple((f"x{dim}",) for dim in range(value.rank))
    key = Key(engine.graph.signatures.nonlinear([value.key.signature, places.key.signature]), shape)
    call = Call(
        [value, places], [dims, (("x0",), *space, (f"g{places.rank - 1}",))], [(("x0",), ("x1",), *space)], [shape],
        [key], sizes, lambda locals_, _: op.func(*locals_, *given.values()),
        frozenset((*(f"x{dim}" for dim in range(2, value.rank)), f"g{places.rank - 1}")), (frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def pad(engine: Engine, op: Op) -> Any:
    """Padding of the last dims."""
    value = op.args[0]
    widths = op.kwargs.get("pad", op.args[1] if len(op.args) > 1 else ())
    padded = [value.rank - 1 - place // 2 for place, width in enumerate(widths) if width]
    names = ("pad", "mode", "value") if op.name == "pad" else ("pad", "value")
    given = {**dict(zip(names, op.args[1:], strict=False)), **op.kwargs}
    mode, filler = given.get("mode", "constant"), given.get("value")
    return _of_dims(engine, op, padded, is_linear=mode != "constant" or not filler, adds=True)


def per_sample(engine: Engine, op: Op) -> Value:
    """What is done to each sample by itself, and gives it another shape (`im2col`, `col2im`): dim 0 alone may be split.
    It is linear."""
    value: Value = op.args[0]
    shape = tuple(op.func(torch.empty(value.shape, device="meta", dtype=value.dtype), *op.args[1:], **op.kwargs).shape)
    batch = value.rank == (4 if op.name == "im2col" else 3)
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)
    call = unary(
        value, key, lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs), range(batch, value.rank)
    )
    dims = tuple((f"x{dim}",) if batch and not dim else (f"y{dim}",) for dim in range(len(shape)))
    call.sizes = {**call.sizes, **{f"y{dim}": size for dim, size in enumerate(shape)}}
    call.whole = call.whole | {f"y{dim}" for dim in range(len(shape))}
    call.results, call.shapes, call.linear = [dims], [shape], (frozenset({0}),)
    return engine.run(call)[0]


def unfold(engine: Engine, op: Op) -> Value:
    """Windows of one dim, which is whole, in a new last dim."""
    value: Value = op.args[0]
    shape = tuple(op.func(torch.empty(value.shape, device="meta", dtype=value.dtype), *op.args[1:], **op.kwargs).shape)
    dim = int(op.kwargs.get("dimension", op.args[1] if len(op.args) > 1 else 0)) % value.rank
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)
    call = unary(value, key, lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs), [dim])
    (dims,) = call.dims
    call.results, call.shapes, call.linear = (
        [(*dims[:dim], ("y",), *dims[dim + 1 :], ("z",))],
        [shape],
        (frozenset({0}),),
    )
    call.sizes, call.whole = {**call.sizes, "y": shape[dim], "z": shape[-1]}, call.whole | {"y", "z"}
    return engine.run(call)[0]


def _of_dims(engine: Engine, op: Op, changed: Collection[int], *, is_linear: bool, adds: bool = False) -> Any:
    """A function of one value that changes the sizes of some dims, which are whole. `adds`: to the plan it is a sum."""
    rest = {name: given for name, given in op.kwargs.items() if op.args or name != "input"}
    value, more = (op.args[0], op.args[1:]) if op.args else (op.kwargs["input"], ())
    made = op.func(torch.empty(value.shape, device="meta", dtype=value.dtype), *more, **rest)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    terms = engine.graph.signatures
    signature = (terms.linear if adds else terms.nonlinear)([value.key.signature])
    call = unary(value, value.key, lambda locals_, _: op.func(locals_[0], *more, **rest), sorted(changed))
    shape = tuple(results[0].shape)
    dims = tuple((f"y{dim}",) if dim in changed else (f"x{dim}",) for dim in range(len(shape)))
    call.sizes = {**call.sizes, **{f"y{dim}": shape[dim] for dim in changed}}
    call.whole = call.whole | {f"y{dim}" for dim in changed}
    call.results, call.shapes = [dims] * len(results), [tuple(result.shape) for result in results]
    call.keys = [Key(signature, tuple(result.shape)) for result in results]
    call.linear = (frozenset({0}),) if is_linear else ()
    found = engine.run(call)
    return tuple(found) if len(found) > 1 else found[0]
