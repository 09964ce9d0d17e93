"""Attention where queries or keys are split: masks that follow from positions, and softmax over the keys of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardplan.model.attributes import integer
from shardplan.model.types import AttributeValue
from shardplan.program.machine.talk import Coordinates, Operands, Running, all_reduce
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.types import Array, Local, Site

Attributes = Mapping[str, AttributeValue]
_POSITIONAL = frozenset({"is_causal", "left_window_size", "right_window_size"})


@dataclass(frozen=True, slots=True)
class Band:
    """Which keys a query sees: those from `first` to `last` places after its own (None: no bound), which is its number
    among the queries and `past` more. `others`: the attributes that do not say so."""

    first: int | None
    last: int | None
    past: int
    others: Attributes


def band_of(site: Site, local: Local) -> Band | None:
    """What positions mean on a device that has some of them; None where they mean nothing, or a device has all."""
    left, right = (integer(local.attributes, f"{side}_window_size", -1) for side in ("left", "right"))
    last = 0 if local.attributes.get("is_causal", 0) else None if right < 0 else right
    if (left < 0 and last is None) or not site.axes("s", "t"):
        return None
    others = {name: value for name, value in local.attributes.items() if name not in _POSITIONAL}
    return Band(None if left < 0 else -left, last, site.operand(4)[2] if site.has(4) else 0, others)


def attention(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Attention` over split keys: each device attends to its keys, results count by their sums of exponentials.

    The scores come from the operator itself (mode 2: as they enter the softmax), with their mask and cap."""
    band = band_of(site, local)
    attributes = local.attributes if band is None else band.others
    operands = operands if band is None else _masked(site, band, operands, coordinates)
    axes = site.axes("t")
    if not axes:
        return evaluate(site.operator, attributes, operands)
    operator = replace(site.operator, outputs=("y", "k", "v", "scores"))
    made, keys, values, scores = evaluate(operator, {**attributes, "qk_matmul_output_mode": 2}, operands)
    highest = yield from all_reduce(scores.max(axis=-1, keepdims=True), axes, "max")
    exponentials = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    weight = exponentials.sum(axis=-1, keepdims=True)
    total = yield from all_reduce(weight, axes)
    total = np.where(total == 0, 1, total)
    share = weight / total
    if made.ndim == 3:
        by_head = made.reshape(*made.shape[:2], scores.shape[1], -1)
        made = _counted(by_head, share.swapaxes(1, 2)).reshape(made.shape)
    else:
        made = _counted(made, share)
    results = [(yield from all_reduce(made, axes)), keys, values]
    if len(site.operator.outputs) > 3:
        asked = attributes.get("qk_matmul_output_mode", 0)
        results.append(exponentials / total if asked == 3 else evaluate(site.operator, attributes, operands)[3])
    return results[: len(site.operator.outputs)]


def _counted(made: Array, share: Array) -> Array:
    """What a device made, times its share: nothing (not even a nan) for rows of which it has no key."""
    return np.where(share == 0, 0, made * share)


def _masked(site: Site, band: Band, operands: Operands, coordinates: Coordinates) -> Operands:
    """The operands with a mask that has the rows and columns of a band which the device holds."""
    query, key = operands[:2]
    assert query is not None
    assert key is not None
    rows, columns = (
        np.arange(size) + site.mesh.number(site.axes(factor), coordinates) * size
        for factor, size in (("s", query.shape[-2]), ("t", band.past + key.shape[-2]))
    )
    ahead = columns[None, :] - rows[:, None] - band.past
    seen = np.ones(ahead.shape, dtype=np.bool_)
    if band.first is not None:
        seen &= ahead >= band.first
    if band.last is not None:
        seen &= ahead <= band.last
    given = operands[3] if len(operands) > 3 else None
    if given is not None:
        seen = given & seen if given.dtype == np.bool_ else np.where(seen, given, np.array(-np.inf, given.dtype))
    return [*operands[:3], seen, *operands[4:]]
