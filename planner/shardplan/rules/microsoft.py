"""The transformer operators of ONNX Runtime (domain `com.microsoft`), as its ContribOperators.md describes them."""

from __future__ import annotations

import math

from shardplan.layout.placement import RP, Placement, R, S
from shardplan.rules.attention import FLASH_BACKWARD
from shardplan.rules.equation import listed
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Shaped, Signature
from shardplan.rules.types import Gemm, InnerCollective, Option

MS = "com.microsoft."
HEADS = Gemm(m=("s",), n=("t",), k=("d",), batch=("b", "h", "g"))


def attention(signature: Signature) -> Row | None:
    """`Attention`: projects and attends; the packed weight holds q, k and v one after another, heads major in each."""
    heads, packed = signature.integer("num_heads"), signature.shape(1)[1]
    data, made = signature.shape(), signature.result().shape
    if packed != 3 * made[-1] or not heads:
        return None
    mask = _per_sample(signature, 3, data[0])
    batch = "!b" if mask is None else "b"
    bias = _aligned(signature, 5, ["b", "h", "!s", "!u"])
    operands = [f"{batch} !s !i", "!i (!three h !d)", "(!three h !d)", mask or "_*", f"_ {batch} h !p !d", bias, "_*"]
    results = [f"{batch} !s (h !d)", f"_ {batch} h !u !d"]
    total = signature.shape(4)[3] + data[1] if signature.has(4) else data[1]
    flops = 2.0 * math.prod(data) * packed + 4.0 * data[0] * data[1] * total * made[-1]
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        cost="attention",
        saves="0 1 3 r0",
        flops=flops,
        sizes={"three": 3, "h": heads},
        gemm=Gemm(m=("b", "s"), n=("h", "d"), k=("i",)),
        segmented=True,
    )


def multi_head_attention(signature: Signature) -> Row | None:
    """`MultiHeadAttention`: queries, keys and values apart, with three dims or (keys, values) four."""
    heads = signature.integer("num_heads")
    if not (signature.has(1) and signature.has(2)) or signature.rank() != 3 or not heads:
        return None
    samples = signature.shape()[0]
    mask = _per_sample(signature, 4, samples)
    s = "!s" if signature.integer("unidirectional") else "s"
    keys, values = ("b !t (h !d)" if signature.rank(i) == 3 else "b h !t !d" for i in (1, 2))
    bias = "(!three h !d)" if signature.shape()[-1] == signature.result().shape[-1] else "_"
    operands = [f"b {s} (h !d)", keys, values, bias, mask or "_*", _aligned(signature, 5, ["b", "h", s, "!u"])]
    operands += ["b h !p !d", "b h !p !d", "_*", "_*"]
    made = f"b {s} (h !d)"
    if mask is None or bias == "_":
        operands = [text.replace("b ", "!b ", 1) if mask is None else text for text in operands]
        made = made.replace("b ", "!b ", 1) if mask is None else made
    results = [made, "=b h !u !d", "=b h !u !d", f"b h {s} !u"]
    keys_in = signature.shape(1)[1] if signature.rank(1) == 3 else signature.shape(1)[2]
    total = keys_in + (signature.shape(6)[2] if signature.has(6) else 0)
    flops = 4.0 * signature.result().elements * total
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        cost="attention",
        saves="0 1 2 4 5 r0",
        flops=flops,
        backward_flops=FLASH_BACKWARD * flops,
        sizes={"three": 3, "h": heads},
        gemm=HEADS,
        segmented=True,
    )


