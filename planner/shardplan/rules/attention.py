"""Attention and rotary embedding of the standard domain."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.rules.equation import listed
from shardplan.rules.row import STATISTIC_BYTES, Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import Gemm, InnerCollective

FLASH_BACKWARD = 2.5
"""Backward of fused attention does five products where forward does two: it computes the scores again."""


def attention(signature: Signature) -> Row | None:
    """`Attention`: batch; heads (of queries and keys together); queries and keys.

    `b` batch, `h` key heads, `g` query heads per key head, `s` queries, `t` keys, `d` and `e` head sizes. Operands
    with three dims hold the heads in the last one. Splitting the keys merges results and softmax statistics inside;
    splitting `e` repeats the scores on every device. Causal masks and windows are those of the positions that a device
    has; a mask that is an operand is split with queries and keys. Lengths of caches keep both whole; past keys, and a
    mask that is shorter than the keys, keep the keys whole.
    """
    is_packed = signature.rank() == 3
    heads = signature.integer("q_num_heads") if is_packed else signature.shape()[1]
    key_heads = signature.integer("kv_num_heads") if is_packed else signature.shape(1)[1]
    if not key_heads or heads % key_heads:
        return None
    has_past, has_lengths = signature.has(4), signature.has(6)
    band = _Band.of(signature)
    mark = "!" if has_lengths else "@" if band.is_bounded else ""
    s, t = f"{mark}s", f"{'!' if has_past or _is_short(signature) else mark}t"
    total = "!u" if has_past else t
    queries = f"b {s} (h g !d)" if is_packed else f"b (h g) {s} !d"
    keys, values = (f"b {t} (h {d})" if is_packed else f"b h {t} {d}" for d in ("!d", "e"))
    made = f"b {s} (h g e)" if is_packed else f"b (h g) {s} e"
    mask = f"b (h g) {s} {total}"
    operands = [queries, keys, values, _mask(signature, mask), "b h !p !d", "b h !p e", "b"]
    results = [made, f"=b h {total} !d", f"=b h {total} e", f"={mask}"]
    flops = _flops(signature, heads, key_heads, band.pairs, is_packed=is_packed)
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
        triangular=("s", "t") if band.is_triangle else (),
    )


@dataclass(frozen=True, slots=True)
class _Band:
    """Which keys each query sees: query i those from `i + past - left` to `i + past + right`, where there are any
    (None: no bound on this side)."""

    queries: int
    keys: int
    past: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, signature: Signature) -> _Band:
        """As causality, windows and past keys have it."""
        past = signature.shape(4)[2] if signature.has(4) else 0
        left, right = (signature.integer(f"{side}_window_size", -1) for side in ("left", "right"))
        after = 0 if signature.integer("is_causal") else None if right < 0 else right
        return cls(signature.shape()[-2], signature.shape(1)[-2] + past, past, None if left < 0 else left, after)

    @property
    def is_bounded(self) -> bool:
        return self.left is not None or self.right is not None

    @property
    def is_triangle(self) -> bool:
        """Whether the first query sees one key and the last one all."""
        return self.queries == self.keys and self.right == 0 and (self.left is None or self.left >= self.keys - 1)

    @property
    def pairs(self) -> int:
        """Of query and key: where one sees the other."""
        first, end, keys = self.past, self.past + self.queries, self.keys
        if self.left is not None:  # queries further on see none
            end = min(end, keys + self.left + 1)
        seen = max(0, end - first) * keys
        if self.right is not None:
            all_from = min(max(keys - self.right - 1, first), end)  # queries before it do not see the last keys
            seen += _sum(first + self.right + 1 - keys, all_from + self.right + 1 - keys)
        if self.left is not None:
            seen -= _sum(min(max(self.left, first), end) - self.left, end - self.left)
        return seen


def _sum(first: int, end: int) -> int:
    """The sum of the integers from `first` to before `end`."""
    return (first + end - 1) * (end - first) // 2 if end > first else 0


def _is_short(signature: Signature) -> bool:
    """Whether a mask says nothing of the last keys: they are padding."""
    return signature.has(3) and signature.shape(3)[-1] != _Band.of(signature).keys


def _mask(signature: Signature, full: str) -> str:
    """The mask aligned at the right of `full`; where it is shorter than the keys (padding), they are whole."""
    if not signature.has(3):
        return "_*"
    words = ["b", "(h g)", *full.replace("(h g) ", "").split()[1:]]
    if _is_short(signature):
        words[-1] = "_"
    return " ".join(words[len(words) - signature.rank(3) :])


def _flops(signature: Signature, heads: int, key_heads: int, pairs: int, *, is_packed: bool) -> float:
    """Two products over all `pairs` of query and key."""
    queries, _, values = (signature.shape(position) for position in range(3))
    width, value_width = (queries[-1] // heads, values[-1] // key_heads) if is_packed else (queries[-1], values[-1])
    return 2.0 * queries[0] * heads * pairs * (width + value_width)


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
    products = 3 if "delta" in signature.text("update_rule", "gated_delta") else 2  # write, read, and what k recalls
    flops = 2.0 * products * signature.result().elements * width
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
