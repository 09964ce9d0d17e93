"""Pooling over windows, all at once: ONNX's evaluator visits them one by one, which takes most of the time of a network
on images. Only what is common is written here; the evaluator runs the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from shardplan.model.attributes import integers
from shardplan.model.types import AttributeValue, Operator

Array = NDArray[Any]
POOLS = frozenset({"MaxPool", "AveragePool"})
_SPACE = (2, 3)


def pooled(operator: Operator, attributes: Mapping[str, AttributeValue], data: Array) -> list[Array] | None:
    """`MaxPool` without indices, `AveragePool`, over images [N, C, H, W] with explicit pads; None for other forms."""
    kernel = integers(attributes, "kernel_shape", (0, 0))
    pads, strides = integers(attributes, "pads", (0,) * 4), integers(attributes, "strides", (1, 1))
    plain = (
        data.ndim == len(_SPACE) + 2 and data.dtype == np.float64
        and len(operator.outputs) == 1
        and attributes.get("auto_pad", "NOTSET") == "NOTSET"
        and not attributes.get("ceil_mode", 0)
        and set(integers(attributes, "dilations", (1,))) == {1}
    )  # fmt: skip
    if not plain:
        return None
    if operator.kind == "MaxPool":
        return [_windows(data, kernel, pads, strides, -np.inf).max(axis=(-2, -1))]
    total = _windows(data, kernel, pads, strides, 0.0).sum(axis=(-2, -1))
    if attributes.get("count_include_pad", 0):
        return [total / math.prod(kernel)]
    inside = _windows(np.ones((1, 1, *data.shape[2:])), kernel, pads, strides, 0.0)
    return [total / inside.sum(axis=(-2, -1))]


def _windows(data: Array, kernel: Sequence[int], pads: Sequence[int], strides: Sequence[int], filler: float) -> Array:
    """The windows of the padded images, [N, C, rows, columns, *kernel]."""
    around = ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]))
    padded = np.pad(data, around, constant_values=filler)
    return sliding_window_view(padded, tuple(kernel), axis=_SPACE)[:, :, :: strides[0], :: strides[1]]