def group_query_attention(signature: Signature) -> Row | None:
    """`GroupQueryAttention`: as many ways as there are key heads; with packed operands by segments of q, k and v."""
    heads, key_heads = signature.integer("num_heads"), signature.integer("kv_num_heads")
    if not key_heads or heads % key_heads:
        return None
    is_packed = not signature.has(1)
    scales = ["_ h _ _" if signature.has(i) and signature.operand(i).elements > 1 else "_*" for i in (12, 13)]
    operands = [
        "b !s !packed" if is_packed else "b !s (h g !d)",
        "b !t (h !d)",
        "b !t (h !d)",
        "b h !p !d",
        "b h !p !d",
    ]
    operands += ["b", "_*", "_*", "_*", "b !s" if _starts_with(signature, 9, signature.shape()[0]) else "_*"]
    operands += [_aligned(signature, 10, ["b", "(h g)", "!s", "!u"]), "(h g)", *scales, "_*", "_*"]
    made = "b !s (!h !g !d)" if is_packed else "b !s (h g !d)"
    results = [made, "=b h !v !d", "=b h !v !d", "b (h g) !s !u"]
    total = signature.result(1).shape[2] if signature.made(1) else signature.shape()[1]
    flops = 4.0 * signature.result().elements * total * (1.0 if signature.shape()[1] == 1 else 0.5)
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        cost="attention",
        saves="0 1 2 r0",
        flops=flops,
        backward_flops=FLASH_BACKWARD * flops,
        sizes={"h": key_heads, "g": heads // key_heads},
        gemm=HEADS,
        extra=(_packed_heads(signature, heads, key_heads),) if is_packed and key_heads > 1 else (),
    )


def _packed_heads(signature: Signature, heads: int, key_heads: int) -> Option:
    """Whole heads of q, k and v, each from its part of the packed operand."""
    width = signature.shape()[-1] // (heads + 2 * key_heads)
    segments = (heads * width, key_heads * width, key_heads * width)
    operands: list[Placement] = [R if operand is None else RP for operand in signature.operands]
    operands[0] = S(2, segments)
    for position in (3, 4, 12, 13):
        if signature.has(position) and signature.operand(position).rank == 4:
            operands[position] = S(1)
    if signature.has(11):
        operands[11] = S(0)
    if signature.has(10) and signature.shape(10)[1] > 1:
        operands[10] = S(1)
    results = (S(2), S(1), S(1), S(1))[: len(signature.results)]
    return Option("h", key_heads, tuple(operands), results)


def _per_sample(signature: Signature, position: int, samples: int) -> str | None:
    """Dims of a mask that has one row per sample (`_*` when absent); None when it is packed otherwise."""
    if not signature.has(position):
        return "_*"
    return (
        " ".join(["b", *"_" * (signature.rank(position) - 1)]) if _starts_with(signature, position, samples) else None
    )


def _starts_with(signature: Signature, position: int, size: int) -> bool:
    return signature.has(position) and signature.shape(position)[:1] == (size,)


def _aligned(signature: Signature, position: int, dims: list[str]) -> str:
    """The last of `dims`, as many as the operand has."""
    return " ".join(dims[len(dims) - signature.rank(position) :]) if signature.has(position) else "_*"


def rotary(signature: Signature) -> Row | None:
    """`RotaryEmbedding`: positions as an operand of their own; one shared offset keeps the sequence whole."""
    heads = signature.integer("num_heads") or signature.shape()[-1] // max(1, 2 * signature.shape(2)[1])
    s = "s" if signature.rank(1) == 2 else "!s"
    data = f"b h {s} !d" if signature.rank() == 4 else f"b {s} (h !d)"
    positions = f"b {s}" if signature.rank(1) == 2 else "_"
    return Row(f"{data}, {positions}, _ _, _ _ -> {data}", linear=((0,),), saves="1 2 3",
               sizes={"h": heads} if signature.rank() == 3 else {}, work=3)  # fmt: skip


def skip_norm(signature: Signature) -> Row:
    """`SkipLayerNormalization`, `SkipSimplifiedLayerNormalization`: the sum with the residual is a result as well."""
    is_rms = "Simplified" in signature.kind
    operands = ["x* ~k", "x* ~k", *["~k"] * (2 if is_rms else 3)]
    results = ["x* ~k", "x* _", "x* _", "x* ~k"]
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        saves="2 r3 r1 r2" if signature.made(3) else "0 1 2 r1 r2",
        statistics=(1, 1) if is_rms else (2, 2),
        work=5 if is_rms else 7,
    )


