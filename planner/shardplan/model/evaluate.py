"""Constant folding: values of nodes whose inputs are all known, such as the shape arithmetic of exported graphs.

A table of numpy functions covers what exporters emit; anything else goes to ONNX's reference evaluator, which is slower
by two orders of magnitude and loaded only then. The table agrees with it (tests/model/test_evaluate.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
_Inputs = Sequence[Array | None]

LIMIT_ELEMENTS = 1 << 16
"""Values above this many elements are never computed."""

NEVER = frozenset(
    {
        *(
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
            "Multinomial",
            "Bernoulli",
            "Dropout",
        ),
        *("If", "Loop", "Scan", "SequenceMap", "Optional", "OptionalGetElement", "OptionalHasElement"),
    }
)
"""Operators that are not functions of their inputs' values, or whose values are no tensors."""
SIZED_BY_VALUES = frozenset(("NonZero", "Compress", "Unique", "StringSplit"))
"""Operators whose results have a shape that depends on the values of their inputs; small where these are."""


def value_of(
    node: onnx.NodeProto, attributes: Attributes, inputs: Sequence[Array | None], opset: int
) -> tuple[Array, ...] | None:
    """The outputs of one node, read-only, or None when they cannot be computed."""
    function = _TABLE.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    try:
        with np.errstate(all="ignore"):  # a logarithm of zero is the model's own business
            results = function(inputs, attributes, opset) if function else None
            if results is None:
                results = _by_reference(node, inputs, opset)
    except Exception:  # noqa: BLE001 - the evaluator has gaps and raises anything; the node then stays in the graph
        return None
    arrays = tuple(np.asarray(result) for result in results)
    for array in arrays:
        array.flags.writeable = False
    return arrays


