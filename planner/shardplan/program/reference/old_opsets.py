"""Operators of old opsets, rewritten in a form that the reference evaluator has.

Settings that were attributes become operands, and what was aligned by an attribute gets the dims that it lies along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.model.types import AttributeValue, Operator

Array = NDArray[Any]
Attributes = dict[str, AttributeValue]
Form = tuple[Operator, Attributes, list[Array | None]]
"""An operator, its attributes and its operands."""
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")
_BROADCASTS_SINCE, _ALWAYS = 7, 1000


def modern(operator: Operator, attributes: Mapping[str, AttributeValue], operands: Sequence[Array | None]) -> Form:
    """The same in a form that the evaluator knows; as it is where it already has one."""
    form = operator, dict(attributes), list(operands)
    until, translate = _OLD.get(operator.kind, (0, None))
    return form if translate is None or operator.version >= until else translate(*form)


def _given(operand: Array | None) -> Array:
    assert operand is not None
    return operand


def _broadcast(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    """The second operand lies along dims from `axis` on, by default the last ones."""
    left, right = _given(operands[0]), _given(operands[1])
    axis = attributes.pop("axis", left.ndim - right.ndim)
    attributes.pop("broadcast", None)
    assert isinstance(axis, int)
    behind = left.ndim - axis % max(1, left.ndim) - right.ndim if right.ndim else 0
    return replace(operator, version=13), attributes, [left, right.reshape(*right.shape, *[1] * max(0, behind))]


def _by_channel(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    """`PRelu`: a slope for every channel, which is dim 1."""
    data, slope = _given(operands[0]), _given(operands[1])
    if slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape(-1, *[1] * (data.ndim - 2))
    return replace(operator, version=9), attributes, [data, slope]


def _with_operand(name: str, version: int) -> Callable[[Operator, Attributes, list[Array | None]], Form]:
    """A list of integers that was the attribute `name` becomes the second operand."""

    def translate(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
        if name in attributes:
            operands = [operands[0], np.array(attributes.pop(name), np.int64)]
        return replace(operator, version=version), attributes, operands

    return translate


def _split(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    sizes = operands[1].astype(np.int64) if len(operands) > 1 and operands[1] is not None else None
    return replace(operator, version=13), attributes, [operands[0], sizes] if sizes is not None else operands[:1]


def _tile(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    """So many copies along one dim."""
    if len(operands) < 3:
        return operator, attributes, operands
    data = _given(operands[0])
    repeats = np.ones(data.ndim, np.int64)
    repeats[int(_given(operands[2]))] = int(_given(operands[1]))
    return replace(operator, version=13), attributes, [data, repeats]


def _pad(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    pads = np.array(attributes.pop("pads", attributes.pop("paddings", ())), np.int64)
    value = np.array(attributes.pop("value", 0.0), _given(operands[0]).dtype)
    return replace(operator, version=13), attributes, [operands[0], pads, value]


def _upsample(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    data = _given(operands[0])
    if "height_scale" in attributes:
        scales = (1.0, 1.0, attributes.pop("height_scale"), attributes.pop("width_scale"))
    else:
        scales = attributes.pop("scales", ())  # type: ignore[assignment]
    return replace(operator, version=9), attributes, [data, np.array(scales, np.float32)]


def _resize(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    """The coordinates of `Resize` 10 are those that later versions call asymmetric, rounded down."""
    attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return replace(operator, version=13), attributes, [operands[0], None, operands[1]]


def _newer(version: int, *dropped: str) -> Callable[[Operator, Attributes, list[Array | None]], Form]:
    """The form of a later version, which has all but these attributes."""

    def translate(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
        kept = {name: value for name, value in attributes.items() if name not in dropped}
        return replace(operator, version=version), kept, operands

    return translate


def _scatter(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    return replace(operator, op_type="ScatterElements", version=11), attributes, operands


def _attention(operator: Operator, attributes: Attributes, operands: list[Array | None]) -> Form:
    """One row of a mask stands for all queries; to the evaluator it is the first one's when there is causality too."""
    mask = operands[3] if len(operands) > 3 else None
    if mask is not None and mask.shape[-2] == 1:
        shape = (*mask.shape[:-2], _given(operands[0]).shape[-2], mask.shape[-1])
        operands[3] = np.broadcast_to(mask, shape)
    return operator, attributes, operands


_OLD: Mapping[str, tuple[int, Callable[[Operator, Attributes, list[Array | None]], Form]]] = {
    **dict.fromkeys(_BINARY, (_BROADCASTS_SINCE, _broadcast)),
    "PRelu": (_BROADCASTS_SINCE, _by_channel),
    "Reshape": (5, _with_operand("shape", 13)),
    "Split": (2, _split),
    "Tile": (6, _tile),
    "Pad": (11, _pad),
    "Upsample": (9, _upsample),
    "Resize": (11, _resize),
    "Dropout": (12, _newer(7, "is_test", "consumed_inputs", "ratio")),
    "DequantizeLinear": (19, _newer(19)),
    "Scatter": (_ALWAYS, _scatter),
    "Attention": (_ALWAYS, _attention),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), (7, _newer(7, "output_sequence"))),
}
"""Kind -> the first version that the evaluator knows, and the way there."""
