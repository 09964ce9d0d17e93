"""Attention and rotary embedding of the standard domain."""

from __future__ import annotations

from shardplan.rules.equation import listed
from shardplan.rules.row import STATISTIC_BYTES, Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import Gemm, InnerCollective

FLASH_BACKWARD = 2.5
"""Backward of fused attention does five products where forward does two: it computes the scores again."""


def attention(signature: Signature) -> Row | None:
    """`Attention`: batch; heads (of queries and keys together); queries and keys where no position matters.

    `b` batch, `h` key heads, `g` query heads per key head, `s` queries, `t` keys, `d` and `e` head sizes. Operands
    with three dims hold the heads in the last one. Splitting the keys merges results and softmax statistics inside;
    splitting `e` repeats the scores on every device. Where the mask follows from positions (causal, window, cache
    length) queries and keys are whole; a mask that is an operand is split with them.
    """
    is_packed = signature.rank() == 3
    heads = signature.integer("q_num_heads") if is_packed else signature.shape()[1]
    key_heads = signature.integer("kv_num_heads") if is_packed else signature.shape(1)[1]
    if not key_heads or heads % key_heads:
        return None
    is_causal = bool(signature.integer("is_causal"))
    is_positional = is_causal or any(signature.integer(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
    has_past, has_lengths = signature.has(4), signature.has(6)
    s = "!s" if is_positional or has_lengths else "s"
    t = "!t" if is_positional or has_lengths or has_past else "t"
    total = "!u" if has_past else t
    queries = f"b {s} (h g !d)" if is_packed else f"b (h g) {s} !d"
    keys, values = (f"b {t} (h {d})" if is_packed else f"b h {t} {d}" for d in ("!d", "e"))
    made = f"b {s} (h g e)" if is_packed else f"b (h g) {s} e"
    mask = f"b (h g) {s} {total}"
    operands = [queries, keys, values, _mask(signature, mask), "b h !p !d", "b h !p e", "b"]
    results = [made, f"=b h {total} !d", f"=b h {total} e", f"={mask}"]
    flops = _flops(signature, heads, key_heads, is_packed=is_packed, is_causal=is_causal)
    rows = signature.shape()[0] * heads * signature.shape()[-2]
    merged = signature.result().size_bytes + 2 * STATISTIC_BYTES * rows
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)} ; t:merge",
        cost="attention",
        saves="0 1 2 3 r0",
        flops=flops,
        backward_flops=FLASH_BACKWARD * flops,
        sizes={"h": key_heads, "g": heads // key_heads},
        inner={"t": (InnerCollective("all_reduce", merged),)},
        gemm=Gemm(m=("s",), n=("t",), k=("d",), batch=("b", "h", "g")),
        idle=("e",),
    )


def _mask(signature: Signature, full: str) -> str:
    """The mask aligned at the right of `full`; where it is shorter than the keys (padding), they are whole."""
    if not signature.has(3):
        return "_*"
    words = ["b", "(h g)", *full.replace("(h g) ", "").split()[1:]]
    if signature.shape(3)[-1] != signature.shape(1)[-2] + (signature.shape(4)[2] if signature.has(4) else 0):
        words[-1] = "_"
    return " ".join(words[len(words) - signature.rank(3) :])


def _flops(signature: Signature, heads: int, key_heads: int, *, is_packed: bool, is_causal: bool) -> float:
    """Two products over all pairs of query and key, of which a causal mask leaves half when there are equally many."""
    queries, keys, values = (signature.shape(position) for position in range(3))
    pairs = queries[-2] * keys[-2]
    past = signature.shape(4)[2] if signature.has(4) else 0
    pairs += queries[-2] * past
    batch = queries[0]
    width, value_width = (queries[-1] // heads, values[-1] // key_heads) if is_packed else (queries[-1], values[-1])
    share = 0.5 if is_causal and queries[-2] == keys[-2] + past else 1.0
    return 2.0 * batch * heads * pairs * (width + value_width) * share


def rotary(signature: Signature) -> Row:
    """`RotaryEmbedding`: all but the rotated head size; caches follow the batch and the sequence."""
    heads = signature.integer("num_heads")
    data = "b h s !d" if signature.rank() == 4 else "b s (h !d)"
    cache = "_ _" if signature.has(3) else "b s _"
    operands = [data, cache, cache, "b s"]
    sizes = {"h": heads} if signature.rank() == 3 and heads else {}
    equation = f"{listed(operands, signature.operands)} -> {data}"
    return Row(equation, linear=((0,),), saves="1 2 3", sizes=sizes, work=3)


def linear_attention(signature: Signature) -> Row | None:
    """`LinearAttention`: batch and heads; the recurrence keeps the sequence whole."""
    heads, key_heads = signature.integer("q_num_heads"), signature.integer("kv_num_heads")
    if not key_heads or heads % key_heads:
        return None
    decay = "b _ (h !d)" if signature.has(4) and signature.shape(4)[-1] != key_heads else "b _ h"
    beta = "b _ h" if signature.has(5) and signature.shape(5)[-1] == key_heads else "b _ _"
    operands = ["b !t (h g !d)", "b !t (h !d)", "b !t (h !e)", "b h !d !e", decay, beta]
    results = ["b !t (h g !e)", "=b h !d !e"]
    steps, width = signature.shape()[1], signature.shape()[2] // max(1, heads)
    flops = 4.0 * signature.result().elements * width
    return Row(
        f"{listed(operands, signature.operands)} -> {listed(results, signature.results)}",
        cost="attention",
        saves="0 1 2 3 4 5 r0",
        flops=flops,
        sizes={"h": key_heads, "g": heads // key_heads},
        gemm=Gemm(m=("t",), n=("e",), k=("d",), batch=("b", "h", "g")) if steps > 1 else None,
    )


TABLE: tuple[Entry, ...] = (
    by("Attention", attention),
    by("RotaryEmbedding", rotary),
    by("LinearAttention", linear_attention),
)
