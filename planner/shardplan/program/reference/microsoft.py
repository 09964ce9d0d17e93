"""Operators of ONNX Runtime in numpy, if it is not installed; after its ContribOperators.md.

In double precision. What is not written here (rarer operands and attributes) takes ONNX Runtime itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.model.attributes import integer, number
from shardplan.model.types import AttributeValue, Operator
from shardplan.program.reference.definitions import Definition
from shardplan.program.reference.experts import experts, numbers

Array = NDArray[Any]
_Attributes = Mapping[str, AttributeValue]
_Operands = Sequence[Array | None]
_NEUTRAL: _Attributes = {"local_window_size": -1, "softcap": 0.0, "smooth_softmax": 0}
"""Settings of attention that change nothing."""
_ERF = np.vectorize(math.erf, otypes=[np.float64])


class UnwrittenError(Exception):
    """The operator has operands or attributes that are not written here."""


def _given(operands: _Operands, count: int) -> list[Array | None]:
    """The first `count` operands, None for absent ones. `UnwrittenError` where there are others."""
    if any(operand is not None for operand in operands[count:]):
        raise UnwrittenError
    return [*operands, *[None] * count][:count]


def _needed(operand: Array | None) -> Array:
    if operand is None:
        raise UnwrittenError
    return operand


def _only(attributes: _Attributes, *names: str) -> None:
    if not set(attributes) <= set(names):
        raise UnwrittenError


def gelu(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`Gelu`, `BiasGelu` by the error function, `FastGelu` by the hyperbolic tangent, `QuickGelu` by the sigmoid."""
    data, bias = _given(operands, 2)
    data = _needed(data) if bias is None else _needed(data) + bias
    if operator.op_type == "QuickGelu":
        return [data / (1 + np.exp(-number(attributes, "alpha", 1.702) * data))]
    if operator.op_type == "FastGelu":
        return [0.5 * data * (1 + np.tanh(data * (0.7978845608 + 0.035677408137 * data * data)))]
    return [0.5 * data * (1 + _ERF(data / math.sqrt(2)))]


