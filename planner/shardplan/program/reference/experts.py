"""`com.microsoft.MoE` and `QMoE` in numpy, also with only some of the experts or a part of each.

After ONNX Runtime's ContribOperators.md. Weights of few bits are packed along their last dim, the low bits first, and
count from the middle of their range where no zero points are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import ShardplanError, error
from shardplan.model.attributes import integer, number
from shardplan.model.types import AttributeValue, Operator

Array = NDArray[Any]
_Attributes = Mapping[str, AttributeValue]
_PLACES = {"MoE": ((2, 3), (4, 5), (6, 7)), "QMoE": ((2, 4), (5, 7), (8, 10))}
_SCALES, _ZEROS, _ROUTER_WEIGHTS = (3, 6, 9), (11, 12, 13), 14


@dataclass(frozen=True)
class _Layer:
    """One product of all experts: weights [expert, out, in], biases [expert, out] or None."""

    weight: Array
    bias: Array | None

    def of(self, expert: int, data: Array) -> Array:
        made: Array = data @ self.weight[expert].T
        return made if self.bias is None else np.asarray(made + self.bias[expert])


def experts(
    operator: Operator, attributes: _Attributes, operands: Sequence[Array | None], first: int = 0
) -> list[Array]:
    """The share of the result that these experts make, of which the first has the number `first`."""
    if attributes.get("use_sparse_mixer", 0):
        summary = f"cannot run operator '{operator.name}' ({operator.kind}): its sparse mixer is not known"
        raise ShardplanError(error("cannot-execute", summary))
    data, router = operands[0], operands[1]
    assert data is not None
    assert router is not None
    up, down, gate = (_layer(operator, attributes, operands, number) for number in range(3))
    assert up is not None
    assert down is not None
    flat = data.reshape(-1, data.shape[-1])
    share = _shares(operator, attributes, router, _at(operands, _ROUTER_WEIGHTS))
    made = np.zeros((len(flat), down.weight.shape[1]), flat.dtype)
    for expert in range(len(up.weight)):
        inner = _activated(attributes, up.of(expert, flat), None if gate is None else gate.of(expert, flat))
        made += share[:, first + expert, None] * down.of(expert, inner)
    return [made.reshape(data.shape)]


def _at(operands: Sequence[Array | None], place: int) -> Array | None:
    return operands[place] if place < len(operands) else None


def _layer(operator: Operator, attributes: _Attributes, operands: Sequence[Array | None], number: int) -> _Layer | None:
    at, bias = _PLACES[operator.op_type][number]
    weight = _at(operands, at)
    if weight is None:
        return None
    if operator.op_type == "QMoE":
        scales, zeros = _at(operands, _SCALES[number]), _at(operands, _ZEROS[number])
        assert scales is not None
        weight = _unpacked(weight, scales, zeros, integer(attributes, "expert_weight_bits", 4))
    return _Layer(weight, _at(operands, bias))


def _unpacked(weight: Array, scales: Array, zeros: Array | None, bits: int) -> Array:
    """[expert, out, in] as floats; scales and zero points are those of columns, or of blocks of the last dim."""
    values = numbers(weight, bits)
    blocks = scales[..., None] if scales.ndim == 2 else scales
    middle = np.full(blocks.shape, float(1 << (bits - 1)))
    if zeros is not None:
        points = zeros[..., None] if zeros.ndim == 2 else zeros
        middle = (numbers(points, bits) if points.dtype == np.uint8 else points)[..., : blocks.shape[-1]]
    each = values.shape[-1] // blocks.shape[-1]
    return np.asarray((values - np.repeat(middle, each, axis=-1)) * np.repeat(blocks, each, axis=-1))


def numbers(packed: Array, bits: int) -> Array:
    """The numbers in bytes, low bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1).astype(np.float64)


def _shares(operator: Operator, attributes: _Attributes, router: Array, weights: Array | None) -> Array:
    """How much every expert counts for every token, 0 for those that are not among its best."""
    count = integer(attributes, "k", 1)
    best = np.argsort(-router, axis=-1, kind="stable")[:, :count]
    chosen = np.zeros(router.shape, np.bool_)
    np.put_along_axis(chosen, best, values=True, axis=-1)
    if weights is not None:
        return np.where(chosen, weights, 0.0)
    exponentials = np.exp(router - router.max(axis=-1, keepdims=True))
    among = chosen if operator.op_type == "QMoE" or attributes.get("normalize_routing_weights", 0) else True
    total = np.where(among, exponentials, 0.0).sum(axis=-1, keepdims=True)
    return np.where(chosen, exponentials / total, 0.0)


def _activated(attributes: _Attributes, data: Array, other: Array | None) -> Array:
    """What the second product reads: the first one's result after its activation, times the third one's if any."""
    kind, fused = attributes.get("activation_type", "relu"), integer(attributes, "swiglu_fusion", 0)
    if kind == "swiglu":
        if fused:
            data, other = (data[:, ::2], data[:, 1::2]) if fused == 1 else np.split(data, 2, axis=-1)
        assert other is not None
        return _swiglu(attributes, data, other)
    made = _ACTIVATIONS[str(kind)](data)
    return made if other is None else np.asarray(made * other)


def _swiglu(attributes: _Attributes, gate: Array, linear: Array) -> Array:
    alpha, beta = number(attributes, "activation_alpha", 1.0), number(attributes, "activation_beta", 0.0)
    if "swiglu_limit" in attributes:
        limit = number(attributes, "swiglu_limit", 0.0)
        gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
    return np.asarray(gate / (1 + np.exp(-alpha * gate)) * (linear + beta))


def _gelu(data: Array) -> Array:
    return np.asarray(0.5 * data * (1 + np.tanh(np.sqrt(2 / np.pi) * (data + 0.044715 * data**3))))


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda data: np.maximum(data, 0),
    "gelu": _gelu,
    "silu": lambda data: np.asarray(data / (1 + np.exp(-data))),
    "identity": lambda data: data,
}
