"""Losses: cross entropy of logits whose classes may be split, and distances of corresponding elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.norms import known_as, normalised, over_parts, unknown
from shardplan.torch.rules.reductions import reduction
from shardplan.torch.rules.views import reshape

_NAMES = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
DISTANCES = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
_NONE, _MEAN, _SUM = 0, 1, 2
"""Reductions, as ATen numbers them."""


def cross_entropy(engine: Engine, op: Op) -> Any:
    """`cross_entropy_loss`. Each process adds the logarithms of those classes that it has, so that nothing as wide as
    the classes is sent."""
    given = {**dict(zip(_NAMES, op.args, strict=False)), **op.kwargs}
    logits, target = as_value(engine, given["input"]), as_value(engine, given["target"])
    weight, smoothing = given.get("weight"), float(given.get("label_smoothing", 0.0))
    ignored, how = int(given.get("ignore_index", -100)), given.get("reduction", _MEAN)
    of_rows = not target.dtype.is_floating_point
    key = _key(engine, [logits, target, weight], target, how)
    if of_rows:
        logits, target, weight = _as_planned(engine, [logits, target, weight], key)
    shares = normalised(engine, Op("log_softmax", torch.log_softmax, [logits, 1 if logits.rank > 1 else 0]))
    if not of_rows:
        return _of_soft_labels(engine, shares, target, weight, smoothing, how)
    if weight is not None or smoothing:
        return _of_weighted_shares(engine, shares, target, weight, smoothing, ignored, how, key)
    return _of_shares(engine, shares, target, ignored, how, key)


def nll_loss(engine: Engine, op: Op) -> Any:
    """`nll_loss` of logarithms of shares, as `cross_entropy`."""
    given = {**dict(zip(_OF_NLL, op.args, strict=False)), **op.kwargs}
    shares, target = as_value(engine, given["input"]), as_value(engine, given["target"])
    ignored, how = int(given.get("ignore_index", -100)), given.get("reduction", _MEAN)
    key = _key(engine, [shares, target, given.get("weight")], target, how)
    shares, target, weight = _as_planned(engine, [shares, target, given.get("weight")], key)
    if weight is not None:
        return _of_weighted_shares(engine, shares, target, weight, 0.0, ignored, how, key)
    return _of_shares(engine, shares, target, ignored, how, key)


_OF_NLL = ("input", "target", "weight", "reduction", "ignore_index")


def _key(engine: Engine, operands: Sequence[Any], target: Value, how: int) -> Key:
    """What a plan has a loss of these operands as."""
    known = [as_value(engine, each).key.signature for each in operands if each is not None]
    return Key(engine.graph.signatures.nonlinear(known), target.shape if how == _NONE else ())


def _as_planned(engine: Engine, operands: Sequence[Any], key: Key) -> list[Any]:
    """The operands of a loss as its operator reads them in the plan: whole, or split by rows."""
    return [each if each is None else engine.read(as_value(engine, each), [key]) for each in operands]


def _made(engine: Engine, loss: Value, key: Key) -> Value:
    """A loss, of which each process may have a part, as the plan keeps it; whole, if no plan knows it."""
    return known_as(engine, loss, key) if engine.knows(key) else over_parts(engine, loss)


def _of_shares(engine: Engine, shares: Value, target: Value, ignored: int, how: int, key: Key) -> Value:
    """The negative share of every row's target, added up as `how` says."""
    losses = _picked(engine, unknown(shares), target, ignored)
    total = losses if how == _NONE else reduction(engine, Op("sum", torch.sum, [losses]))
    if how != _MEAN:
        return _made(engine, total, key)
    seen = elementwise(engine, Op("ne", torch.ne, [unknown(target), ignored]))
    count = over_parts(engine, reduction(engine, Op("sum", torch.sum, [seen])))
    return _made(engine, elementwise(engine, Op("div", torch.div, [over_parts(engine, total), count])), key)