def skip_norm(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`SkipLayerNormalization`, `SkipSimplifiedLayerNormalization`."""
    is_rms = "Simplified" in operator.op_type
    data, skip, scale, *rest = _given(operands, 4 if is_rms else 5)
    shift, bias = (None, rest[0]) if is_rms else (rest[0], rest[1])
    total = _needed(data) + _needed(skip)
    total = total if bias is None else total + bias
    mean = np.zeros((*total.shape[:-1], 1)) if is_rms else total.mean(axis=-1, keepdims=True)
    square = np.square(total - mean).mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(square + number(attributes, "epsilon", 1e-12))
    made = (total - mean) * inverse * _needed(scale)
    return [made if shift is None else made + shift, mean, inverse, total][: len(operator.outputs)]


def rotary(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`RotaryEmbedding` of data [B, S, heads * D] or [B, heads, S, D]."""
    del operator
    data, positions, cos, sin = (_needed(operand) for operand in _given(operands, 4))
    if attributes.get("rotary_embedding_dim", 0) or attributes.get("scale", 1.0) != 1.0:
        raise UnwrittenError
    heads = _heads(data, integer(attributes, "num_heads", 0) or data.shape[-1] // (2 * cos.shape[-1]))
    places = positions if positions.ndim == 2 else positions + np.arange(heads.shape[2])[None]
    both = (table[places][:, None] for table in (cos, sin))
    made = _turned(heads, *both, interleaved=bool(attributes.get("interleaved", 0)))
    return [made if data.ndim == 4 else made.swapaxes(1, 2).reshape(data.shape)]


def _turned(heads: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    if interleaved:
        left, right = heads[..., ::2], heads[..., 1::2]
        pair = np.stack([left * cos - right * sin, left * sin + right * cos], axis=-1)
        return np.asarray(pair.reshape(heads.shape))
    left, right = np.split(heads, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def _heads(data: Array, count: int) -> Array:
    """[B, S, heads * D] as [B, heads, S, D]."""
    return data.reshape(*data.shape[:2], count, -1).swapaxes(1, 2) if data.ndim == 3 else data


def _attended(attributes: _Attributes, query: Array, key: Array, value: Array, bias: Array | float) -> Array:
    """Softmax of scores, over [B, heads, S, D], as [B, S, heads * D]; keys repeat for groups of queries."""
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    scale = number(attributes, "scale", 0.0) or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.swapaxes(-1, -2) * scale + bias
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    made = weights / weights.sum(axis=-1, keepdims=True) @ value
    return np.asarray(made.swapaxes(1, 2).reshape(query.shape[0], query.shape[2], -1))


def _causal(queries: int, keys: int) -> Array:
    late = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
    return np.where(late, -np.inf, 0.0)


def multi_head(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`MultiHeadAttention` of separate queries, keys and values, with biases, padding and caches that grow."""
    query, key, value, bias, padding, extra, past_key, past_value = _given(operands, 8)
    if query is None or key is None or value is None or query.ndim != 3 or len(operator.outputs) > 3:
        raise UnwrittenError
    if bias is not None:
        sizes = np.cumsum([x.shape[-1] for x in (query, key)])
        parts = np.split(bias, sizes)
        query, key, value = (x + part for x, part in zip((query, key, value), parts, strict=True))
    count = integer(attributes, "num_heads", 1)
    query, key, value = (_heads(x, count) for x in (query, key, value))
    if past_key is not None:
        key, value = (np.concatenate(pair, axis=2) for pair in ((past_key, key), (_needed(past_value), value)))
    scores: Array | float = 0.0 if extra is None else extra
    if padding is not None:
        if padding.ndim != 2:
            raise UnwrittenError
        filler = number(attributes, "mask_filter_value", -10000.0)
        scores = scores + np.where(padding[:, None, None, :] > 0, 0.0, filler)
    if attributes.get("unidirectional", 0):
        scores = scores + _causal(query.shape[2], key.shape[2])
    return [_attended(attributes, query, key, value, scores), key, value][: len(operator.outputs)]


def packed_attention(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`Attention`: one product for queries, keys and values, then as `multi_head`, without masks and caches."""
    data, weight, bias = _given(operands, 3)
    if len(operator.outputs) > 1:
        raise UnwrittenError
    _only(attributes, "num_heads", "unidirectional", "scale", "qkv_hidden_sizes", "mask_filter_value")
    made = _needed(data) @ _needed(weight)
    made = made if bias is None else made + bias
    given = attributes.get("qkv_hidden_sizes")
    sizes = [int(size) for size in given] if isinstance(given, tuple) else [made.shape[-1] // 3] * 3
    count = integer(attributes, "num_heads", 1)
    query, key, value = (_heads(part, count) for part in np.split(made, np.cumsum(sizes)[:-1], axis=-1))
    causal = _causal(query.shape[2], key.shape[2]) if attributes.get("unidirectional", 0) else 0.0
    return [_attended(attributes, query, key, value, causal)]


def group_query(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`GroupQueryAttention` whose sequences are all of the same length, the caches growing by concatenation; queries
    and keys are turned by their places (`do_rotary`) before that."""
    query, key, value, past_key, past_value, lengths, total, cos, sin = _given(operands, 9)
    told = {name: value for name, value in attributes.items() if _NEUTRAL.get(name) != value}
    _only(told, "num_heads", "kv_num_heads", "scale", "do_rotary", "rotary_interleaved")
    count, kv_count = (integer(attributes, name, 1) for name in ("num_heads", "kv_num_heads"))
    query = _needed(query)
    if key is None or value is None:
        width = query.shape[-1] // (count + 2 * kv_count)
        query, key, value = np.split(query, [count * width, (count + kv_count) * width], axis=-1)
    query, key, value = _heads(query, count), _heads(key, kv_count), _heads(value, kv_count)
    if attributes.get("do_rotary", 0):
        before = 0 if past_key is None else past_key.shape[2]
        both = [_needed(table)[before : before + query.shape[2]] for table in (cos, sin)]
        if 2 * both[0].shape[-1] != query.shape[-1]:
            raise UnwrittenError  # a part of each head is turned
        interleaved = bool(attributes.get("rotary_interleaved", 0))
        query, key = (_turned(heads, *both, interleaved=interleaved) for heads in (query, key))
    if past_key is not None:
        key, value = (np.concatenate(pair, axis=2) for pair in ((past_key, key), (_needed(past_value), value)))
    if int(_needed(total)) != key.shape[2] or (_needed(lengths) + 1 != key.shape[2]).any():
        raise UnwrittenError  # shared buffers, or sequences of different lengths
    made = _attended(attributes, query, key, value, _causal(query.shape[2], key.shape[2]))
    return [made, key, value][: len(operator.outputs)]


def n_bits(operator: Operator, attributes: _Attributes, operands: _Operands) -> list[Array]:
    """`MatMulNBits`: weights [N, blocks, bytes] of a few bits, low ones first, with a scale for each block."""
    del operator
    data, packed, scales, zeros, groups, bias = _given(operands, 6)
    if groups is not None:
        raise UnwrittenError
    packed, bits = _needed(packed), integer(attributes, "bits", 4)
    rows, blocks = packed.shape[:2]
    values = numbers(packed, bits)
    points = np.full((rows, blocks), float(1 << (bits - 1)))
    if zeros is not None:
        points = zeros.reshape(rows, -1)
        points = numbers(points, bits)[:, :blocks] if points.dtype == np.uint8 else points
    weight = (values - points[..., None]) * _needed(scales).reshape(rows, blocks, 1)
    made = _needed(data) @ weight.reshape(rows, -1)[:, : integer(attributes, "K", 0)].T
    return [made if bias is None else made + bias]


DEFINITIONS: Mapping[str, Definition] = {
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu", "QuickGelu"), gelu),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), skip_norm),
    "RotaryEmbedding": rotary,
    "MultiHeadAttention": multi_head,
    "Attention": packed_attention,
    "GroupQueryAttention": group_query,
    "MatMulNBits": n_bits,
    **dict.fromkeys(("MoE", "QMoE"), experts),
}
"""By the name in the domain."""
