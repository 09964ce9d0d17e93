"""Losses whose samples or classes are split."""

from __future__ import annotations

import math

import numpy as np

from shardplan.layout.placement import S
from shardplan.program.machine.talk import Asking, Coordinates, Operands, Running, all_reduce
from shardplan.program.types import Array, Local, Site


def likelihood(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`NegativeLogLikelihoodLoss`, `SoftmaxCrossEntropyLoss`: a device looks up the targets among the classes it has.

    What lies in other classes counts elsewhere; means are taken over all samples; of a softmax the devices that share
    a row share its maximum and its sum.
    """
    scores, target = operands[0], operands[1]
    assert scores is not None
    assert target is not None
    by_class = tuple(axis for axis, option in enumerate(site.options) if option and option.operands[0] == S(1))
    merged = tuple(axis for axis, option in enumerate(site.options) if option and option.inner)
    is_softmax = site.kind == "SoftmaxCrossEntropyLoss"
    if is_softmax:
        scores = yield from _log_softmax(scores, by_class)
    weights = operands[2] if len(operands) > 2 else None
    first = site.mesh.number(by_class, coordinates) * scores.shape[1]
    loss, weight = _of_each(local, scores, target, weights, first)
    how = local.attributes.get("reduction", "mean")
    if how == "none":
        made = (yield from all_reduce(loss, by_class)) if is_softmax and by_class else loss
    elif how == "mean" and (weights is not None or "ignore_index" in local.attributes):
        both = np.stack([loss.sum(), weight.sum()])
        made, counted = (yield from all_reduce(both, merged)) if merged else both
        made = made / counted
    else:
        made = loss.sum() / (math.prod(site.operand(1)) if how == "mean" else 1)
        made = (yield from all_reduce(made, merged)) if merged else made
    return [np.asarray(made), scores][: len(site.operator.outputs)]


def _log_softmax(scores: Array, axes: tuple[int, ...]) -> Asking:
    """Over dim 1, of which `axes` split the classes."""
    top = scores.max(axis=1, keepdims=True)
    if axes:
        top = yield from all_reduce(top, axes, "max")
    shifted = scores - top
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    if axes:
        total = yield from all_reduce(total, axes)
    return np.asarray(shifted - np.log(total))


def _of_each(local: Local, scores: Array, target: Array, weights: Array | None, first: int) -> tuple[Array, Array]:
    """Loss and weight of every sample, both 0 where its class is not among those from `first` on, or is ignored."""
    ignored = target == local.attributes.get("ignore_index", np.iinfo(np.int64).min)
    inside = (target >= first) & (target < first + scores.shape[1]) & ~ignored
    place = np.where(inside, target - first, 0)
    weight = np.where(inside, 1.0 if weights is None else weights[place], 0.0)
    found: Array = np.take_along_axis(scores, place[:, None], 1)[:, 0]
    return np.asarray(-weight * found), weight
