"""Products that sum over dims, lookups, and attention as a product of products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from shardplan.layout.layout import Layout
from shardplan.torch.engine import Engine, Op
from shardplan.torch.graph import Key, lookup, product, softmax
from shardplan.torch.rules_elementwise import elementwise, lift
from shardplan.torch.rules_norms import normalised
from shardplan.torch.rules_views import permute_by, repeat_interleave
from shardplan.torch.values import Call, Dims, Site, Value

_EACH = (frozenset({0}), frozenset({1}))


def linear(engine: Engine, op: Op) -> Value:
    """`x @ weight.T + bias`, as the plan has it: a product, which may be moved, and an addition."""
    given = {**dict(zip(("input", "weight", "bias"), op.args, strict=False)), **op.kwargs}
    weight = lift(engine, given["weight"])
    made = matmul(engine, Op("matmul", torch.matmul, [given["input"], permute_by(engine, weight, (1, 0))]))
    return _plus(engine, made, given.get("bias"))


def addmm(engine: Engine, op: Op) -> Value:
    """`addmm`, `baddbmm`: `beta * bias + alpha * (x @ weight)`."""
    given = {**dict(zip(("input", "mat1", "mat2"), op.args, strict=False)), **op.kwargs}
    pair = [given.get(name, given.get(other)) for name, other in (("mat1", "batch1"), ("mat2", "batch2"))]
    made = _times(engine, matmul(engine, Op("matmul", torch.matmul, pair)), given.get("alpha", 1))
    return _plus(engine, made, _times(engine, lift(engine, given["input"]), given.get("beta", 1)))


def _times(engine: Engine, value: Value, factor: float) -> Value:
    return value if factor == 1 else elementwise(engine, Op("mul", torch.mul, [value, factor]))


def _plus(engine: Engine, value: Value, bias: Any) -> Value:
    if bias is None:
        return value
    return elementwise(engine, Op("add", torch.add, [value, lift(engine, bias)]))


def matmul(engine: Engine, op: Op) -> Value:
    """`matmul`, `mm`, `bmm`: batch dims broadcast."""
    left, right = (lift(engine, item) for item in op.args[:2])
    row, column = left.rank > 1, right.rank > 1
    batch = torch.broadcast_shapes(left.shape[: max(0, left.rank - 2)], right.shape[: max(0, right.rank - 2)])
    sizes = {f"b{dim}": size for dim, size in enumerate(batch)}
    sizes["k"] = left.shape[-1]
    if row:
        sizes["m"] = left.shape[-2]
    if column:
        sizes["n"] = right.shape[-1]
    ends: tuple[Dims, Dims] = ((("m",),) if row else (), (("n",),) if column else ())
    dims = [
        (*_batch(left.shape[: max(0, left.rank - 2)], batch), *ends[0], ("k",)),
        (*_batch(right.shape[: max(0, right.rank - 2)], batch), ("k",), *ends[1]),
    ]
    result = (*((f"b{dim}",) for dim in range(len(batch))), *ends[0], *ends[1])
    shape = tuple(sizes[factors[0]] for factors in result)
    key = Key(product(engine.graph.signatures, [left.key.signature, right.key.signature]), shape)
    call = Call(
        [left, right], dims, [result], [shape], [key], sizes,
        lambda locals_, _: torch.matmul(*locals_), linear=_EACH,
    )  # fmt: skip
    return engine.run(call)[0]


def _batch(shape: tuple[int, ...], batch: tuple[int, ...]) -> Dims:
    offset = len(batch) - len(shape)
    return tuple((f"b{dim + offset}",) if size == batch[dim + offset] else () for dim, size in enumerate(shape))


def einsum(engine: Engine, op: Op) -> Value:
    """A sum of products, as its equation says; without an ellipsis."""
    equation = str(op.args[0]).replace(" ", "")
    values = op.args[1] if len(op.args) == 2 and isinstance(op.args[1], (tuple, list)) else op.args[1:]
    operands = [lift(engine, item) for item in values]
    if "." in equation or "->" not in equation:
        raise TypeError(f"einsum '{op.args[0]}' needs an explicit result and no ellipsis")
    left, right = equation.split("->")
    dims = [tuple((letter,) for letter in side) for side in left.split(",")]
    sizes = {
        factors[0]: size
        for value, side in zip(operands, dims, strict=True)
        for factors, size in zip(side, value.shape, strict=True)
    }
    shape = tuple(sizes[letter] for letter in right)
    key = Key(product(engine.graph.signatures, [value.key.signature for value in operands]), shape)
    call = Call(
        operands, dims, [tuple((letter,) for letter in right)], [shape], [key], sizes,
        lambda locals_, _: torch.einsum(equation, *locals_),
        linear=tuple(frozenset({place}) for place in range(len(operands))),
    )  # fmt: skip
    return engine.run(call)[0]


def embedding(engine: Engine, op: Op) -> Value:
    """Rows of a table; of a table split by rows every process adds those that it has."""
    first, second = (lift(engine, item) for item in op.args[:2])
    table, index = (second, first) if first.dtype in (torch.int32, torch.int64) else (first, second)
    padding = op.kwargs.get("padding_idx", op.args[2] if len(op.args) > 2 else None)
    padding = None if padding is None or padding < 0 else int(padding)
    rows = tuple((f"i{dim}",) for dim in range(index.rank))
    sizes = {f"i{dim}": size for dim, size in enumerate(index.shape)} | {"v": table.shape[0], "d": table.shape[1]}
    shape = (*index.shape, table.shape[1])
    key = Key(lookup(engine.graph.signatures, [table.key.signature, index.key.signature]), shape)

    def run(locals_: list[Any], site: Site) -> Any:
        local, places = locals_
        ways = site.ways("v")
        if ways == 1:
            return functional.embedding(places, local, padding)
        first_row = site.number("v") * (table.shape[0] // ways)
        inside = (places >= first_row) & (places < first_row + table.shape[0] // ways)
        if padding is not None:
            inside = inside & (places != padding)
        found = functional.embedding(torch.where(inside, places - first_row, 0), local)
        return found.masked_fill(inside.logical_not().unsqueeze(-1), 0)

    call = Call(
        [table, index], [(("v",), ("d",)), rows], [(*rows, ("d",))], [shape], [key], sizes, run,
        linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def attention(engine: Engine, op: Op) -> Value:
    """`scaled_dot_product_attention`: by torch's kernel where every process has whole heads, else step by step."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    query, key, value = (lift(engine, given[part]) for part in names[:3])
    if given.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (
            repeat_interleave(engine, Op("repeat_interleave", None, [part, times, part.rank - 3]))
            for part in (key, value)
        )
    mask = given.get("attn_mask")
    if mask is not None:
        mask = lift(engine, mask)
    if given.get("dropout_p"):
        raise TypeError("dropout inside scaled_dot_product_attention has no rule; set its rate to 0")
    scale = given.get("scale") or 1 / math.sqrt(query.shape[-1])
    causal = bool(given.get("is_causal"))
    if _splits_inside(engine, query, key, value, mask):
        return _step_by_step(engine, query, key, value, mask, scale, causal=causal)
    return _fused(engine, query, key, value, mask, scale, causal=causal)


