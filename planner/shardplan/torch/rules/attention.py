"""Attention: torch's kernel if every process has whole heads, else the matrix products that it consists of."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key, permuted, product, softmax
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.dropout import drawn_seed, dropout, part_of
from shardplan.torch.rules.elementwise import as_value, elementwise, unary
from shardplan.torch.rules.norms import normalised
from shardplan.torch.rules.products import matmul
from shardplan.torch.rules.views import permute_by, repeat_heads


@dataclass
class _Heads:
    """What `scaled_dot_product_attention` was given. `rate`: of shares that are dropped."""

    query: Value
    key: Value
    value: Value
    mask: Value | None
    scale: float
    causal: bool
    rate: float


def attention(engine: Engine, op: Op) -> Value:
    """`scaled_dot_product_attention`, in all forms that it may be called in."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    query, key, value = (as_value(engine, given[part]) for part in names[:3])
    if given.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (repeat_heads(engine, part, times) for part in (key, value))
    mask, scale = given.get("attn_mask"), given.get("scale")
    heads = _Heads(
        query, key, value, None if mask is None else as_value(engine, mask),
        1 / math.sqrt(query.shape[-1]) if scale is None else float(scale),
        bool(given.get("is_causal")), float(given.get("dropout_p") or 0.0),
    )  # fmt: skip
    if _splits_keys(engine, heads):
        return _over_keys(engine, heads)
    return _step_by_step(engine, heads) if _splits_inside(engine, heads) else _fused(engine, heads)


def _inner_keys(engine: Engine, heads: _Heads) -> list[Key]:
    """Keys of the scores, the masked scores, the probabilities and the result."""
    query, key, value, mask = heads.query, heads.key, heads.value, heads.mask
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


def _splits_inside(engine: Engine, heads: _Heads) -> bool:
    """Whether the plan splits anything else than whole heads and samples inside attention, or moves anything there."""
    query, key, value = heads.query, heads.key, heads.value
    scores, masked, shares, result = _inner_keys(engine, heads)
    graph = engine.graph
    layouts = []
    turned = Key(
        key.key.signature, (*key.shape[:-2], key.shape[-1], key.shape[-2]), permuted(key.key.perm, _swapped(key))
    )
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
    outer = query.rank - 2
    first = layouts[0]
    return any(
        (p.is_shard and (p.dim >= outer or p.segments)) or p.kind == "P" or p.forward != q.forward
        for layout in layouts
        for p, q in zip(layout.placements, first.placements, strict=True)
    )


def _swapped(value: Value) -> tuple[int, ...]:
    """The order of dims with the last two exchanged."""
    return (*range(value.rank - 2), value.rank - 1, value.rank - 2)


def _splits_keys(engine: Engine, heads: _Heads) -> bool:
    """Whether the plan has attention as one operator, and splits its keys."""
    read = engine.graph.reads.get((heads.key.key, _inner_keys(engine, heads)[3]))
    return read is not None and any(p.is_shard and p.dim == heads.key.rank - 2 for p in read.layout.placements)


def _over_keys(engine: Engine, heads: _Heads) -> Value:
    """The plan's operator with split keys: the products that it is, merged over the keys inside of it."""
    result = _inner_keys(engine, heads)[3]

    def own(value: Value) -> Value:
        return replace(engine.read(value, [result]), key=Key(_NOTHING, value.shape), forms={})

    mask = None if heads.mask is None else own(heads.mask)
    inner = replace(heads, query=own(heads.query), key=own(heads.key), value=own(heads.value), mask=mask)
    made = _step_by_step(engine, inner)
    whole = Layout.of(*(R if p.kind == "P" else p for p in made.layout.placements), order=made.layout.order)
    return engine.result(engine.convert(made, whole, inner=True).local, whole, made.shape, result)


def _fused(engine: Engine, heads: _Heads) -> Value:
    keys = _inner_keys(engine, heads)
    query, key, value, mask = heads.query, heads.key, heads.value, heads.mask
    query, key = engine.read(query, keys[:1]), _read_turned(engine, key, keys[0])
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
        bias = locals_[3] if len(locals_) > 3 else None
        first = site.number("s") * query.shape[-2] // site.ways("s") if heads.causal else None
        return attention_kernel(locals_[0], locals_[1], locals_[2], bias, first, heads.scale, heads.rate, part_of(site))

    shape = (*query.shape[:-1], value.shape[-1])
    call = Call(
        operands, dims, [(*batch, ("s",), ("e",))], [shape], [keys[3]], sizes, run, frozenset({"t", "d", "e"}),
        (frozenset({2}),), ordered=frozenset({"s"} if heads.causal else ()),
    )  # fmt: skip
    return engine.run(call)[0]