def _of_weighted_shares(
    engine: Engine, shares: Value, target: Value, weight: Any, smoothing: float, ignored: int, how: int, key: Key
) -> Value:
    """The same with a weight for each class (`None`: 1), and a part `smoothing` of every label spread over all classes;
    a mean is by the weights of the targets."""
    shares, target = unknown(shares), unknown(target)
    weighed = shares if weight is None else _scaled(engine, shares, weight)
    losses = over_parts(engine, _picked(engine, weighed, target, ignored))
    if smoothing:
        spread = smoothing / shares.shape[min(1, target.rank)]
        all_classes = over_parts(engine, _summed(engine, weighed, min(1, target.rank)))

        def mixed(one: Any, whole: Any, places: Any) -> Any:
            return torch.where(places == ignored, 0.0, (1 - smoothing) * one - spread * whole)

        losses = elementwise(engine, Op("mixed", mixed, [losses, all_classes, target]))
    if how != _MEAN:
        losses = losses if how == _NONE else reduction(engine, Op("sum", torch.sum, [losses]))
        return _made(engine, losses, key)
    if weight is None:
        counted = elementwise(engine, Op("ne", torch.ne, [target, ignored]))
    else:
        ones = elementwise(engine, Op("full_like", lambda local: torch.full_like(local, -1.0), [shares]))
        counted = over_parts(engine, _picked(engine, _scaled(engine, ones, weight), target, ignored))
    total, count = (_over_all(engine, each, _SUM) for each in (losses, counted))
    return _made(engine, elementwise(engine, Op("div", torch.div, [total, count])), key)


def _of_soft_labels(engine: Engine, shares: Value, labels: Value, weight: Any, smoothing: float, how: int) -> Value:
    """Of every row the shares weighed by its labels, whose mean is that of rows."""
    dim, shares = min(1, shares.rank - 1), unknown(shares)
    spread = smoothing / shares.shape[dim]

    def each(share: Any, label: Any) -> Any:
        return -share * (label * (1 - smoothing) + spread)

    losses = elementwise(engine, Op("each", each, [shares, unknown(labels)]))
    losses = losses if weight is None else _scaled(engine, losses, weight)
    return _over_all(engine, over_parts(engine, _summed(engine, losses, dim)), how)


def _scaled(engine: Engine, shares: Value, weight: Any) -> Value:
    """Shares times what is given for each class."""
    classes = as_value(engine, weight)
    shape = (classes.shape[0], *[1] * (shares.rank - 2))
    aligned = reshape(engine, Op("reshape", torch.reshape, [unknown(classes), shape]))
    return elementwise(engine, Op("mul", torch.mul, [shares, aligned]))


def _summed(engine: Engine, value: Value, dim: int) -> Value:
    return reduction(engine, Op("sum", torch.sum, [value, dim]))  # type: ignore[no-any-return]


def distance(engine: Engine, op: Op) -> Value:
    """A mean or sum of a function of the difference of two values, which exported programs have as a value too."""
    how = op.kwargs.get("reduction", op.args[2] if len(op.args) > 2 else _MEAN)
    more = [*op.args[3:], *(given for name, given in op.kwargs.items() if name in {"beta", "delta"})]

    def each(difference: Any) -> Any:
        return op.func(difference, torch.zeros_like(difference), _NONE, *more)

    values = [op.kwargs.get(name, op.args[place] if len(op.args) > place else None) for place, name in enumerate(_PAIR)]
    difference = elementwise(engine, Op("sub", torch.sub, values))
    return _over_all(engine, elementwise(engine, Op(op.name, each, [difference])), how)


_PAIR = ("input", "target")


def binary_cross_entropy(engine: Engine, op: Op) -> Value:
    """`binary_cross_entropy` of shares or (`with_logits`) logits, weighted by element or class."""
    names = (*_PAIR, "weight", *(("pos_weight",) if "logits" in op.name else ()), "reduction")
    given = {"reduction": _MEAN, **dict(zip(names, op.args, strict=False)), **op.kwargs}
    operands = {name: given[name] for name in names[:-1] if given.get(name) is not None}

    def each(*locals_: Any) -> Any:
        found = dict(zip(operands, locals_, strict=True))
        return op.func(*(found.get(name) for name in names[:-1]), _NONE)

    losses = elementwise(engine, Op(op.name, each, list(operands.values())))
    return _over_all(engine, losses, given["reduction"])


def _over_all(engine: Engine, losses: Value, how: int) -> Value:
    """Losses of elements, their mean or their sum."""
    if how == _NONE:
        return losses
    whole = (torch.mean, torch.sum)[how - _MEAN]
    return over_parts(engine, reduction(engine, Op(whole.__name__, whole, [losses])))


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
