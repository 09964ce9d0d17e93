"""Losses: cross entropy of logits whose classes may be split, and distances of corresponding elements."""

from __future__ import annotations

from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.norms import normalised, over_parts, unknown
from shardplan.torch.rules.reductions import reduction

_NAMES = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
DISTANCES = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
_NONE, _MEAN = 0, 1
"""Reductions, as ATen numbers them."""


def cross_entropy(engine: Engine, op: Op) -> Any:
    """`cross_entropy_loss` of classes by number, unweighted. Each process adds the logarithms of those classes that it
    has, so that nothing as wide as the classes is sent."""
    given = {**dict(zip(_NAMES, op.args, strict=False)), **op.kwargs}
    logits, target = as_value(engine, given["input"]), as_value(engine, given["target"])
    if given.get("weight") is not None or given.get("label_smoothing") or target.dtype.is_floating_point:
        return replicated(engine, op)
    ignored = int(given.get("ignore_index", -100))
    shares = normalised(engine, Op("log_softmax", torch.log_softmax, [logits, 1 if logits.rank > 1 else 0]))
    return _of_shares(engine, shares, target, ignored, given.get("reduction", _MEAN))


def nll_loss(engine: Engine, op: Op) -> Any:
    """`nll_loss` of logarithms of shares, unweighted, as `cross_entropy`."""
    given = {**dict(zip(_OF_NLL, op.args, strict=False)), **op.kwargs}
    if given.get("weight") is not None:
        return replicated(engine, op)
    shares, target = as_value(engine, given["input"]), as_value(engine, given["target"])
    ignored = int(given.get("ignore_index", -100))
    return _of_shares(engine, shares, target, ignored, given.get("reduction", _MEAN))


_OF_NLL = ("input", "target", "weight", "reduction", "ignore_index")


def _of_shares(engine: Engine, shares: Value, target: Value, ignored: int, how: int) -> Value:
    """The negative share of every row's target, added up as `how` says."""
    losses = _picked(engine, unknown(shares), target, ignored)
    if how == _NONE:
        return over_parts(engine, losses)
    total = over_parts(engine, reduction(engine, Op("sum", torch.sum, [losses])))
    if how != _MEAN:
        return total
    seen = elementwise(engine, Op("ne", torch.ne, [unknown(target), ignored]))
    count = over_parts(engine, reduction(engine, Op("sum", torch.sum, [seen])))
    return elementwise(engine, Op("div", torch.div, [total, count]))


def distance(engine: Engine, op: Op) -> Value:
    """A mean or sum of a function of two values' corresponding elements."""
    how = op.kwargs.get("reduction", op.args[2] if len(op.args) > 2 else _MEAN)
    more = [*op.args[3:], *(given for name, given in op.kwargs.items() if name in {"beta", "delta"})]

    def each(one: Any, other: Any) -> Any:
        return op.func(one, other, _NONE, *more)

    values = [op.kwargs.get(name, op.args[place] if len(op.args) > place else None) for place, name in enumerate(_PAIR)]
    apart = elementwise(engine, Op(op.name, each, values))
    if how == _NONE:
        return apart
    whole = (torch.mean, torch.sum)[how - _MEAN]
    return over_parts(engine, reduction(engine, Op(whole.__name__, whole, [apart])))


_PAIR = ("input", "target")


def _picked(engine: Engine, shares: Value, target: Value, ignored: int) -> Value:
    """Of every row the negative share of its target, of those classes that a process has; 0 where it is ignored."""
    rows = tuple((f"x{dim}",) for dim in range(target.rank))
    whole: Dims = (*rows[:1], ("class",), *rows[1:]) if target.rank else (("class",),)
    dim = min(1, target.rank)
    classes = shares.shape[dim]

    def run(locals_: list[Any], site: Site) -> Any:
        local, places = locals_
        held = classes // site.ways("class")
        first = site.number("class") * held
        inside = (places >= first) & (places < first + held) & (places != ignored)
        found = local.gather(dim, torch.where(inside, places - first, 0).unsqueeze(dim)).squeeze(dim)
        return found.neg().masked_fill(inside.logical_not(), 0)

    sizes = {"class": classes, **{f"x{number}": size for number, size in enumerate(target.shape)}}
    call = Call(
        [shares, target], [whole, rows], [rows], [target.shape], [Key(CONSTANT, target.shape)], sizes, run,
        ordered=frozenset({"class"}), linear=(frozenset({0}),), ready=True,
    )  # fmt: skip
    return engine.run(call)[0]