def _inner_keys(engine: Engine, query: Value, key: Value, value: Value, mask: Value | None) -> list[Key]:
    """Keys of the scores, the masked scores, the probabilities and the result."""
    terms = engine.graph.signatures
    scores = (*query.shape[:-1], key.shape[-2])
    first = product(terms, [query.key.signature, key.key.signature])
    masked = terms.linear([first, *([mask.key.signature] if mask else [])])
    last = softmax(terms, [masked])
    result = product(terms, [last, value.key.signature])
    return [
        Key(first, scores),
        Key(masked, scores),
        Key(last, scores),
        Key(result, (*query.shape[:-1], value.shape[-1])),
    ]


def _splits_inside(engine: Engine, query: Value, key: Value, value: Value, mask: Value | None) -> bool:
    """Whether the plan splits anything else than whole heads and samples inside attention, or moves anything there."""
    scores, masked, shares, result = _inner_keys(engine, query, key, value, mask)
    graph = engine.graph
    layouts = []
    turned = Key(key.key.signature, (*key.shape[:-2], key.shape[-1], key.shape[-2]), _swapped(key))
    for source, target in ((query.key, scores), (key.key, scores), (turned, scores), (value.key, result)):
        read = graph.reads.get((source, target))
        layouts += [read.layout] if read else []
    for inner in (scores, masked, shares):
        planned = graph.values.get(inner)
        layouts += [planned.layout, planned.served] if planned else []
    layouts += [
        graph.reads[pair].layout for pair in itertools.pairwise((scores, masked, shares)) if pair in graph.reads
    ]
    layouts += [part.layout for part in (query, key, value)] if not layouts else []
    heads = query.rank - 2
    first = layouts[0]
    return any(
        (p.is_shard and (p.dim >= heads or p.segments)) or p.kind == "P" or p.forward != q.forward
        for layout in layouts
        for p, q in zip(layout.placements, first.placements, strict=True)
    )


