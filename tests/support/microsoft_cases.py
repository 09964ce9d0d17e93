"""ONNX Runtime's transformer operators with their definitions in numpy: they are not in the reference evaluator."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, i, index, u

MS = "com.microsoft."


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def split_heads(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) if x.ndim == 3 else x


def attend(q, k, v, bias=0.0):
    """Over [B, heads, S, D], keys repeated for groups of queries; result [B, S, heads * D]."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    made = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias) @ v
    return made.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


def causal(queries, keys):
    return np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, 0, -1e9)


def group_query(
    query, key, value, past_key, past_value, lengths, total, cos=None, sin=None, *, num_heads, kv_num_heads, **turned
):
    if key is None:
        width = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = np.split(query, [num_heads * width, (num_heads + kv_num_heads) * width], axis=-1)
    q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    if turned.get("do_rotary"):
        places = np.arange(past_key.shape[2], past_key.shape[2] + q.shape[2])[None].repeat(len(q), axis=0)
        q, k = (rotary(x, places, cos, sin)[0] for x in (q, k))
    k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    assert len(lengths) == len(q)
    return [attend(q, k, v, causal(q.shape[2], k.shape[2])), k, v]


def multi_head(query, key, value, bias=None, mask=None, extra=0.0, *, num_heads):
    if bias is not None:
        query, key, value = (x + part for x, part in zip((query, key, value), np.split(bias, 3), strict=True))
    scores = 0.0 if mask is None else np.where(mask[:, None, None, :] > 0, 0, -1e9)
    q, k, v = (split_heads(x, num_heads) for x in (query, key, value))
    return [attend(q, k, v, scores + extra)]


def packed_attention(x, w, bias, *, num_heads):
    q, k, v = (split_heads(part, num_heads) for part in np.split(x @ w + bias, 3, axis=-1))
    return [attend(q, k, v)]


def rotary(x, positions, cos, sin, num_heads=0):
    heads = split_heads(x, num_heads)
    positions = positions if positions.ndim == 2 else positions + np.arange(heads.shape[2])[None]
    c, s = (np.broadcast_to(table[positions][:, None], (*heads.shape[:3], table.shape[1])) for table in (cos, sin))
    left, right = np.split(heads, 2, axis=-1)
    made = np.concatenate([left * c - right * s, left * s + right * c], axis=-1)
    return [made if x.ndim == 4 else made.swapaxes(1, 2).reshape(x.shape)]


def n_bits(a, b, scales, zeros=None, groups=None, bias=None, **attributes):
    """4-bit values, low nibble first."""
    n, blocks = b.shape[:2]
    values = np.stack([b & 15, b >> 4], axis=-1).reshape(n, blocks, -1).astype(np.float32)
    points = np.full((n, blocks), 8.0)
    if zeros is not None:
        points = zeros.reshape(n, -1)
        if zeros.dtype == np.uint8:
            points = np.stack([points & 15, points >> 4], axis=-1).reshape(n, -1)[:, :blocks]
    weight = (values - points[..., None]) * scales.reshape(n, blocks, 1)
    return [(a @ weight.reshape(n, -1).T + (0 if bias is None else bias)).astype(np.float32)]


def experts(x, router, w1, b1, w2, b2, w3=None, *, k, first=0, swiglu_fusion=0, activation_type="relu"):
    flat = x.reshape(-1, x.shape[-1])
    weights = softmax(router)
    chosen = np.argsort(-weights, axis=-1)[:, :k]
    made = np.zeros_like(flat)
    for expert in range(len(w1)):
        h = flat @ w1[expert].T + b1[expert]
        if swiglu_fusion:
            gate, value = (h[:, ::2], h[:, 1::2]) if swiglu_fusion == 1 else np.split(h, 2, axis=-1)
            h = gate / (1 + np.exp(-gate)) * value
        elif w3 is not None:
            h = np.maximum(h, 0) * (flat @ w3[expert].T)
        else:
            h = np.maximum(h, 0)
        share = (weights * (np.arange(weights.shape[1]) == first + expert)).sum(axis=-1)
        share = share * (chosen == first + expert).any(axis=-1)
        made += share[:, None] * (h @ w2[expert].T + b2[expert])
    return [made.reshape(x.shape).astype(np.float32)]


