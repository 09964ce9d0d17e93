"""Attributes of ONNX nodes as plain Python values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from shardplan.model.types import AttributeValue

_A = onnx.AttributeProto


def attributes_of(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """Attributes by name: numbers, strings, tuples, arrays; nested graphs and types as `sha256:...` of their bytes."""
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def integer(attributes: Mapping[str, AttributeValue], name: str, default: int | None = None) -> int:
    """The whole number called `name`. Types of attributes were checked when the model was read."""
    value = attributes[name] if default is None else attributes.get(name, default)
    assert isinstance(value, int)
    return value


def number(attributes: Mapping[str, AttributeValue], name: str, default: float) -> float:
    """The number called `name`, whole or not."""
    value = attributes.get(name, default)
    assert isinstance(value, int | float)
    return float(value)


def integers(attributes: Mapping[str, AttributeValue], name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The whole numbers called `name`; an empty list counts as none."""
    value = attributes.get(name) or default
    assert isinstance(value, tuple)
    return tuple(int(entry) for entry in value)


def _value(attribute: onnx.AttributeProto) -> AttributeValue:  # noqa: PLR0911 - one line per kind
    kind = attribute.type
    if kind == _A.INT:
        return int(attribute.i)
    if kind == _A.INTS:
        return tuple(attribute.ints)
    if kind == _A.FLOAT:
        return float(attribute.f)
    if kind == _A.STRING:
        return _text(attribute.s)
    if kind == _A.FLOATS:
        return tuple(attribute.floats)
    if kind == _A.STRINGS:
        return tuple(_text(entry) for entry in attribute.strings)
    if kind == _A.TENSOR and has_data(attribute.t):
        return array_of(attribute.t)
    return "sha256:" + hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


def has_data(tensor: onnx.TensorProto) -> bool:
    """Whether the values of `tensor` are in the file itself (external data is never read)."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    if 0 in tensor.dims or tensor.HasField("raw_data"):
        return True
    return bool(
        tensor.float_data
        or tensor.int64_data
        or tensor.int32_data
        or tensor.double_data
        or tensor.uint64_data
        or tensor.string_data
    )


def array_of(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """The values of `tensor`, read-only. Raises ValueError when their number does not match its dims."""
    array = np.asarray(numpy_helper.to_array(tensor))
    array.flags.writeable = False
    return array
