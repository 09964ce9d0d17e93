"""What a transformer is known by: its sizes and its style. Faults are collected and reported together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from shardplan.errors import Diagnostic, ShardplanError, error

AttentionForm = Literal["fused", "decomposed"]
StyleName = Literal["llama", "gpt", "bert"]
RoutingName = Literal["capacity", "dropless"]


@dataclass(frozen=True, slots=True)
class Style:
    """What the sizes leave open. `norm_first`: normalise before attention and MLP, else after the residual. `packed`:
    one weight makes queries, keys and values. `tied`: the embedding is also the output matrix."""

    norm: str
    norm_first: bool
    gated: bool
    rotary: bool
    bias: bool
    packed: bool
    causal: bool
    tied: bool
    epsilon: float


STYLES: Final[dict[str, Style]] = {
    "llama": Style("RMSNormalization", True, True, True, False, False, True, False, 1e-5),
    "gpt": Style("LayerNormalization", True, False, False, True, True, True, True, 1e-5),
    "bert": Style("LayerNormalization", False, False, False, True, False, False, True, 1e-12),
}


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """Sizes of a transformer. `ffn`: inner size of the MLP, 0 for the usual one of its style (4 hidden, or 8/3 hidden
    rounded up to 256 where the MLP is gated). `kv_heads`: 0 for as many as `heads`. `head_size`: 0 for hidden / heads.
    `experts`: 0 for a dense MLP; else every `moe_every`-th layer routes each token to `top_k` of so many experts, each
    of which takes `capacity` times its fair share of a sequence. `attention`: one fused operator, or its parts as
    operators. `dropout`: as in training of that time, with its masks. `head`: whether the output matrix is the
    embedding, `activation`: what the MLP applies; empty for those of the style. `qkv_bias`: biases of queries, keys and
    values alone, `qk_norm`: queries and keys are normalised by head; both only where styles have neither.

    `routing`: by one-hot masks and `capacity` (GShard), or `dropless`, by index, where the fullest expert has `skew`
    times its fair share. `shared_ffn`: inner size of an MLP that all tokens pass beside the experts, `shared_gate`: by
    a sigmoid of their own. `dense_layers`: so many first layers have no experts but an MLP of `dense_ffn`.
    `kv_rank`: multi-head latent attention (DeepSeek): keys and values are made from a latent of this size, and
    `rope_size` of the `head_size` of a key, which is rotated, is the same for all heads; values have `value_size`;
    `q_rank`: so are queries, from a latent of their own. `window`: attention sees so many tokens, except in every
    `window_every`-th layer, which sees all. `post_norm`: what attention and MLP make is normalised too (Gemma)."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 32000
    seq: int = 2048
    batch: int = 8
    experts: int = 0
    top_k: int = 2
    moe_every: int = 1
    capacity: float = 1.25
    head_size: int = 0
    style: StyleName = "llama"
    attention: AttentionForm = "fused"
    dropout: bool = False
    logits: bool = True
    dtype: str = "bfloat16"
    head: str = ""
    activation: str = ""
    qkv_bias: bool = False
    qk_norm: bool = False
    routing: RoutingName = "capacity"
    skew: float = 1.0
    shared_ffn: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    dense_ffn: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_size: int = 0
    value_size: int = 0
    window: int = 0
    window_every: int = 0
    post_norm: bool = False

    @property
    def look(self) -> Style:
        style = STYLES[self.style]
        return replace(style, tied=self.head == "tied") if self.head else style

    @property
    def width(self) -> int:
        """Size of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Inner size of the MLP."""
        if self.ffn:
            return self.ffn
        return -(-8 * self.hidden // (3 * 256)) * 256 if self.look.gated else 4 * self.hidden

    @property
    def expert_slots(self) -> int:
        """Tokens of one sequence that one expert takes."""
        if self.routing == "dropless":
            return min(self.seq, max(1, math.ceil(self.skew * self.top_k * self.seq / self.experts)))
        return max(1, int(self.capacity * self.top_k * self.seq / self.experts))

    def is_routed(self, layer: int) -> bool:
        """Whether the MLP of a layer is a mixture of experts: the last of every `moe_every` layers."""
        return bool(self.experts) and layer >= self.dense_layers and layer % self.moe_every == self.moe_every - 1

    def window_of(self, layer: int) -> int:
        """Tokens that attention of a layer sees; 0 for all."""
        whole = self.window_every and layer % self.window_every == self.window_every - 1
        return 0 if whole or self.window >= self.seq else self.window


SIZES: Final = frozenset(field.name for field in fields(TransformerSpec) if field.type == "int")
MOST: Final = 1 << 40
MOST_LAYERS: Final = 4096
"""Sizes beyond which nobody describes a model, and nobody could plan it."""
_MAY_BE_ZERO: Final = frozenset({
    "kv_heads", "ffn", "experts", "head_size", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank",
    "rope_size", "value_size", "window", "window_every",
})  # fmt: skip
_CHOICES: Final[dict[str, Iterable[str]]] = {
    "style": tuple(STYLES),
    "attention": ("fused", "decomposed"),
    "dtype": ("bfloat16", "float16", "float"),
    "head": ("", "tied", "untied"),
    "activation": ("", "silu", "gelu"),
    "routing": ("capacity", "dropless"),
}


def check(spec: TransformerSpec) -> None:
    """Raise `ShardplanError` with every size of `spec` that cannot be."""
    problems = [*_out_of_range(spec), *_wrong_choices(spec)]
    if not problems:
        problems = list(_contradictions(spec))
    if problems:
        raise ShardplanError(*problems)


def _out_of_range(spec: TransformerSpec) -> Iterable[Diagnostic]:
    for name in sorted(SIZES):
        value, least = getattr(spec, name), 0 if name in _MAY_BE_ZERO else 1
        if value < least:
            yield _bad(f"{name} is {value}, it must be at least {least}")
        elif value > (most := MOST_LAYERS if name == "layers" else MOST):
            yield _bad(f"{name} is {value}, it must be at most {most}")
    if not 1 <= spec.skew <= MOST:
        yield _bad(f"skew is {spec.skew:g}, it must be at least 1 and at most {MOST}")
    if not 0 < spec.capacity <= MOST:
        yield _bad(f"capacity is {spec.capacity:g}, it must be positive and at most {MOST}")


def _wrong_choices(spec: TransformerSpec) -> Iterable[Diagnostic]:
    for name, allowed in _CHOICES.items():
        value = getattr(spec, name)
        if value not in allowed:
            yield _bad(f"{name} is '{value}', it must be one of {', '.join(allowed)}")


def _contradictions(spec: TransformerSpec) -> Iterable[Diagnostic]:
    if not spec.head_size and spec.hidden % spec.heads:
        yield _bad(f"hidden ({spec.hidden}) is no multiple of heads ({spec.heads})", "give head_size as well")
    if spec.heads % spec.key_heads:
        yield _bad(f"heads ({spec.heads}) is no multiple of kv_heads ({spec.key_heads})")
    if spec.look.rotary and spec.width % 2:
        yield _bad(f"the size of a head ({spec.width}) is odd, so it cannot be rotated", "choose even head sizes")
    if spec.activation == "silu" and not spec.look.gated:
        yield _bad(f"MLPs of style {spec.style} have no activation 'silu'", "leave it out, or choose style=llama")
    if (spec.qkv_bias or spec.qk_norm) and spec.style != "llama":
        yield _bad(f"qkv_bias and qk_norm are of style llama, not {spec.style}", "leave them out")
    yield from (*_latent(spec), *_of_today(spec))
    if spec.experts and spec.top_k > spec.experts:
        yield _bad(f"top_k ({spec.top_k}) is more than experts ({spec.experts})")


def _of_today(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What stands beside experts, windows, and norms after attention and MLP."""
    if (spec.shared_ffn or spec.dense_layers or spec.shared_gate) and not spec.experts:
        yield _bad("shared_ffn, shared_gate and dense_layers are of mixtures of experts", "give experts as well")
    if spec.shared_gate and not spec.shared_ffn:
        yield _bad("shared_gate is of an MLP beside the experts", "give shared_ffn as well")
    if spec.post_norm and spec.style != "llama":
        yield _bad(f"post_norm is of style llama, not {spec.style}", "leave it out")
    if spec.window and (spec.attention != "fused" or not spec.look.causal):
        yield _bad("windows are of fused causal attention", "leave out window, or attention=decomposed")


def _latent(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """Multi-head latent attention has sizes that belong together."""
    if not spec.kv_rank:
        if spec.q_rank or spec.rope_size or spec.value_size:
            yield _bad("q_rank, rope_size and value_size are of latent attention", "give kv_rank as well")
        return
    if spec.style != "llama" or spec.attention != "fused" or spec.kv_heads or spec.qk_norm or spec.qkv_bias:
        yield _bad("latent attention is of style llama, fused, with as many key heads as heads", "leave the others out")
    if not 0 < spec.rope_size < spec.width or spec.rope_size % 2:
        yield _bad(f"rope_size is {spec.rope_size}, it must be even and less than head_size ({spec.width})")


def _bad(summary: str, hint: str = "") -> Diagnostic:
    return error("bad-description", f"transformer: {summary}", hint=hint)