def _by_reference(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - loads hundreds of modules; few graphs need it

    evaluator = ReferenceEvaluator(node, opsets={node.domain: opset})
    feeds = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
    return list(evaluator.run(None, feeds))


def _ints(array: Array | None) -> list[int]:
    return [int(entry) for entry in np.asarray(array).reshape(-1)]


def _second_or_attribute(inputs: _Inputs, attributes: Attributes, name: str) -> list[int] | None:
    """A list that newer opsets read from the second input and older ones from an attribute."""
    if len(inputs) > 1 and inputs[1] is not None:
        return _ints(inputs[1])
    return list(attributes[name]) if name in attributes else None


def _unary(function: Callable[[Array], Any]) -> Callable[..., list[Any] | None]:
    return lambda inputs, _attributes, _opset: [_same_type(function(inputs[0]), inputs[0])]


def _binary(function: Callable[[Array, Array], Any]) -> Callable[..., list[Any] | None]:
    def evaluate(inputs: _Inputs, attributes: Attributes, opset: int) -> list[Any] | None:
        if opset < 7 or "axis" in attributes:  # the broadcast of opset 6
            return None
        return [function(inputs[0], inputs[1])]  # type: ignore[arg-type]

    return evaluate


def _same_type(result: Any, like: Array) -> Array:
    return np.asarray(result).astype(like.dtype, copy=False)


def _div(left: Array, right: Array) -> Array:
    """ONNX integer division truncates towards zero."""
    if left.dtype.kind not in "iu":
        return np.asarray(np.divide(left, right)).astype(left.dtype, copy=False)
    quotient = np.abs(left) // np.abs(right)
    return _same_type(np.where((left < 0) != (right < 0), -quotient, quotient), left)


def _unsqueeze(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array] | None:
    axes = _second_or_attribute(inputs, attributes, "axes")
    data = np.asarray(inputs[0])
    return None if axes is None else [np.expand_dims(data, tuple(axes))]


def _squeeze(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array]:
    axes = _second_or_attribute(inputs, attributes, "axes")
    data = np.asarray(inputs[0])
    return [np.squeeze(data, None if axes is None else tuple(axes))]


def _slice(inputs: _Inputs, attributes: Attributes, opset: int) -> list[Array]:
    data = np.asarray(inputs[0])
    if opset < 10:
        starts, ends, axes, steps = list(attributes["starts"]), list(attributes["ends"]), attributes.get("axes"), None
    else:
        rest = [None if entry is None else _ints(entry) for entry in [*inputs[1:], None, None][:4]]
        starts, ends, axes, steps = rest[0] or [], rest[1] or [], rest[2], rest[3]
    index = [slice(None)] * data.ndim
    for place, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[place]
        index[axis] = _bounds(starts[place], ends[place], step, data.shape[axis])
    return [data[tuple(index)].copy()]


def _bounds(start: int, end: int, step: int, size: int) -> slice:
    """ONNX bounds as a Python slice: negative counts from the end, then clamped."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step)


def _reshape(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array] | None:
    target = _second_or_attribute(inputs, attributes, "shape")
    data = np.asarray(inputs[0])
    if target is None:
        return None
    if not attributes.get("allowzero", 0):
        target = [data.shape[place] if size == 0 else size for place, size in enumerate(target)]
    return [data.reshape(target)]


def _cast(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array] | None:
    target = helper.tensor_dtype_to_np_dtype(int(attributes["to"])) if "to" in attributes else None
    data = np.asarray(inputs[0])
    if target is None or target.kind not in "biuf" or data.dtype.kind not in "biuf":
        return None
    return [data.astype(target)]


def _constant_of_shape(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array]:
    value = attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return [np.full(_ints(inputs[0]), fill.reshape(-1)[0], fill.dtype)]


def _range(inputs: _Inputs, _attributes: Attributes, _opset: int) -> list[Array]:
    start, limit, delta = (np.asarray(entry).reshape(()) for entry in inputs)
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    return [_same_type(start + delta * np.arange(count).astype(start.dtype), start)]


def _expand(inputs: _Inputs, _attributes: Attributes, _opset: int) -> list[Array]:
    data = np.asarray(inputs[0])
    return [np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(_ints(inputs[1])))).copy()]


def _non_zero(inputs: _Inputs, _attributes: Attributes, _opset: int) -> list[Array] | None:
    data = np.asarray(inputs[0])
    return [np.stack(np.nonzero(data)).astype(np.int64)] if data.ndim else None


def _transpose(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Array]:
    return [np.transpose(np.asarray(inputs[0]), attributes.get("perm"))]


def _reduce(function: Callable[..., Any]) -> Callable[..., list[Any] | None]:
    def evaluate(inputs: _Inputs, attributes: Attributes, _opset: int) -> list[Any] | None:
        data = np.asarray(inputs[0])
        axes = _second_or_attribute(inputs, attributes, "axes")
        if not axes and attributes.get("noop_with_empty_axes", 0):
            return None
        keep = bool(attributes.get("keepdims", 1))
        return [_same_type(function(data, axis=tuple(axes) if axes else None, keepdims=keep), data)]

    return evaluate


_TABLE: dict[str, Callable[..., list[Any] | None]] = {
    "Identity": lambda inputs, _attributes, _opset: [inputs[0]],
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt),
    "Not": _unary(np.logical_not),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_div),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "Greater": _binary(np.greater),
    "LessOrEqual": _binary(np.less_equal),
    "GreaterOrEqual": _binary(np.greater_equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Where": lambda inputs, _attributes, _opset: [np.where(*inputs)],
    "Max": lambda inputs, _attributes, opset: [_fold(np.maximum, inputs)] if opset >= 8 else None,
    "Min": lambda inputs, _attributes, opset: [_fold(np.minimum, inputs)] if opset >= 8 else None,
    "Concat": lambda inputs, attributes, _opset: [np.concatenate(inputs, attributes["axis"])],
    "Gather": lambda inputs, attributes, _opset: [np.take(inputs[0], inputs[1], attributes.get("axis", 0))],
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Cast": _cast,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Expand": _expand,
    "NonZero": _non_zero,
    "Transpose": _transpose,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}


def _fold(function: Callable[[Array, Array], Array], inputs: _Inputs) -> Array:
    result = np.asarray(inputs[0])
    for entry in inputs[1:]:
        result = function(result, np.asarray(entry))
    return result
