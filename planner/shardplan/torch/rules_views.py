"""Views: reshapes, permutations, pieces of a dim and their joins. None of them computes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shardplan.torch.engine import Engine, Op
from shardplan.torch.graph import Key, permuted
from shardplan.torch.rules_elementwise import lift, unary
from shardplan.torch.values import Call, Dims, Pieces, Site, Value

PERMUTATIONS = frozenset(
    ("transpose", "permute", "t", "T", "mT", "movedim", "swapaxes", "swapdims", "moveaxis", "numpy_T")
)
RESHAPES = frozenset(
    (
        "reshape",
        "view",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "view_as",
        "reshape_as",
        "_unsafe_view",
        "ravel",
    )
)


def reshape(engine: Engine, op: Op) -> Value:
    """Dims split and merged: what is sharded is the same factor before and after."""
    value = op.args[0]
    rest = [torch.empty(a.shape, device="meta") if isinstance(a, Value) else a for a in op.args[1:]]
    if op.name == "view" and rest and isinstance(rest[0], torch.dtype):
        raise TypeError("view(dtype) changes what is in a tensor and has no layout")
    shape = tuple(op.func(torch.empty(value.shape, device="meta"), *rest, **op.kwargs).shape)
    before, after, sizes, whole = _refine(value.shape, shape)
    call = Call(
        [value], [before], [after], [shape], [Key(value.key.signature, shape)], sizes,
        lambda locals_, site: locals_[0].reshape(site.local_result()), whole, (frozenset({0}),),
    )  # fmt: skip
    if shape == value.shape:
        call.keys, call.chains = [value.key], False
    return engine.run(call)[0]


def _refine(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Dims, Dims, dict[str, int], frozenset[str]]:
    """Both shapes over common factors; dims that share none that way are whole."""
    left: list[list[str]] = [[] for _ in before]
    right: list[list[str]] = [[] for _ in after]
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    i = j = 0
    a, b = (before[0] if before else 1), (after[0] if after else 1)
    while i < len(before) and j < len(after):
        if a == 1 and before[i] == 1:
            i, a = _next(before, i)
            continue
        if b == 1 and after[j] == 1:
            j, b = _next(after, j)
            continue
        small = min(a, b)
        factor = f"f{len(sizes)}"
        if max(a, b) % small:
            i, j = _tangle(before, after, i, j, (a, b), (left, right), sizes, whole)
            a, b = (before[i] if i < len(before) else 1), (after[j] if j < len(after) else 1)
            continue
        sizes[factor] = small
        left[i].append(factor)
        right[j].append(factor)
        a, b = a // small, b // small
        if a == 1:
            i, a = _next(before, i)
        if b == 1:
            j, b = _next(after, j)
    return tuple(map(tuple, left)), tuple(map(tuple, right)), sizes, frozenset(whole)


def _next(shape: tuple[int, ...], place: int) -> tuple[int, int]:
    return place + 1, shape[place + 1] if place + 1 < len(shape) else 1


def _tangle(
    before: tuple[int, ...], after: tuple[int, ...], i: int, j: int, open_: tuple[int, int],
    sides: tuple[list[list[str]], list[list[str]]], sizes: dict[str, int], whole: set[str],
) -> tuple[int, int]:  # fmt: skip
    """Dims from here to where both sides have the same number of elements again are whole."""
    a, b = open_
    x, y = i, j
    sides[0][i].append(_whole(sizes, whole, a))
    sides[1][j].append(_whole(sizes, whole, b))
    while a != b:
        if a < b:
            x += 1
            a *= before[x]
            sides[0][x].append(_whole(sizes, whole, before[x]))
        else:
            y += 1
            b *= after[y]
            sides[1][y].append(_whole(sizes, whole, after[y]))
    return x + 1, y + 1


def _whole(sizes: dict[str, int], whole: set[str], size: int) -> str:
    factor = f"f{len(sizes)}"
    sizes[factor] = size
    whole.add(factor)
    return factor


def permute(engine: Engine, op: Op) -> Value:
    """Dims in another order."""
    value = op.args[0]
    order = _order(op.func, value.rank, op.args[1:], op.kwargs)
    return permute_by(engine, value, order)


def permute_by(engine: Engine, value: Value, order: Sequence[int]) -> Value:
    """The value with its dims in this order."""
    factors: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    shape = tuple(value.shape[dim] for dim in order)
    call = Call(
        [value], [factors], [tuple(factors[dim] for dim in order)], [shape],
        [Key(value.key.signature, shape, permuted(value.key.perm, order))],
        {f"x{dim}": size for dim, size in enumerate(value.shape)},
        lambda locals_, _: locals_[0].permute(*order), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def _order(func: Any, rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Where dims come from, found by permuting a tensor of distinct sizes."""
    probe = torch.empty(tuple(range(2, rank + 2)), device="meta")
    return tuple(size - 2 for size in func(probe, *args, **kwargs).shape)


