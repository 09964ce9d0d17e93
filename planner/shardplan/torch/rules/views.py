"""Views: reshapes, permutations, expansions and repeats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key, permuted
from shardplan.torch.propagation.values import Call, Dims, Value
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.function_names import name_of

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

LIKE = {"view_as": torch.Tensor.view, "reshape_as": torch.Tensor.reshape, "expand_as": torch.Tensor.expand}
"""Views in the shape of another tensor, and the functions that are given shapes."""


def is_view(func: Callable[..., Any], rest: Sequence[Any]) -> bool:
    """Whether a function may return views of its first operand; `rest`: its other arguments."""
    name = name_of(func)
    if name in LIKE:
        return True
    return _returns_views(name) and not any(isinstance(item, torch.Tensor) for item in _flat(rest))


def is_only_a_view(func: Callable[..., Any], rest: Sequence[Any]) -> bool:
    """Whether a function never copies its first operand; `rest`: its other arguments."""
    return name_of(func) not in _COPIES and is_view(func, rest)


_COPIES = frozenset(("reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "resolve_conj", "resolve_neg"))
"""Functions that return a view if they can."""


@functools.cache
def _returns_views(name: str) -> bool:
    """Whether an operator of ATen of this name says so, or it is an item or an attribute of a tensor."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return name in {"getitem", "mT", "T"}
    results = [each for overload in packet.overloads() for each in getattr(packet, overload)._schema.returns]  # noqa: SLF001
    return any(each.alias_info is not None and not each.alias_info.is_write for each in results)


def _flat(argument: Any) -> Sequence[Any]:
    if isinstance(argument, (tuple, list)):
        return [item for each in argument for item in _flat(each)]
    return [argument]


def reshape(engine: Engine, op: Op) -> Value:
    """Dims split and merged: what is sharded is the same factor before and after."""
    value = op.args[0]
    rest = [torch.empty(a.shape, device="meta") if isinstance(a, Value) else a for a in op.args[1:]]
    if op.name == "view" and rest and isinstance(rest[0], torch.dtype):
        raise TypeError("view(dtype) changes what is in a tensor and has no layout")
    shape = tuple(op.func(torch.empty(value.shape, device="meta"), *rest, **op.kwargs).shape)
    if 0 in shape:
        return replicated(engine, op)  # type: ignore[no-any-return]
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
        lambda locals_, _: locals_[0].permute(tuple(order)), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def _order(func: Any, rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Where dims come from, found by permuting a tensor of distinct sizes."""
    probe = torch.empty(tuple(range(2, rank + 2)), device="meta")
    return tuple(size - 2 for size in func(probe, *args, **kwargs).shape)


def expand(engine: Engine, op: Op) -> Value:
    """Dims of size 1 repeated without copying, also of a constant to the shape of a value."""
    given = op.args[0]
    value = given if isinstance(given, Value) else engine.constant(given, given.shape)
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


def broadcast(engine: Engine, op: Op) -> tuple[Value, ...]:
    """Values in the shape that they have together."""
    given = op.args[0] if len(op.args) == 1 and isinstance(op.args[0], (tuple, list)) else op.args
    values = [item if isinstance(item, Value) else engine.constant(item, tuple(item.shape)) for item in given]
    shape = torch.broadcast_shapes(*(value.shape for value in values))
    return tuple(
        value if value.shape == shape else expand(engine, Op("expand", torch.Tensor.expand, [value, *shape]))
        for value in values
    )


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
    """Every index of a dim, or every element, a fixed number of times; by numbers that differ, for every process."""
    given = {**dict(zip(("input", "repeats", "dim"), op.args, strict=False)), **op.kwargs}
    value, times, dim = given["input"], given.get("repeats"), given.get("dim")
    if not isinstance(times, int):
        return replicated(engine, op)  # type: ignore[no-any-return]
    if dim is None:
        value, dim = reshape(engine, Op("flatten", torch.flatten, [value])), 0
    dim = int(dim) % value.rank
    shape = (*value.shape[:dim], value.shape[dim] * times, *value.shape[dim + 1 :])
    factors: Dims = tuple((f"x{place}",) for place in range(value.rank))
    after = (*factors[:dim], (f"x{dim}", "times"), *factors[dim + 1 :])
    sizes = {**{f"x{place}": size for place, size in enumerate(value.shape)}, "times": times}
    call = Call(
        [value], [factors], [after], [shape], [Key(value.key.signature, shape)], sizes,
        lambda locals_, _: locals_[0].repeat_interleave(times, dim), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def diag_embed(engine: Engine, op: Op) -> Value:
    """The last dim, which is whole, on the diagonals of two new ones at the end."""
    value: Value = op.args[0]
    if len(op.args) > 1 or op.kwargs:
        raise NotImplementedError("other diagonals and dims have no rule")
    last, size = value.rank - 1, value.shape[-1]
    factors: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    shape = (*value.shape, size)
    call = Call(
        [value], [factors], [(*factors[:-1], ("row",), ("column",))], [shape],
        [Key(engine.graph.signatures.linear([value.key.signature]), shape)],
        {**{f"x{dim}": size for dim, size in enumerate(value.shape)}, "row": size, "column": size},
        lambda locals_, _: torch.diag_embed(locals_[0]), frozenset({f"x{last}", "row", "column"}), (frozenset({0}),),
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