def attention_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    first: int | None,
    scale: float,
    rate: float,
    part: int,
) -> Tensor:
    """Torch's kernel. `first`: with a causal mask, which of all queries is the first here. Shares are dropped at
    `rate`; processes with the same `part` draw alike, others independently."""
    if has_torch_function((query, key, value)):
        given = (query, key, value, bias, first, scale, rate, part)
        return handle_torch_function(attention_kernel, (query, key, value), *given)
    causal = first is not None
    if first is not None:
        seen, bias = _band(query.shape[-2], key.shape[-2], first, query.device)
        key, value, causal = key[..., :seen, :], value[..., :seen, :], bias is None
    if not rate:
        return functional.scaled_dot_product_attention(query, key, value, bias, is_causal=causal, scale=scale)
    seed = drawn_seed(part)
    devices = [query.device] if query.device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=query.device.type if devices else "cuda"):
        torch.manual_seed(seed)
        return functional.scaled_dot_product_attention(query, key, value, bias, rate, causal, scale=scale)


def _band(rows: int, keys: int, first: int, device: torch.device) -> tuple[int, Tensor | None]:
    """How many of the keys are read by queries that see those up to their own place, and what tells torch so: nothing
    where its own causality does, which begins with the first key. Behind the first queries the last one sees the last
    key that is read, which torch is told by a bias that its kernels need no memory for."""
    seen = min(first + rows, keys)
    if not first:
        return seen, None
    if seen == first + rows:
        from torch.nn.attention.bias import causal_lower_right

        return seen, causal_lower_right(rows, seen)
    return seen, torch.ones(rows, seen, dtype=torch.bool, device=device).tril(first)


def _read_turned(engine: Engine, value: Value, result: Key) -> Value:
    """A value as its transpose is read by the plan's product, in its own dims."""
    order = _swapped(value)
    read = engine.read(permute_by(engine, value, order), [result])
    placements = (replace(p, dim=order[p.dim]) if p.is_shard else p for p in read.layout.placements)
    layout = Layout.of(*placements, order=read.layout.order)
    return Value(read.local.permute(*order), layout, value.shape, value.dtype, value.grad, Key(_NOTHING, value.shape))


_NOTHING = -1
"""The signature of a value that no plan knows."""


def _step_by_step(engine: Engine, heads: _Heads) -> Value:
    query, key, value, mask = heads.query, heads.key, heads.value, heads.mask
    scores = matmul(engine, Op("matmul", torch.matmul, [query, permute_by(engine, key, _swapped(key))]))
    scores = elementwise(engine, Op("mul", torch.mul, [scores, heads.scale]))
    if heads.causal:
        scores = _causal(engine, scores)
    elif mask is not None and mask.dtype == torch.bool:
        scores = elementwise(engine, Op("where", _masked, [mask, scores]))
    elif mask is not None:
        scores = elementwise(engine, Op("add", torch.add, [scores, mask]))
    safe = torch._safe_softmax  # noqa: SLF001 - as torch's kernels, of queries that see no key
    form = Op("softmax", torch.softmax, [scores, -1]) if mask is None else Op("_safe_softmax", safe, [scores, -1])
    shares = normalised(engine, form)
    if heads.rate:
        shares = dropout(engine, Op("dropout", functional.dropout, [shares, heads.rate, True]))
    return matmul(engine, Op("matmul", torch.matmul, [shares, value]))


def _causal(engine: Engine, scores: Value) -> Value:
    """Scores of the keys up to each query's own place."""
    queries, keys = (f"x{scores.rank - place}" for place in (2, 1))

    def run(locals_: list[Any], site: Site) -> Any:
        rows, columns = locals_[0].shape[-2:]
        return seen_before(locals_[0], site.number(queries) * rows - site.number(keys) * columns)

    call = unary(scores, scores.key, run)
    call.ordered = frozenset({queries, keys})
    return engine.run(call)[0]


def seen_before(scores: Tensor, ahead: int) -> Tensor:
    """Scores of a part of the queries, whose first is `ahead` places after the first of the keys here."""
    if has_torch_function_unary(scores):
        return handle_torch_function(seen_before, (scores,), scores, ahead)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(ahead)
    return scores.masked_fill(seen.logical_not(), float("-inf"))


def _masked(allowed: Any, scores: Any) -> Any:
    return scores.masked_fill(allowed.logical_not(), float("-inf"))
