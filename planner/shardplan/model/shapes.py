"""Shape functions for operators that ONNX cannot infer: two of the standard domain, and ONNX Runtime's transformer
operators.

Each takes the node's attributes and the shapes of its inputs (None where absent or unknown) and returns the shapes of
its outputs, None where unknown. Source: the operators' documented contracts (ONNX Runtime's ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = tuple[int | None, ...]
Shapes = Sequence[Shape | None]
_Result = list[Shape | None]
ShapeFunction = Callable[[Mapping[str, Any], Shapes], _Result]


def shapes_of(kind: str, attributes: Mapping[str, Any], inputs: Shapes) -> _Result | None:
    """Output shapes of an operator of `kind` (`com.microsoft.BiasGelu`), or None when there is no function for it."""
    function = _TABLE.get(kind)
    if function is None:
        return None
    try:
        return function(attributes, inputs)
    except (IndexError, KeyError, TypeError, ZeroDivisionError):
        return None


def _at(inputs: Shapes, place: int) -> Shape | None:
    return inputs[place] if place < len(inputs) else None


def _same(count: int = 1) -> ShapeFunction:
    """All of the first `count` outputs look like the first input."""
    return lambda _attributes, inputs: [_at(inputs, 0)] * count


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise TypeError
    return shape


def _times(size: int | None, count: int) -> int | None:
    return None if size is None else size * count


def _over(size: int | None, count: int) -> int | None:
    return None if size is None else size // count


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _simplified_norm(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    data = _known(inputs[0])
    axis = attributes.get("axis", -1) % len(data)
    return [data, (*data[:axis], *(1,) * (len(data) - axis))]


def _skip_norm(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    data = _known(inputs[0])
    statistics = (*data[:-1], 1)
    return [data, statistics, statistics, data]


def _embed_norm(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    ids, table = _known(inputs[0]), _known(inputs[2])
    hidden = (*ids, table[1])
    return [hidden, (ids[0],), hidden]


def _packed_attention(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    """`Attention`: input [B,S,H], packed weights [H, q+k+v], optional past [2,B,heads,P,D] as input 4."""
    data, weights = _known(inputs[0]), _known(inputs[1])
    sizes = attributes.get("qkv_hidden_sizes")
    value_size = sizes[2] if sizes else _over(weights[1], 3)
    past = _at(inputs, 4)
    length = data[1] if past is None else _plus(past[3], data[1])
    heads = attributes["num_heads"]
    return [(data[0], data[1], value_size), (2, data[0], heads, length, _over(value_size, heads))]


def _multi_head_attention(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    """Query [B,S,H] or packed [B,S,heads,3,D]; key, value [B,L,H] or [B,heads,L,D]; past key, value inputs 6, 7."""
    query, key, value = _known(inputs[0]), _at(inputs, 1), _at(inputs, 2)
    heads = attributes["num_heads"]
    if len(query) == 5:
        return [(query[0], query[1], _times(query[4], heads)), None, None]
    if key is None or value is None:  # key and value packed, or absent
        return [query, None, None]
    past = _at(inputs, 6)
    value_size = value[2] if len(value) == 3 else _times(value[3], heads)
    length = key[1] if len(key) == 3 else key[2]
    total = length if past is None else _plus(past[2], length)
    present = (query[0], heads, total)
    head_size = _over(query[2], heads)
    return [(query[0], query[1], value_size), (*present, head_size), (*present, _over(value_size, heads))]


def _group_query_attention(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    """Query [B,S,H] (packed with key and value when these are absent), past key, value [B,kv,P,D] as inputs 3, 4.

    A past buffer is shared with the present one: both have the longest length.
    """
    query, key, past = _known(inputs[0]), _at(inputs, 1), _at(inputs, 3)
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    head_size = _over(query[2], heads) if key is not None else _over(query[2], heads + 2 * kv_heads)
    present = (query[0], kv_heads, query[1] if past is None or past[2] == 0 else past[2], head_size)
    return [(query[0], query[1], _times(head_size, heads)), present, present]


def _rotary(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    return [_at(inputs, 0)]


def _matmul_n_bits(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    return [(*_known(inputs[0])[:-1], attributes["N"])]


def _gather_block_quantized(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    data, indices = _known(inputs[0]), _known(inputs[1])
    axis = attributes.get("gather_axis", 0) % len(data)
    packed = attributes.get("bits", 4) * int(attributes.get("packed", 0)) or 8
    data = (*data[:-1], _times(data[-1], 8 // packed))
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _fused_matmul(attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    left, right = _known(inputs[0]), _known(inputs[1])
    left = _batch_moved(left, attributes.get("transBatchA", 0))
    right = _batch_moved(right, attributes.get("transBatchB", 0))
    rows = left[-1] if attributes.get("transA", 0) else left[-2]
    columns = right[-2] if attributes.get("transB", 0) else right[-1]
    return [(*_broadcast(left[:-2], right[:-2]), rows, columns)]


def _batch_moved(shape: Shape, moved: int) -> Shape:
    """`transBatch`: the first dim stands before the last."""
    return (*shape[1:-1], shape[0], shape[-1]) if moved else shape


def _broadcast(left: Shape, right: Shape) -> Shape:
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    return tuple(b if a == 1 else a for a, b in pairs)


def _wider(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    return [_broadcast(_known(inputs[0]), _known(inputs[1]))]


def _split_gelu(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    data = _known(inputs[0])
    return [(*data[:-1], _over(data[-1], 2))]


def _quantised_product(_attributes: Mapping[str, Any], inputs: Shapes) -> _Result:
    left, right = _known(inputs[0]), _known(inputs[1])
    return [(*_broadcast(left[:-2], right[:-2]), left[-2], right[-1])]


_MS = "com.microsoft."
_TABLE: dict[str, ShapeFunction] = {
    "GroupNormalization": _same(),
    "MeanVarianceNormalization": _same(),
    "SimplifiedLayerNormalization": _simplified_norm,
    **{
        _MS + name: _same()
        for name in ("BiasGelu", "FastGelu", "QuickGelu", "Gelu", "GroupNorm", "MoE", "QMoE", "DequantizeLinear")
    },
    **{_MS + name: _same() for name in ("QuantizeLinear", "LayerNormalization", "RMSNormalization", "FusedElu")},
    _MS + "SkipGroupNorm": _same(2),
    _MS + "BiasAdd": _same(),
    _MS + "SkipLayerNormalization": _skip_norm,
    _MS + "SkipSimplifiedLayerNormalization": _skip_norm,
    _MS + "SimplifiedLayerNormalization": _simplified_norm,
    _MS + "EmbedLayerNormalization": _embed_norm,
    _MS + "Attention": _packed_attention,
    _MS + "QAttention": _packed_attention,
    _MS + "MultiHeadAttention": _multi_head_attention,
    _MS + "DecoderMaskedMultiHeadAttention": _multi_head_attention,
    _MS + "GroupQueryAttention": _group_query_attention,
    _MS + "RotaryEmbedding": _rotary,
    _MS + "MatMulNBits": _matmul_n_bits,
    _MS + "MatMulBnb4": _matmul_n_bits,
    _MS + "GatherBlockQuantized": _gather_block_quantized,
    _MS + "FusedMatMul": _fused_matmul,
    _MS + "TransposeMatMul": _fused_matmul,
    _MS + "DynamicQuantizeMatMul": _quantised_product,
    _MS + "MatMulIntegerToFloat": _quantised_product,
    _MS + "BiasSplitGelu": _split_gelu,
    _MS + "QLinearAdd": _wider,
    _MS + "QLinearMul": _wider,
}
