"""Definitions of operators in numpy, where ONNX's reference evaluator deviates, overflows, or has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from shardplan.model.attributes import integer, integers, number
from shardplan.model.types import AttributeValue, Operator
from shardplan.program.reference.convolutions import conv_transpose

Array = NDArray[Any]
Definition = Callable[[Operator, Mapping[str, AttributeValue], Sequence[Array | None]], list[Array]]
"""(operator, its attributes on a device, operands) -> results."""
_FLOATS_OF = {2: np.float16, 4: np.float32, 8: np.float64}


def lrn(operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]) -> list[Array]:
    """`LRN`: by a sum over channels around each (the evaluator takes the batch for the channels)."""
    del operator
    data = operands[0]
    assert data is not None
    size, channels = integer(attributes, "size"), data.shape[1]
    square, total = np.square(data), np.zeros_like(data)
    for channel in range(channels):
        low, high = channel - (size - 1) // 2, channel + math.ceil((size - 1) / 2)
        total[:, channel] = square[:, max(0, low) : min(channels - 1, high) + 1].sum(axis=1)
    alpha, beta, bias = (number(attributes, *pair) for pair in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    return [data / (bias + alpha / size * total) ** beta]


def log_softmax(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`LogSoftmax` without the logarithm of an exponential, which is minus infinity where the result is not."""
    data = operands[0]
    assert data is not None
    axis = integer(attributes, "axis", -1 if operator.version >= 13 else 1)
    axis %= data.ndim
    axes = (axis,) if operator.version >= 13 else tuple(range(axis, data.ndim))
    shifted = data - data.max(axis=axes, keepdims=True)
    return [shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))]


def log_sum_exp(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`ReduceLogSumExp` of any version: minus infinity of nothing else (the evaluator's is not a number)."""
    del operator
    data, listed = [*operands, None][:2]
    assert data is not None
    axes = integers(attributes, "axes") if listed is None else tuple(int(axis) for axis in listed.reshape(-1))
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return [data]
    dims, keepdims = axes or None, bool(attributes.get("keepdims", 1))
    top = data.max(axis=dims, keepdims=True, initial=-math.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    made = np.log(np.exp(data - top).sum(axis=dims, keepdims=True)) + top
    return [made if keepdims else np.squeeze(made, dims)]


def batch_norm(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`BatchNormalization` of any version: by given statistics, or by those of the batch, which are results then."""
    data, scale, shift, mean, square = operands[:5]
    assert data is not None
    assert scale is not None
    assert shift is not None
    assert mean is not None
    assert square is not None
    spatial = scale.ndim == 1
    wide = (slice(None), *[None] * (data.ndim - 2)) if spatial else ()
    results: list[Array] = []
    if trains(operator, attributes):
        keep, dims = number(attributes, "momentum", 0.9), (0, *range(2, data.ndim)) if spatial else (0,)
        now = data.mean(axis=dims), data.var(axis=dims)
        results = [old * keep + new * (1 - keep) for old, new in zip((mean, square), now, strict=True)] + list(now)
        mean, square = now
    made = (data - mean[wide]) / np.sqrt(square[wide] + number(attributes, "epsilon", 1e-5))
    return [made * scale[wide] + shift[wide], *results][: len(operator.outputs)]


def group_norm(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`GroupNormalization`: its body, which the evaluator runs, computes statistics in single precision."""
    del operator
    data, scale, shift = operands[:3]
    assert data is not None
    assert scale is not None
    assert shift is not None
    groups = integer(attributes, "num_groups")
    grouped = data.reshape(data.shape[0], groups, -1)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    square = np.square(centred).mean(axis=2, keepdims=True)
    made = (centred / np.sqrt(square + number(attributes, "epsilon", 1e-5))).reshape(data.shape)
    per_entry = data.shape[1] // scale.shape[0]  # until opset 20 a scale belongs to a group
    wide = (slice(None), *[None] * (data.ndim - 2))
    return [made * np.repeat(scale, per_entry)[wide] + np.repeat(shift, per_entry)[wide]]


def trains(operator: Operator, attributes: Mapping[str, AttributeValue]) -> bool:
    """Whether a `BatchNormalization` takes the statistics of its batch."""
    if operator.version >= 14:
        return bool(attributes.get("training_mode", 0))
    return len(operator.outputs) > 1 if operator.version >= 7 else not attributes.get("is_test", 0)


def global_norm(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`GlobalLpPool`: the norm over all of space."""
    del operator
    data = operands[0]
    assert data is not None
    power = number(attributes, "p", 2.0)
    return [(np.abs(data) ** power).sum(axis=tuple(range(2, data.ndim)), keepdims=True) ** (1 / power)]


def bit_cast(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`BitCast` of floats of the width of the target; of two types of 16 bits the one that numpy has."""
    del operator
    data, to = operands[0], integer(attributes, "to")
    assert data is not None
    target = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if data.dtype == np.float64 and target.itemsize in _FLOATS_OF:
        data = data.astype(_FLOATS_OF[target.itemsize])
    return [data.view(target)]


def gather_elements(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`GatherElements` (the evaluator's fails along long dims, and where other dims of the index are shorter)."""
    del operator
    data, index = operands[:2]
    assert data is not None
    assert index is not None
    axis = integer(attributes, "axis", 0)
    axis %= data.ndim
    within = tuple(slice(None) if dim == axis else slice(size) for dim, size in enumerate(index.shape))
    return [np.take_along_axis(data[within], index, axis)]


def pad(operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]) -> list[Array]:
    """`Pad` of any version: a negative pad cuts entries away (the evaluator fails on it)."""
    del operator
    data, given, value, axes = [*operands, None, None, None][:4]
    assert data is not None
    listed = integers(attributes, "pads", integers(attributes, "paddings")) if given is None else given.tolist()
    dims = list(range(data.ndim)) if axes is None else [int(axis) % data.ndim for axis in axes.reshape(-1)]
    before, after = np.zeros((2, data.ndim), np.int64)
    before[dims], after[dims] = np.reshape(listed, (2, -1))
    ends = np.maximum(0, np.array(data.shape) + np.minimum(0, after))
    cut = data[tuple(map(slice, np.maximum(0, -before), ends))]
    around = np.maximum(0, np.stack([before, after], axis=1))
    mode: Any = attributes.get("mode", "constant")
    if mode != "constant":
        return [np.pad(cut, around, mode=mode)]
    filler = number(attributes, "value", 0.0) if value is None else value.reshape(-1)[0]
    return [np.pad(cut, around, constant_values=filler)]


DEFINITIONS: Mapping[str, Definition] = {
    "LRN": lrn,
    "LogSoftmax": log_softmax,
    "ReduceLogSumExp": log_sum_exp,
    "BitCast": bit_cast,
    "BatchNormalization": batch_norm,
    "GroupNormalization": group_norm,
    "GlobalLpPool": global_norm,
    "GatherElements": gather_elements,
    "Pad": pad,
    "ConvTranspose": conv_transpose,
}