def _swapped(value: Value) -> tuple[int, ...]:
    order = (*range(value.rank - 2), value.rank - 1, value.rank - 2)
    found = tuple(value.key.perm[dim] if value.key.perm else dim for dim in order)
    return () if found == tuple(range(value.rank)) else found


def _fused(
    engine: Engine, query: Value, key: Value, value: Value, mask: Value | None, scale: float, *, causal: bool
) -> Value:
    keys = _inner_keys(engine, query, key, value, mask)
    order = (*range(key.rank - 2), key.rank - 1, key.rank - 2)
    query, key = engine.read(query, keys[:1]), _read_turned(engine, key, order, keys[0])
    batch = tuple((f"b{dim}",) for dim in range(query.rank - 2))
    sizes = {f"b{dim}": size for dim, size in enumerate(query.shape[:-2])}
    sizes |= {"s": query.shape[-2], "t": key.shape[-2], "d": query.shape[-1], "e": value.shape[-1]}
    dims: list[Dims] = [(*batch, ("s",), ("d",)), (*batch, ("t",), ("d",)), (*batch, ("t",), ("e",))]
    operands = [query, key, value]
    if mask is not None:
        operands.append(mask)
        whole = (*query.shape[:-2], query.shape[-2], key.shape[-2])
        names = (*(f"b{dim}" for dim in range(query.rank - 2)), "s", "t")
        offset = len(whole) - mask.rank
        dims.append(
            tuple((names[d + offset],) if size == whole[d + offset] else () for d, size in enumerate(mask.shape))
        )

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        bias = locals_[3] if len(locals_) > 3 else None
        return functional.scaled_dot_product_attention(
            locals_[0], locals_[1], locals_[2], bias, is_causal=causal, scale=scale
        )

    shape = (*query.shape[:-1], value.shape[-1])
    call = Call(
        operands, dims, [(*batch, ("s",), ("e",))], [shape], [keys[3]], sizes, run, frozenset({"s", "t", "d", "e"}),
        (frozenset({2}),),
    )  # fmt: skip
    return engine.run(call)[0]


def _read_turned(engine: Engine, value: Value, order: Sequence[int], result: Key) -> Value:
    """A value as its transpose is read by the plan's product, in its own dims."""
    read = engine.read(permute_by(engine, value, order), [result])
    placements = (replace(p, dim=order[p.dim]) if p.is_shard else p for p in read.layout.placements)
    layout = Layout.of(*placements, order=read.layout.order)
    return Value(read.local.permute(*order), layout, value.shape, value.dtype, value.grad, Key(_NOTHING, value.shape))


_NOTHING = -1
"""The signature of a value that no plan knows."""


def _step_by_step(
    engine: Engine, query: Value, key: Value, value: Value, mask: Value | None, scale: float, *, causal: bool
) -> Value:
    order = (*range(key.rank - 2), key.rank - 1, key.rank - 2)
    scores = matmul(engine, Op("matmul", torch.matmul, [query, permute_by(engine, key, order)]))
    scores = elementwise(engine, Op("mul", torch.mul, [scores, scale]))
    if causal:
        rows, columns = query.shape[-2], key.shape[-2]
        device = engine.grid.device
        allowed = engine.constant(torch.ones(rows, columns, dtype=torch.bool, device=device).tril(), (rows, columns))
        scores = elementwise(engine, Op("where", _masked, [allowed, scores]))
    elif mask is not None and mask.dtype == torch.bool:
        scores = elementwise(engine, Op("where", _masked, [mask, scores]))
    elif mask is not None:
        scores = elementwise(engine, Op("add", torch.add, [scores, mask]))
    shares = normalised(engine, Op("softmax", torch.softmax, [scores, -1]))
    return matmul(engine, Op("matmul", torch.matmul, [shares, value]))


def _masked(allowed: Any, scores: Any) -> Any:
    return scores.masked_fill(allowed.logical_not(), float("-inf"))