def embed_norm(signature: Signature) -> Row:
    """`EmbedLayerNormalization`: tables are looked up whole; positions are given or count from the start."""
    positions = signature.has(8)
    s = "s" if positions and signature.shape(8)[0] == signature.shape()[0] else "!s"
    operands = [f"b {s}", f"b {s}", "_ ~k", "_ ~k", "_ ~k", "~k", "~k", "b !s" if s == "!s" else "b s"]
    operands.append("b s" if s == "s" else "_ _")
    results = [f"b {s} ~k", "=b", f"b {s} ~k"]
    payload = 2 * 4 * signature.operand(0).elements
    both = (InnerCollective("all_reduce", payload), InnerCollective("all_reduce", payload, "backward"))
    given = listed(operands, signature.operands)
    return Row(f"{given} -> {listed(results, signature.results)}", cost="memory", saves="0 1 r2", inner={"k": both})


def group_norm(signature: Signature) -> Row:
    """`GroupNorm`, `SkipGroupNorm`: channels last unless said; the skipped operand may be one value per channel."""
    groups, rank = signature.integer("groups", 1), signature.rank()
    is_last = bool(signature.integer("channels_last", 1))
    dims = ["n", "~y", "~x", "(g ~c)"] if is_last else ["n", "(g ~c)", "~y", "~x"]
    data = " ".join(dims)
    skip = data if not signature.has(3) or signature.rank(3) == rank else "n (g ~c)"
    operands = [data, "(g ~c)", "(g ~c)", skip, "(g ~c)"]
    return Row(
        f"{listed(operands, signature.operands)} -> {listed([data, data], signature.results)}",
        saves="0 1",
        sizes={"g": groups},
        statistics=(2, 2),
        work=7,
    )


