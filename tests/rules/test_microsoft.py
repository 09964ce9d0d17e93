"""ONNX Runtime's transformer operators: every option, carried out on 2 and 3 devices, gives what the whole gives.

They are not in the reference evaluator, so each comes with its definition in numpy.
"""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, i, index, positive, u
from rule_execution import laws

from shardplan.layout.placement import RP, P, S
from shardplan.rules import FAMILIES

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


def group_query(query, key, value, past_key, past_value, lengths, total, *, num_heads, kv_num_heads):
    if key is None:
        width = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = np.split(query, [num_heads * width, (num_heads + kv_num_heads) * width], axis=-1)
    q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
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


def experts(x, router, w1, b1, w2, b2, w3=None, *, k, first=0, swiglu_fusion=0):
    flat = x.reshape(-1, x.shape[-1])
    weights = softmax(router)
    chosen = np.argsort(-weights, axis=-1)[:, :k]
    made = np.zeros_like(flat)
    for expert in range(len(w1)):
        h = flat @ w1[expert].T + b1[expert]
        if swiglu_fusion:
            gate, value = (h[:, ::2], h[:, 1::2]) if swiglu_fusion == 1 else np.split(h, 2, axis=-1)
            h = gate * value
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
    attributes = {"k": 2, **({"swiglu_fusion": fusion} if fusion else {})}
    return Case(MS + "MoE", (f(*shape), f(*router), *weights), attributes, oracle=experts)


def split_gelu(x, bias):
    left, right = np.split(x + bias, 2, axis=-1)
    return [left * np.tanh(right)]


def fused_matmul(a, b, **flags):
    a, b = (np.moveaxis(x, 0, -2) if flags.get(f"transBatch{side}") else x for side, x in (("A", a), ("B", b)))
    a, b = (x.swapaxes(-1, -2) if flags.get(f"trans{side}") else x for side, x in (("A", a), ("B", b)))
    return [a @ b]


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
    "BiasAdd": (Case(MS + "BiasAdd", (f(2, 4, 6), f(6), f(2, 4, 6)), oracle=lambda x, b, s: [x + b + s]), "x0 x1 x2"),
}  # fmt: skip
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)


def test_packed_operands_are_cut_inside_q_k_and_v():
    case, _ = CASES["GroupQueryAttention packed"]
    option = case.options()["h"]
    assert option.operands[0] == S(2, (48, 24, 24))
    assert option.operands[3:5] == (S(1), S(1))
    assert option.size == 6
    weight = CASES["Attention"][0].options()["h"].operands[1:3]
    assert weight == (S(1, (24,) * 3), S(0, (24,) * 3))


def test_a_quantised_unit_splits_together():
    option = CASES["MatMulNBits packed zero points"][0].options()["q"]
    assert option.operands == (S(1), S(1), S(1), S(1))
    assert (option.size, option.results) == (2, (P(),)), "zero points of two blocks share a byte"
    assert CASES["MatMulNBits"][0].options()["q"].operands[5] == P()


def test_experts_are_parallel():
    option = CASES["MoE"][0].options()["e"]
    assert option.operands == (RP, RP, S(0), S(0), S(0), S(0))
    assert (option.results, option.ordered) == ((P(),), True)
    assert CASES["MoE"][0].rule().flops == 2 * 2 * 4 * (2 * 6 * 8)


def skip_norm(x, skip, gamma, beta, bias):
    total = x + skip + bias
    mean, variance = total.mean(axis=-1, keepdims=True), total.var(axis=-1, keepdims=True)
    return [(total - mean) / np.sqrt(variance) * gamma + beta, mean, variance, total]


def test_the_residual_sum_is_saved_instead_of_its_terms():
    case = Case(
        MS + "SkipLayerNormalization", (f(2, 4, 6), f(2, 4, 6), positive(6), f(6), f(6)), outputs=4, oracle=skip_norm
    )
    options = case.options()
    assert options["k"].results == (S(2), options["k"].results[1], options["k"].results[1], S(2))
    assert [c.payload_bytes for c in options["k"].inner] == [2 * 8 * 4, 2 * 8 * 4]
    assert case.rule().saved_operands == (2,)
    assert case.rule().saved_results[0] == 3


def test_every_named_operator_is_in_the_family():
    named = "Attention MultiHeadAttention GroupQueryAttention SkipLayerNormalization SkipSimplifiedLayerNormalization "
    named += "RotaryEmbedding FastGelu BiasGelu MatMulNBits MoE QMoE"
    assert {MS + name for name in named.split()} <= set(FAMILIES["microsoft"])