def moe(shape, router, inner=6, fusion=0, third=False):
    rows = inner * 2 if fusion else inner
    weights = [f(6, rows, 8), f(6, rows), f(6, 8, inner), f(6, 8), *([f(6, inner, 8)] if third else [])]
    attributes = {"k": 2, **({"swiglu_fusion": fusion, "activation_type": "swiglu"} if fusion else {})}
    return Case(MS + "MoE", (f(*shape), f(*router), *weights), attributes, oracle=experts)


def unpacked(weight, scales, zeros, bits):
    """Numbers of `bits` bits, the low ones first, with scales and zero points of columns or of blocks."""
    step = 1 << bits
    values = np.stack([weight // step**place % step for place in range(8 // bits)], axis=-1)
    values = values.reshape(*weight.shape[:-1], -1).astype(np.float64)
    scales = scales if scales.ndim == 3 else scales[..., None]
    points = np.full(scales.shape, step / 2)
    if zeros is not None:
        zeros = zeros if zeros.ndim == 3 else zeros[..., None]
        points = np.stack([zeros // step**place % step for place in range(8 // bits)], axis=-1)
        points = points.reshape(*zeros.shape[:-1], -1)[..., : scales.shape[-1]]
    each = values.shape[-1] // scales.shape[-1]
    return (values - points.repeat(each, axis=-1)) * scales.repeat(each, axis=-1)


def quantized_experts(
    x, router, w1, s1, b1, w2, s2, b2, w3=None, s3=None, b3=None, z1=None, z2=None, z3=None, weights=None,
    *, k, expert_weight_bits, activation_type, swiglu_fusion=0, first=0,
):  # fmt: skip
    """Token by token, expert by expert."""
    up, down = unpacked(w1, s1, z1, expert_weight_bits), unpacked(w2, s2, z2, expert_weight_bits)
    made = np.zeros((len(router), x.shape[-1]))
    for token, (row, logits) in enumerate(zip(x.reshape(-1, x.shape[-1]), router, strict=True)):
        best = sorted(range(len(logits)), key=lambda expert: -logits[expert])[:k]
        share = softmax(logits[best].astype(np.float64)) if weights is None else weights[token, best]
        for number, part in zip(best, share, strict=True):
            expert = number - first
            if not 0 <= expert < len(w1):
                continue
            h = up[expert] @ row + (0 if b1 is None else b1[expert])
            if activation_type == "swiglu":
                gate, value = (h[::2], h[1::2]) if swiglu_fusion == 1 else np.split(h, 2)
                h = gate / (1 + np.exp(-gate)) * value
            else:
                h = h / (1 + np.exp(-h))
            made[token] += part * (down[expert] @ h + (0 if b2 is None else b2[expert]))
    return [made.reshape(x.shape).astype(np.float32)]


def qmoe(fusion=0, blocks=0, zeros=False, weighted=False):
    """6 experts, 8 tokens, 16 channels, 24 inner units of 4 bits; `blocks`: scales of so many blocks of the sum."""
    rows = 48 if fusion else 24
    s1, s2 = ((6, rows, 2), (6, 16, blocks)) if blocks else ((6, rows), (6, 16))
    points = (u(6, rows, 1), u(6, 16, blocks // 2)) if zeros else (None, None)
    operands = (f(8, 16), f(8, 6), u(6, rows, 8), f(*s1), f(6, rows), u(6, 16, 12), f(*s2), f(6, 16), None, None, None)
    operands += (*points, None) if zeros or weighted else ()
    operands += (f(8, 6),) if weighted else ()
    attributes = {"k": 2, "expert_weight_bits": 4, "activation_type": "swiglu" if fusion else "silu"}
    attributes |= {"swiglu_fusion": fusion} if fusion else {}
    return Case(MS + "QMoE", operands, attributes, oracle=quantized_experts)


def split_gelu(x, bias):
    left, right = np.split(x + bias, 2, axis=-1)
    return [left * np.tanh(right)]


def fused_matmul(a, b, **flags):
    a, b = (np.moveaxis(x, 0, -2) if flags.get(f"transBatch{side}") else x for side, x in (("A", a), ("B", b)))
    a, b = (x.swapaxes(-1, -2) if flags.get(f"trans{side}") else x for side, x in (("A", a), ("B", b)))
    return [a @ b]


def simplified_norm(x, scale):
    inverse = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    return [x * inverse * scale, inverse]


def fused_conv(x, w, b, *, activation, **attributes):
    assert activation == "Relu"
    (made,) = Case("Conv", (x, w, b), attributes | {"pads": list(attributes["pads"])}).run()
    return [np.maximum(made, 0)]


def group_norm(x, gamma, beta, skip=None, bias=None, *, groups, activation=0, channels_last=1):
    total = x + (0 if skip is None else skip if skip.ndim == 4 else skip[:, None, None]) + (0 if bias is None else bias)
    data = total if channels_last else np.moveaxis(total, 1, -1)
    grouped = data.reshape(data.shape[0], -1, groups, data.shape[-1] // groups)
    mean, variance = grouped.mean(axis=(1, 3), keepdims=True), grouped.var(axis=(1, 3), keepdims=True)
    made = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(data.shape) * gamma + beta
    made = made / (1 + np.exp(-made)) if activation else made
    return [made if channels_last else np.moveaxis(made, -1, 1), total]


def quantized_rows(data, ids, scales, *, block_size, **_):
    values = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1).astype(np.float32) - 8
    return [(values * np.repeat(scales, block_size, axis=-1))[ids]]


CACHE = (f(2, 6, 4, 4), f(2, 6, 4, 4))
LENGTHS = (np.array([5, 5], np.int32), np.array(6, np.int32))
HEADS = {"num_heads": 12, "kv_num_heads": 6}
CASES = {
    "GroupQueryAttention": (
        Case(
            MS + "GroupQueryAttention", (f(2, 2, 48), f(2, 2, 24), f(2, 2, 24), *CACHE, *LENGTHS), HEADS,
            outputs=3, oracle=group_query,
        ),
        "b h g",
    ),
    "GroupQueryAttention that turns": (
        Case(
            MS + "GroupQueryAttention",
            (f(2, 2, 48), f(2, 2, 24), f(2, 2, 24), *CACHE, *LENGTHS, f(8, 2), f(8, 2)),
            {**HEADS, "do_rotary": 1, "local_window_size": -1, "softcap": 0.0},
            outputs=3,
            oracle=group_query,
        ),
        "b h g",
    ),
    "GroupQueryAttention packed": (
        Case(
            MS + "GroupQueryAttention", (f(2, 2, 96), None, None, *CACHE, *LENGTHS), HEADS,
            outputs=3, oracle=group_query,
        ),
        "b h",
    ),
    "MultiHeadAttention": (
        Case(
            MS + "MultiHeadAttention",
            (f(2, 4, 24), f(2, 6, 24), f(2, 6, 24), f(72), u(2, 6), f(1, 6, 4, 6)),
            {"num_heads": 6},
            oracle=multi_head,
        ),
        "b s h",
    ),
    "MultiHeadAttention key heads": (
        Case(
            MS + "MultiHeadAttention", (f(2, 4, 24), f(2, 6, 8, 4), f(2, 6, 8, 4)), {"num_heads": 6}, oracle=multi_head
        ),
        "b s h",
    ),
    "Attention": (
        Case(MS + "Attention", (f(2, 4, 8), f(8, 72), f(72)), {"num_heads": 6}, oracle=packed_attention),
        "b h",
    ),
    "RotaryEmbedding": (
        Case(MS + "RotaryEmbedding", (f(2, 4, 24), index(8, 2, 4), f(8, 2), f(8, 2)), {"num_heads": 6}, oracle=rotary),
        "b s h",
    ),
    "RotaryEmbedding offset": (
        Case(MS + "RotaryEmbedding", (f(2, 6, 4, 4), i(1), f(8, 2), f(8, 2)), {}, oracle=rotary),
        "b h",
    ),
    "MatMulNBits": (
        Case(
            MS + "MatMulNBits", (f(2, 4, 64), u(6, 4, 8), f(6, 4), None, None, f(6)),
            {"N": 6, "K": 64, "block_size": 16, "bits": 4}, oracle=n_bits,
        ),
        "x0 x1 q n",
    ),
    "MatMulNBits packed zero points": (
        Case(
            MS + "MatMulNBits", (f(4, 64), u(6, 4, 8), f(6, 4), u(6, 2)),
            {"N": 6, "K": 64, "block_size": 16, "bits": 4}, oracle=n_bits,
        ),
        "x q n",
    ),
    "MatMulNBits flat scales": (
        Case(
            MS + "MatMulNBits", (f(4, 64), u(6, 4, 8), f(24), u(12)),
            {"N": 6, "K": 64, "block_size": 16, "bits": 4}, oracle=n_bits,
        ),
        "x q n",
    ),
    "MoE": (moe((4, 8), (4, 6)), "t e i"),
    "MoE gated": (moe((4, 8), (4, 6), third=True), "t e i"),
    "MoE interleaved": (moe((4, 8), (4, 6), fusion=1), "t e i"),
    "MoE concatenated": (moe((4, 8), (4, 6), fusion=2), "t e i"),
    "MoE batched": (moe((2, 4, 8), (8, 6)), "b s e i"),
    "QMoE": (qmoe(), "t e i"),
    "QMoE interleaved": (qmoe(fusion=1, blocks=6), "t e i"),
    "QMoE concatenated": (qmoe(fusion=2, blocks=12, zeros=True), "t e i"),
    "QMoE with weights of the router": (qmoe(weighted=True), "t e i"),
    "BiasSplitGelu": (Case(MS + "BiasSplitGelu", (f(2, 4, 12), f(12)), oracle=split_gelu), "x0 x1 u"),
    "FusedMatMul": (
        Case(MS + "FusedMatMul", (f(2, 4, 6), f(2, 12, 4)), {"transA": 1, "transB": 1}, oracle=fused_matmul),
        "b m k n",
    ),
    "FusedMatMul batch inside": (
        Case(MS + "FusedMatMul", (f(6, 2, 4), f(2, 4, 12)), {"transBatchA": 1}, oracle=fused_matmul),
        "b m k n",
    ),
    "GatherBlockQuantized": (
        Case(
            MS + "GatherBlockQuantized", (u(6, 32), index(6, 2, 4), f(6, 4)), {"block_size": 16, "bits": 4},
            oracle=quantized_rows,
        ),
        "v q i0 i1",
    ),
    "SimplifiedLayerNormalization": (
        Case(MS + "SimplifiedLayerNormalization", (f(2, 6, 8), f(8)), outputs=2, oracle=simplified_norm),
        "x0 x1 k",
    ),
    "FusedConv": (
        Case(
            MS + "FusedConv", (f(4, 6, 8), f(12, 6, 3), f(12)), {"pads": (1, 1), "activation": "Relu"},
            oracle=fused_conv,
        ),
        "n o y",
    ),
    "GroupNorm": (
        Case(
            MS + "GroupNorm", (f(2, 4, 6, 12), f(12), f(12)), {"groups": 4, "activation": 1},
            oracle=lambda *given, **settings: group_norm(*given, **settings)[:1],
        ),
        "n g c x y",
    ),
    "GroupNorm, channels first": (
        Case(
            MS + "GroupNorm", (f(2, 12, 4, 6), f(12), f(12)), {"groups": 4, "channels_last": 0},
            oracle=lambda *given, **settings: group_norm(*given, **settings)[:1],
        ),
        "n g c x y",
    ),
    "SkipGroupNorm": (
        Case(
            MS + "SkipGroupNorm", (f(2, 4, 6, 12), f(12), f(12), f(2, 12), f(12)), {"groups": 4}, outputs=2,
            oracle=group_norm,
        ),
        "n g c x y",
    ),
    "BiasAdd": (Case(MS + "BiasAdd", (f(2, 4, 6), f(6), f(2, 4, 6)), oracle=lambda x, b, s: [x + b + s]), "x0 x1 x2"),
}  # fmt: skip


def skip_norm(x, skip, gamma, beta, bias):
    total = x + skip + bias
    mean, variance = total.mean(axis=-1, keepdims=True), total.var(axis=-1, keepdims=True)
    return [(total - mean) / np.sqrt(variance) * gamma + beta, mean, variance, total]