def expand(engine: Engine, op: Op) -> Value:
    """Dims of size 1 repeated without copying."""
    value = op.args[0]
    rest = [torch.empty(a.shape, device="meta") if isinstance(a, Value) else a for a in op.args[1:]]
    shape = tuple(op.func(torch.empty(value.shape, device="meta"), *rest, **op.kwargs).shape)
    offset = len(shape) - value.rank
    before: Dims = tuple(
        (f"x{dim + offset}",) if size == shape[dim + offset] else () for dim, size in enumerate(value.shape)
    )
    after: Dims = tuple((f"x{dim}",) for dim in range(len(shape)))
    key = Key(value.key.signature, shape)
    planned = engine.graph.values.get(key)
    call = Call(
        [value], [before], [after], [shape], [key], {f"x{dim}": size for dim, size in enumerate(shape)},
        lambda locals_, site: locals_[0].expand(site.local_result()), linear=(frozenset({0}),),
        guide=None if planned is None else planned.layout,
    )  # fmt: skip
    return engine.run(call)[0]


def repeat(engine: Engine, op: Op) -> Value:
    """A value several times along each dim."""
    value = op.args[0]
    given = op.kwargs.get("repeats", op.args[1] if len(op.args) == 2 else op.args[1:])
    times = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    sizes = (*[1] * (len(times) - value.rank), *value.shape)
    before: Dims = tuple((f"x{dim}",) for dim in range(len(times) - value.rank, len(times)))
    after: Dims = tuple((f"t{dim}", f"x{dim}") for dim in range(len(times)))
    shape = tuple(count * size for count, size in zip(times, sizes, strict=True))
    call = Call(
        [value], [before], [after], [shape], [Key(value.key.signature, shape)],
        {f"{letter}{dim}": size for letter, row in (("t", times), ("x", sizes)) for dim, size in enumerate(row)},
        lambda locals_, _: locals_[0].repeat(times), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def repeat_interleave(engine: Engine, op: Op) -> Value:
    """Every index of a dim a fixed number of times."""
    value = op.args[0]
    times = int(op.kwargs.get("repeats", op.args[1] if len(op.args) > 1 else 1))
    dim = int(op.kwargs.get("dim", op.args[2] if len(op.args) > 2 else 0)) % value.rank
    shape = (*value.shape[:dim], value.shape[dim] * times, *value.shape[dim + 1 :])
    factors: Dims = tuple((f"x{place}",) for place in range(value.rank))
    after = (*factors[:dim], (f"x{dim}", "times"), *factors[dim + 1 :])
    sizes = {**{f"x{place}": size for place, size in enumerate(value.shape)}, "times": times}
    call = Call(
        [value], [factors], [after], [shape], [Key(value.key.signature, shape)], sizes,
        lambda locals_, _: locals_[0].repeat_interleave(times, dim), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def repeat_heads(engine: Engine, value: Value, times: int) -> Value:
    """Keys or values of grouped queries, every head for each query that reads it, in the steps in which models and
    exporters write it: a plan may move what lies between."""
    dim = value.rank - 3
    apart = reshape(engine, Op("unsqueeze", torch.unsqueeze, [value, dim + 1]))
    sizes = (*value.shape[: dim + 1], times, *value.shape[dim + 1 :])
    wide = expand(engine, Op("expand", torch.Tensor.expand, [apart, *sizes]))
    return reshape(engine, Op("flatten", torch.flatten, [wide, dim, dim + 1]))


def split(engine: Engine, op: Op) -> Any:
    """`split`, `chunk`, `unbind` ...: pieces of one dim."""
    value = op.args[0]
    made = op.func(torch.empty(value.shape, device="meta"), *op.args[1:], **op.kwargs)
    place = 0 if op.name == "unbind" else 1
    dim = int(op.kwargs.get("dim", op.args[place + 1] if len(op.args) > place + 1 else 0)) % value.rank
    gone = op.name == "unbind"
    sizes = tuple(1 if gone else int(piece.shape[dim]) for piece in made)
    pieces = take(engine, value, dim, sizes, range(len(sizes)))
    return tuple(_without(engine, piece, dim) for piece in pieces) if gone else tuple(pieces)


def take(engine: Engine, value: Value, dim: int, sizes: tuple[int, ...], taken: Sequence[int]) -> list[Value]:
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
        given: list[Any] = [*op.args[1:], None, None, None, None]
        dim, start, stop, step = given[:4]
        picked = slice(start, None if stop is not None and stop > 1 << 60 else stop, step)
        return _slice(engine, value, int(dim or 0) % value.rank, picked)
    dim = int(op.kwargs.get("dim", op.args[1])) % value.rank
    if op.name == "select":
        index = int(op.kwargs.get("index", op.args[2] if len(op.args) > 2 else 0)) % value.shape[dim]
        return _without(engine, _slice(engine, value, dim, slice(index, index + 1)), dim)
    start = int(op.kwargs.get("start", op.args[2] if len(op.args) > 2 else 0))
    length = int(op.kwargs.get("length", op.args[3] if len(op.args) > 3 else 1))
    return _slice(engine, value, dim, slice(start, start + length))


def _slice(engine: Engine, value: Value, dim: int, picked: slice) -> Value:
    start, stop, step = picked.indices(value.shape[dim])
    if (start, stop, step) == (0, value.shape[dim], 1):
        return value
    if step != 1:
        return _strided(engine, value, dim, picked)
    if start >= stop:
        nothing = (*value.shape[:dim], 0, *value.shape[dim + 1 :])
        return lift(engine, torch.empty(nothing, dtype=value.dtype, device=engine.grid.device))
    bounds = [0, start, stop, value.shape[dim]]
    sizes = [bounds[i + 1] - bounds[i] for i in range(3)]
    present = [size for size in sizes if size]
    return take(engine, value, dim, tuple(present), [1 if sizes[0] else 0])[0]


def _strided(engine: Engine, value: Value, dim: int, picked: slice) -> Value:
    """Every so many indices of a whole dim."""
    index = (*[slice(None)] * dim, picked)
    shape = (*value.shape[:dim], len(range(*picked.indices(value.shape[dim]))), *value.shape[dim + 1 :])
    key = Key(engine.graph.signatures.part(value.key.signature, shape, (dim, str(picked)), "program"), shape)
    call = unary(value, key, lambda locals_, _: locals_[0][index], [dim])
    call.results = [(*call.dims[0][:dim], ("cut",), *call.dims[0][dim + 1 :])]
    call.shapes, call.sizes = [shape], {**call.sizes, "cut": shape[dim]}
    call.whole = call.whole | {"cut"}
    return engine.run(call)[0]


def getitem(engine: Engine, op: Op) -> Value:
    """Basic indexing: integers, slices, `None`, `...`, `[n]`; with tensors every process does all of it."""
    from shardplan.torch.rules_elementwise import whole  # noqa: PLC0415

    value, index = op.args[0], op.args[1] if isinstance(op.args[1], tuple) else (op.args[1],)
    if any(not _is_basic(item) for item in index):
        return whole(engine, op)  # type: ignore[no-any-return]
    explicit = sum(item is not None and item is not Ellipsis for item in index)
    filled: list[Any] = []
    for item in index if Ellipsis in index else (*index, Ellipsis):
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
    return result  # type: ignore[no-any-return]


def _is_basic(item: Any) -> bool:
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
    values = [lift(engine, item) for item in op.args[0]]
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
