"""Splits, slices, indexing, and concatenation along a dim."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Dims, Pieces, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise, unary
from shardplan.torch.rules.views import permute_by, reshape

UNSAFE = ("unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes")
"""As split, in functions that are taken apart."""


def split(engine: Engine, op: Op) -> Any:
    """`split`, `chunk`, `unbind` ...: pieces of one dim."""
    value = op.args[0]
    made = op.func(torch.empty(value.shape, device="meta"), *op.args[1:], **op.kwargs)
    place = 0 if op.name == "unbind" else 1
    dim = int(op.kwargs.get("dim", op.args[place + 1] if len(op.args) > place + 1 else 0)) % value.rank
    gone = op.name == "unbind"
    sizes = tuple(1 if gone else int(piece.shape[dim]) for piece in made)
    pieces = take_pieces(engine, value, dim, sizes, range(len(sizes)))
    return tuple(_without(engine, piece, dim) for piece in pieces) if gone else tuple(pieces)


def take_pieces(engine: Engine, value: Value, dim: int, sizes: tuple[int, ...], taken: Sequence[int]) -> list[Value]:
    """Some of the pieces, of `sizes`, that dim `dim` consists of."""
    if len(sizes) == 1:
        return [value]
    factors: Dims = tuple((f"x{place}",) for place in range(value.rank))
    shapes = [(*value.shape[:dim], sizes[piece], *value.shape[dim + 1 :]) for piece in taken]
    terms = engine.graph.signatures
    starts = [sum(sizes[:piece]) for piece in taken]
    keys = [
        Key(terms.part(value.key.signature, shape, (dim, start), "program"), shape)
        for shape, start in zip(shapes, starts, strict=True)
    ]

    def run(locals_: list[Any], site: Site) -> Any:
        ways = site.ways(f"x{dim}")
        found = locals_[0].split([size // ways for size in sizes], dim)
        return [found[piece] for piece in taken]

    call = Call(
        [value], [factors], [factors] * len(taken), shapes, keys,
        {f"x{place}": size for place, size in enumerate(value.shape)}, run, linear=(frozenset({0}),),
        pieces=Pieces(f"x{dim}", sizes, tuple(taken)),
    )  # fmt: skip
    return engine.run(call)


def _without(engine: Engine, value: Value, dim: int) -> Value:
    return reshape(engine, Op("squeeze", torch.squeeze, [value, dim]))


def narrow(engine: Engine, op: Op) -> Value:
    """`narrow`, `select`, `slice`: one piece of one dim."""
    value = op.args[0]
    if op.name == "slice":
        given = {**dict(zip(_OF_SLICES, op.args[1:], strict=False)), **op.kwargs}
        dim, start, stop, step = (given.get(name) for name in _OF_SLICES)
        # torch says the largest number for an end that was left out
        picked = slice(start, None if stop == sys.maxsize else stop, step)
        return _slice(engine, value, int(dim or 0) % value.rank, picked)
    dim = int(op.kwargs["dim"] if "dim" in op.kwargs else op.args[1]) % value.rank
    if op.name == "select":
        index = int(op.kwargs.get("index", op.args[2] if len(op.args) > 2 else 0)) % value.shape[dim]
        return _selected(engine, value, dim, index)
    start = int(op.kwargs.get("start", op.args[2] if len(op.args) > 2 else 0))
    start += value.shape[dim] if start < 0 else 0
    length = int(op.kwargs.get("length", op.args[3] if len(op.args) > 3 else 1))
    return _slice(engine, value, dim, slice(start, start + length))


_OF_SLICES = ("dim", "start", "end", "step")


def _slice(engine: Engine, value: Value, dim: int, picked: slice) -> Value:
    start, stop, step = picked.indices(value.shape[dim])
    if (start, stop, step) == (0, value.shape[dim], 1):
        return value
    if step != 1:
        return _strided(engine, value, dim, picked)
    if start >= stop:
        nothing = (*value.shape[:dim], 0, *value.shape[dim + 1 :])
        return as_value(engine, torch.empty(nothing, dtype=value.dtype, device=engine.groups.device))
    bounds = [0, start, stop, value.shape[dim]]
    sizes = [bounds[i + 1] - bounds[i] for i in range(3)]
    present = [size for size in sizes if size]
    return take_pieces(engine, value, dim, tuple(present), [1 if sizes[0] else 0])[0]


def _selected(engine: Engine, value: Value, dim: int, index: int) -> Value:
    """One index of a dim, without the dim: in one step where the plan has it so, else a slice, and the dim dropped."""
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    key = Key(engine.graph.signatures.part(value.key.signature, shape, (dim, index), "program"), shape)
    if value.shape[dim] == 1 or not engine.has_read(value, key):
        return _without(engine, _slice(engine, value, dim, slice(index, index + 1)), dim)
    call = unary(value, key, lambda locals_, _: locals_[0].select(dim, index), [dim])
    call.results, call.shapes = [(*call.dims[0][:dim], *call.dims[0][dim + 1 :])], [shape]
    call.linear = (frozenset({0}),)
    return engine.run(call)[0]


def _strided(engine: Engine, value: Value, dim: int, picked: slice) -> Value:
    """Every so many indices of a whole dim."""
    index = (*[slice(None)] * dim, picked)
    shape = (*value.shape[:dim], len(range(*picked.indices(value.shape[dim]))), *value.shape[dim + 1 :])
    key = Key(engine.graph.signatures.part(value.key.signature, shape, (dim, str(picked)), "program"), shape)
    call = unary(value, key, lambda locals_, _: locals_[0][index], [dim])
    call.results = [(*call.dims[0][:dim], ("cut",), *call.dims[0][dim + 1 :])]
    call.shapes, call.sizes = [shape], {**call.sizes, "cut": shape[dim]}
    call.whole, call.linear = call.whole | {"cut"}, (frozenset({0}),)
    return engine.run(call)[0]


def basic_item(engine: Engine, value: Value, index: Sequence[Any]) -> Value:
    """Basic indexing: integers, slices, `None`, `...`, `[n]`."""
    explicit = sum(item is not None and item is not Ellipsis for item in index)
    filled: list[Any] = []
    for item in index if any(item is Ellipsis for item in index) else (*index, Ellipsis):
        filled += [slice(None)] * (value.rank - explicit) if item is Ellipsis else [item]
    dim, result = 0, value
    for item in filled:
        if item is None:
            result = reshape(engine, Op("unsqueeze", torch.unsqueeze, [result, dim]))
            dim += 1
        elif isinstance(item, int):
            result = narrow(engine, Op("select", None, [result, dim, item]))
        elif isinstance(item, list):
            result = _one_of(engine, result, dim, item[0])
            dim += 1
        else:
            result = _slice(engine, result, dim, item)
            dim += 1
    return result


def is_basic(item: Any) -> bool:
    """Whether an item of an index is one that `basic_item` takes."""
    if isinstance(item, list):
        return len(item) == 1 and type(item[0]) is int
    return isinstance(item, (int, slice, type(None), type(Ellipsis))) and not isinstance(item, bool)


def _one_of(engine: Engine, value: Value, dim: int, index: int) -> Value:
    """One index of a dim, which stays, as exporters write it: with the dim in front."""
    order = (dim, *(other for other in range(value.rank) if other != dim))
    first = permute_by(engine, value, order) if dim else value
    index %= value.shape[dim]
    taken = _slice(engine, first, 0, slice(index, index + 1))
    return permute_by(engine, taken, [order.index(place) for place in range(value.rank)]) if dim else taken


def cat(engine: Engine, op: Op) -> Value:
    """Values one after the other along a dim; a dim that is sharded in all becomes one of segments."""
    values = [as_value(engine, item) for item in op.args[0]]
    dim = int(op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)) % values[0].rank
    values = [value for value in values if value.shape[dim]] or values[:1]
    if len(values) == 1:
        return values[0]
    sizes = tuple(value.shape[dim] for value in values)
    factors: Dims = tuple((f"x{place}",) for place in range(values[0].rank))
    shape = (*values[0].shape[:dim], sum(sizes), *values[0].shape[dim + 1 :])
    call = Call(
        values, [factors] * len(values), [factors], [shape],
        [Key(engine.graph.signatures.linear([value.key.signature for value in values]), shape)],
        {f"x{place}": size for place, size in enumerate(shape)},
        lambda locals_, _: torch.cat(locals_, dim), linear=(frozenset(range(len(values))),),
        pieces=Pieces(f"x{dim}", sizes, (0,), joins=True),
    )  # fmt: skip
    return engine.run(call)[0]


def glu(engine: Engine, op: Op) -> Value:
    """The first half of a dim times the sigmoid of the second."""
    value = as_value(engine, op.args[0])
    dim = int(op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else -1)) % value.rank
    half = value.shape[dim] // 2
    first, second = take_pieces(engine, value, dim, (half, half), range(2))
    gate = elementwise(engine, Op("sigmoid", torch.sigmoid, [second]))
    return elementwise(engine, Op("mul", torch.mul, [first, gate]))


def stack(engine: Engine, op: Op) -> Value:
    """Values one after the other along a new dim."""
    values = [as_value(engine, item) for item in op.args[0]]
    dim = int(op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)) % (values[0].rank + 1)
    parts = [reshape(engine, Op("unsqueeze", torch.unsqueeze, [value, dim])) for value in values]
    return cat(engine, Op("cat", torch.cat, [parts, dim]))


def diagonal(engine: Engine, op: Op) -> Value:
    """Entries of two dims with equal numbers, as the last dim; the two are whole."""
    names = ("input", "offset", "dim1", "dim2")
    given = {"offset": 0, "dim1": 0, "dim2": 1, **dict(zip(names, op.args, strict=False)), **op.kwargs}
    value = as_value(engine, given["input"])
    offset, first, second = int(given["offset"]), int(given["dim1"]) % value.rank, int(given["dim2"]) % value.rank
    dims: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    shape = tuple(torch.empty(value.shape, device="meta").diagonal(offset, first, second).shape)
    result = (*(each for dim, each in enumerate(dims) if dim not in {first, second}), ("new",))
    sizes = {f"x{dim}": size for dim, size in enumerate(value.shape)} | {"new": shape[-1]}
    call = Call(
        [value], [dims], [result], [shape], [Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)],
        sizes, lambda locals_, _: locals_[0].diagonal(offset, first, second),
        frozenset((f"x{first}", f"x{second}", "new")), (frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]
