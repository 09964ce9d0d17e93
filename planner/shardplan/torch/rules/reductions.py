"""Reductions, and functions along one dim that keep the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Dims, Site, Value
from shardplan.torch.rules.elementwise import elementwise, unary
from shardplan.torch.rules.views import reshape

_MEANS = frozenset(("mean",))
_ADDED = frozenset(("sum", "mean", "nansum"))
RANKED = frozenset(("median", "nanmedian", "mode", "kthvalue"))


def reduction(engine: Engine, op: Op) -> Any:
    """`sum`, `mean` of split dims are partial; other reductions (`amax`, `argmax`, `var` ...) need their dims whole."""
    value = op.args[0]
    others = [*op.args[1:2], op.kwargs.get("other")]
    if any(isinstance(other, (Value, torch.Tensor)) for other in others):  # `max` and `min` of two
        return elementwise(engine, Op(f"{op.name}imum", op.func, [*op.args, *others[-1:]][:2]))
    given = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 and not isinstance(op.args[1], torch.dtype) else None)
    dims = dims_of(given, value.rank)
    meta = torch.empty(value.shape, device="meta", dtype=value.dtype)
    made = op.func(meta, *op.args[1:], **op.kwargs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    kept = len(results[0].shape) == value.rank
    factors: Dims = tuple(
        (f"x{dim}",) if dim not in dims else () for dim in range(value.rank) if kept or dim not in dims
    )
    terms = engine.graph.signatures
    signature = (terms.linear if op.name in _ADDED else terms.nonlinear)([value.key.signature])
    ones = (1,) * value.rank
    if op.name in _ADDED and results[0].shape == () != ones and engine.knows(Key(signature, ones)):
        return _of_all_elements(engine, op, Key(signature, ones), integer=not results[0].dtype.is_floating_point)

    call = unary(value, value.key, _run(op, dims), () if op.name in _ADDED else dims)
    call.results = [factors] * len(results)
    call.shapes = [tuple(result.shape) for result in results]
    call.keys = [Key(signature, tuple(result.shape)) for result in results]
    call.linear = (frozenset({0}),) if op.name in _ADDED else ()
    call.integer = not results[0].dtype.is_floating_point
    found = engine.run(call)
    return type(made)(found) if isinstance(made, tuple) and len(found) > 1 else found[0]


def _run(op: Op, dims: tuple[int, ...], shape: tuple[int, ...] | None = None) -> Callable[[list[Any], Site], Any]:
    """What a process computes of a reduction over `dims`; of a mean, its share of it."""

    def run(locals_: list[Any], site: Site) -> Any:
        found = op.func(locals_[0], *op.args[1:], **op.kwargs)
        found = found if shape is None else found.reshape(shape)
        ways = site.ways(*(f"x{dim}" for dim in dims))
        return found / ways if op.name in _MEANS and ways > 1 else found

    return run


def _of_all_elements(engine: Engine, op: Op, key: Key, *, integer: bool) -> Any:
    """A sum or mean of everything. Exporters write it with all dims kept, as the value `key` of the plan, which is what
    the plan moves, and drop the dims afterwards."""
    value: Value = op.args[0]
    call = unary(value, key, _run(op, tuple(range(value.rank)), key.shape))
    call.results, call.shapes, call.linear = [((),) * value.rank], [key.shape], (frozenset({0}),)
    call.integer = integer
    return reshape(engine, Op("reshape", torch.reshape, [engine.run(call)[0], ()]))


def ranked(engine: Engine, op: Op) -> Any:
    """`median`, `mode`, `kthvalue`: an entry of one dim, which is whole, and where it stands; medians also of all."""
    value, *rest = op.args
    named = dict(op.kwargs)
    first = [named.pop("k") if "k" in named else rest.pop(0)] if op.name == "kthvalue" else []
    if not rest and "dim" not in named and op.name in ("kthvalue", "mode"):
        rest = [-1]

    def run(local: Any, *more: Any, **others: Any) -> Any:
        return op.func(local, *first, *more, **others)

    return reduction(engine, Op(op.name, run, [value, *rest], named))


def dims_of(given: Any, rank: int) -> tuple[int, ...]:
    """The dims that a call names, all where it names none."""
    if given is None or not rank:
        return tuple(range(rank))
    wanted = given if isinstance(given, (tuple, list)) else (given,)
    return tuple(sorted(int(dim) % rank for dim in wanted)) or tuple(range(rank))


def along_dim(engine: Engine, op: Op) -> Any:
    """Functions along one dim that keep the others (`cumsum`, `topk`, `sort`): the dim is whole."""
    value = op.args[0]
    place = 2 if op.name == "topk" else 1
    given = op.kwargs.get("dim", op.args[place] if len(op.args) > place else -1)
    dim = int(given) % value.rank
    made = op.func(torch.empty(value.shape, device="meta", dtype=value.dtype), *op.args[1:], **op.kwargs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    key = engine.graph.signatures.nonlinear([value.key.signature])
    call = unary(value, value.key, lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs), [dim])
    dims = tuple((f"x{place}",) if place != dim else ("new",) for place in range(value.rank))
    call.sizes = {**call.sizes, "new": results[0].shape[dim]}
    call.results, call.whole = [dims] * len(results), frozenset({f"x{dim}", "new"})
    call.shapes = [tuple(result.shape) for result in results]
    call.keys = [Key(key, tuple(result.shape)) for result in results]
    call.linear = (frozenset({0}),) if op.name == "cumsum" else ()
    found = engine.run(call)
    return tuple(found) if len(found) > 1 else found[0]


def triangle(engine: Engine, op: Op) -> Value:
    """`tril` and `triu`: the last two dims are whole."""
    value: Value = op.args[0]
    key = Key(engine.graph.signatures.linear([value.key.signature]), value.shape, value.key.perm)
    call = unary(
        value,
        key,
        lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs),
        (-2 % value.rank, -1 % value.rank),
    )
    call.linear = (frozenset({0}),)
    return engine.run(call)[0]


def shifted(engine: Engine, op: Op) -> Value:
    """`flip` and `roll`: the dims that they move are whole; `roll` without dims has none left."""
    value: Value = op.args[0]
    place = 2 if op.name == "roll" else 1
    given = op.kwargs.get("dims", op.args[place:])
    given = given[0] if isinstance(given, (tuple, list)) and len(given) == 1 else given
    dims = tuple(range(value.rank)) if given == () else dims_of(given, value.rank)
    call = unary(value, value.key, lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs), dims)
    call.keys = [Key(engine.graph.signatures.nonlinear([value.key.signature]), value.shape)]
    call.linear = (frozenset({0}),)
    return engine.run(call)[0]


def one_hot(engine: Engine, op: Op) -> Value:
    """`one_hot` with a known number of classes; the classes are whole."""
    value = op.args[0]
    classes = int(op.kwargs.get("num_classes", op.args[1] if len(op.args) > 1 else -1))
    if classes < 0:
        raise TypeError("one_hot needs num_classes: without it the result's shape depends on data")
    shape = (*value.shape, classes)
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)
    call = unary(value, key, lambda locals_, _: torch.nn.functional.one_hot(locals_[0], classes))
    call.results, call.shapes = [(*call.dims[0], ("class",))], [shape]
    call.sizes, call.whole, call.integer = {**call.sizes, "class": classes}, frozenset({"class"}), True
    return engine.run(call)[0]
