"""Transposed convolutions in numpy: ONNX's evaluator takes other weights for groups, and knows no `output_shape`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.model.attributes import integer, integers
from shardplan.model.types import AttributeValue, Operator

Array = NDArray[Any]


def conv_transpose(
    operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]
) -> list[Array]:
    """`ConvTranspose`: every entry adds the kernel, times its value, where it stands; what pads cut off is left out."""
    del operator
    data, kernel, bias = [*operands, None][:3]
    assert data is not None
    assert kernel is not None
    groups, space = integer(attributes, "group", 1), data.ndim - 2
    strides, dilations = (np.array(integers(attributes, name, (1,) * space)) for name in ("strides", "dilations"))
    sizes, windows = np.array(data.shape[2:]), np.array(kernel.shape[2:])
    reach = strides * (sizes - 1) + (windows - 1) * dilations + 1
    starts, ends = _kept(attributes, reach + integers(attributes, "output_padding", (0,) * space), sizes * strides)
    grouped = data.reshape(data.shape[0], groups, -1, *data.shape[2:])
    weights = kernel.reshape(groups, -1, *kernel.shape[1:])
    made = np.zeros((data.shape[0], groups, kernel.shape[1], *np.maximum(reach, ends)), data.dtype)
    for place in np.ndindex(*kernel.shape[2:]):
        first = np.array(place) * dilations
        there = _window(first, first + strides * (sizes - 1) + 1, strides)
        made[there] += np.einsum("ngc...,gcm->ngm...", grouped, weights[(..., *place)])
    made = made.reshape(data.shape[0], -1, *made.shape[3:])[_window(starts, ends, np.ones_like(ends))]
    return [made if bias is None else made + bias.reshape(-1, *[1] * space)]


def _window(starts: Array, ends: Array, steps: Array) -> tuple[Any, ...]:
    """The index of these entries of the last dims."""
    return (..., *map(slice, starts, ends, steps))


def _kept(attributes: Mapping[str, AttributeValue], whole: Array, same: Array) -> tuple[Array, Array]:
    """Of what reaches over `whole` in each dim of space, where the result begins and ends; `same`: what it is with the
    `auto_pad` of that name. Pads that follow from its shape are equal, the odd one in front unless it is
    `SAME_UPPER`."""
    mode, asked = attributes.get("auto_pad", "NOTSET"), integers(attributes, "output_shape")
    if asked or mode in {"SAME_UPPER", "SAME_LOWER"}:
        size = np.array(asked) if asked else same
        cut = np.maximum(0, whole - size)
        starts = cut // 2 if mode == "SAME_UPPER" else cut - cut // 2
        return starts, starts + size
    pads = np.array(
        integers(attributes, "pads", (0,) * (2 * len(whole))) if mode == "NOTSET" else (0,) * 2 * len(whole)
    )
    return pads[: len(whole)], whole - pads[len(whole) :]