def matmul_n_bits(signature: Signature) -> Row:
    """`MatMulNBits`: one unit of packed values, scales and zero points; columns, or whole blocks of the sum.

    Zero points of several blocks share a byte, so blocks split by bytes of them.
    """
    n, k, block = (signature.integer(name) for name in ("N", "K", "block_size"))
    blocks = -(-k // max(1, block))
    bits = signature.integer("bits", 4)
    is_shared = signature.has(3) and not signature.operand(3).is_float and bits < 8
    per_byte = 8 // bits if is_shared else 1
    is_whole = k % max(1, block) != 0 or blocks % per_byte != 0 or signature.has(4)
    q = "!q" if is_whole else "q"
    rows = f"({q} !per !block)" if not is_whole else "_"
    each = f"({q} !per)" if not is_whole else "_"
    scales = f"n {each}" if signature.rank(2) == 2 else f"(n {q} !per)" if not is_whole else "(n !rest)"
    points = "_*"
    if signature.has(3):
        points = f"n {q if not is_whole else '_'}" if signature.rank(3) == 2 else f"(n {'!zeros' if is_whole else q})"
    operands = [f"x* {rows}", f"n {each} _", scales, points, "_*", "+n"]
    tokens = signature.operand(0).elements // max(1, k)
    return Row(
        f"{listed(operands, signature.operands)} -> x* n",
        cost="gemm",
        linear=((0, 5),),
        saves="1 2 3",
        flops=2.0 * tokens * n * k,
        sizes={"n": n} if is_whole else {"n": n, "q": blocks // per_byte, "per": per_byte, "block": block},
        gemm=Gemm(m=("x",) if signature.rank() == 2 else ("x0", "x1"), n=("n",), k=("q",)),
    )


def gather_block_quantized(signature: Signature) -> Row | None:
    """`GatherBlockQuantized`: rows of a table whose blocks have scales; looked up with a mask where it is split."""
    if signature.rank() != 2 or signature.integer("gather_axis") or signature.integer("quantize_axis", 1) != 1:
        return None
    blocks = signature.shape(2)[1]
    is_shared = signature.has(3) and signature.shape(3)[1] != blocks
    q = "!q" if is_shared else "q"
    block = signature.integer("block_size", 128)
    if signature.result().shape[-1] != blocks * block:
        return None
    points = "@v _" if is_shared else f"@v {q}"
    operands = [f"@v ({q} !packed)", "i*", f"@v {q}", points]
    return Row(
        f"{listed(operands, signature.operands)} -> i* ({q} !block)", cost="memory", saves="1",
        sizes={"q": blocks, "block": block},
    )  # fmt: skip


def fused_matmul(signature: Signature) -> Row:
    """`FusedMatMul`: `transBatch` puts the rows before the batch, `trans` swaps the last two."""
    left = _matrix(signature, "A", "m", "k")
    right = _matrix(signature, "B", "k", "n")
    return Row(f"{left}, {right} -> b* m n", cost="gemm", linear=((0,), (1,)), saves="0 1")


def _matrix(signature: Signature, side: str, rows: str, columns: str) -> str:
    first, last = (columns, rows) if signature.integer(f"trans{side}") else (rows, columns)
    return f"{first} b* {last}" if signature.integer(f"transBatch{side}") else f"b* {first} {last}"


def fused_gemm(signature: Signature) -> Row:
    """`FusedGemm`: an activation follows, so the sum is whole."""
    left = "!k m" if signature.integer("transA") else "m !k"
    right = "n !k" if signature.integer("transB") else "!k n"
    operands = [left, right, _aligned(signature, 2, ["m", "n"])]
    return Row(f"{listed(operands, signature.operands)} -> m n", cost="gemm", saves="0 1 r0",
               gemm=Gemm(("m",), ("n",), ("k",)))  # fmt: skip


def moe(signature: Signature) -> Row:
    """`MoE`, `QMoE`: tokens, experts (each device works on those it holds) and the inner units of all experts.

    Gate and value columns of a fused first product are interleaved or lie one after the other. Quantised weights split
    by whole blocks of inner units.
    """
    at = dict(zip(("w1", "b1", "w2", "b2", "w3", "b3"), (2, 3, 4, 5, 6, 7), strict=True))
    scales: dict[str, int] = {}
    if signature.kind.endswith("QMoE"):
        at = dict(zip(("w1", "b1", "w2", "b2", "w3", "b3"), (2, 4, 5, 7, 8, 10), strict=True))
        scales = {"w1": 3, "w2": 6, "w3": 9}
    rows, fused = signature.shape(2)[1], signature.integer("swiglu_fusion")
    inner = rows // 2 if fused else rows
    units = signature.shape(at["w2"])[2]
    for blocked in (6, 12) if scales else ():
        if signature.has(blocked) and signature.rank(blocked) == 3:
            units = math.gcd(units, signature.shape(blocked)[2])
    columns = {0: "(i !unit)", 1: "(i !unit !two)", 2: "(!two i !unit)"}[fused]
    patterns = {
        at["w1"]: f"@e {columns} _", at["b1"]: f"@e {columns}",
        at["w2"]: "@e _ (i !packed)", at["b2"]: "+@e _",
        at["w3"]: "@e (i !unit) _", at["b3"]: "@e (i !unit)",
    }  # fmt: skip
    for weight, position in scales.items():
        patterns[position] = _scales(signature, weight, position, columns, "blocks")
        zeros = 11 + list(scales).index(weight)
        patterns[zeros] = _scales(signature, weight, zeros, columns, "zeros")
    tokens, routed = ("t", "t") if signature.rank() == 2 else ("b s", "(b s)")
    if scales:
        patterns |= {14: f"{routed} _", **dict.fromkeys((15, 16, 17), "@e")}
    given = [f"{tokens} _", f"{routed} _", *(patterns.get(i, "_*") for i in range(2, len(signature.operands)))]
    per_token = rows * signature.shape()[-1] + inner * signature.shape()[-1] * (2 if signature.has(at["w3"]) else 1)
    count = signature.operand(0).elements // max(1, signature.shape()[-1])
    return Row(
        f"{', '.join(given)} -> {tokens} _",
        cost="gemm",
        saves="0 1 2 4 6",
        flops=2.0 * signature.integer("k", 1) * count * per_token,
        sizes={"i": units, "unit": inner // max(1, units), "two": 2},
        gemm=Gemm(m=tuple(tokens.split()), n=("i",), k=(), batch=()),
        segmented=True,
    )


def _scales(signature: Signature, weight: str, position: int, columns: str, minor: str) -> str:
    """Scales and zero points go with output columns and, when there are three dims, with blocks of the input."""
    column = {"w1": columns, "w2": "_", "w3": "(i !unit)"}[weight]
    if not signature.has(position) or signature.rank(position) < 3:
        return f"@e {column}"
    return f"@e {column} {f'(i !{minor})' if weight == 'w2' else '_'}"


def quantized_by_tensor(signature: Signature) -> Row:
    """`DynamicQuantizeMatMul`: the range of the whole left matrix decides, so only columns split."""
    per = ["_*" if _is_single(signature.operands, i) else "n" for i in (2, 3)]
    operands = ["_* !k", "_* !k n", *per, "n"]
    return Row(f"{listed(operands, signature.operands)} -> _* n", cost="gemm", saves="1",
               flops=2.0 * signature.result().elements * signature.shape()[-1],
               gemm=Gemm((), ("n",), ("k",)))  # fmt: skip


def _is_single(operands: tuple[Shaped | None, ...], position: int) -> bool:
    operand = operands[position] if position < len(operands) else None
    return operand is None or operand.elements == 1


def nhwc_conv(signature: Signature) -> Row:
    """`NhwcConv`: channels last in data and weight; one group, space whole."""
    operands = ["n _ _ c", "o !w0 !w1 c", "+o"]
    return Row(f"{listed(operands, signature.operands)} -> n !y0 !y1 o", cost="conv", linear=((0, 2), (1, 2)),
               saves="0 1", flops=2.0 * signature.result().elements * math.prod(signature.shape(1)[1:]),
               gemm=Gemm(("n", "y0", "y1"), ("o",), ("c", "w0", "w1")))  # fmt: skip


TABLE: tuple[Entry, ...] = (
    by(f"{MS}Attention", attention),
    by(f"{MS}MultiHeadAttention", multi_head_attention),
    by(f"{MS}GroupQueryAttention", group_query_attention),
    by(f"{MS}RotaryEmbedding", rotary),
    by(f"{MS}SkipLayerNormalization {MS}SkipSimplifiedLayerNormalization", skip_norm),
    by(f"{MS}EmbedLayerNormalization", embed_norm),
    by(f"{MS}GroupNorm {MS}SkipGroupNorm", group_norm),
    by(f"{MS}MatMulNBits", matmul_n_bits),
    by(f"{MS}GatherBlockQuantized", gather_block_quantized),
    by(f"{MS}FusedMatMul {MS}TransposeMatMul", fused_matmul),
    by(f"{MS}FusedGemm", fused_gemm),
    by(f"{MS}MoE {MS}QMoE", moe),
    by(f"{MS}DynamicQuantizeMatMul", quantized_by_tensor),
    by(f"{MS}NhwcConv", nhwc_conv),
    row(f"{MS}Gelu {MS}QuickGelu {MS}FastGelu {MS}BiasGelu", "x*, ... -> x*", saves="0 1", work=9),
    row(f"{MS}BiasAdd", "x*, ... -> x*", linear=((0, 1, 2),), work=2),
    row(f"{MS}BiasSplitGelu", "x* (!two u), (!two u) -> x* u", saves="0 1", work=10, segmented=True, sizes={"two": 2}),
)
