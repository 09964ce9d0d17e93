"""What a transformer is known by: its sizes and its style. Faults are collected and reported together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from shardplan.errors import Diagnostic, ShardplanError, error

AttentionForm = Literal["fused", "decomposed"]
StyleName = Literal["llama", "gpt", "bert"]


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
    values alone, `qk_norm`: queries and keys are normalised by head; both only where styles have neither."""

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
        return max(1, int(self.capacity * self.top_k * self.seq / self.experts))

    def is_routed(self, layer: int) -> bool:
        """Whether the MLP of a layer is a mixture of experts: the last of every `moe_every` layers."""
        return bool(self.experts) and layer % self.moe_every == self.moe_every - 1


SIZES: Final = frozenset(field.name for field in fields(TransformerSpec) if field.type == "int")
MOST: Final = 1 << 40
MOST_LAYERS: Final = 4096
"""Sizes beyond which nobody describes a model, and nobody could plan it."""
_MAY_BE_ZERO: Final = frozenset({"kv_heads", "ffn", "experts", "head_size"})
_CHOICES: Final[dict[str, Iterable[str]]] = {
    "style": tuple(STYLES),
    "attention": ("fused", "decomposed"),
    "dtype": ("bfloat16", "float16", "float"),
    "head": ("", "tied", "untied"),
    "activation": ("", "silu", "gelu"),
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
    if spec.experts and spec.top_k > spec.experts:
        yield _bad(f"top_k ({spec.top_k}) is more than experts ({spec.experts})")


def _bad(summary: str, hint: str = "") -> Diagnostic:
    return error("bad-description", f"transformer: {summary}", hint=hint)
