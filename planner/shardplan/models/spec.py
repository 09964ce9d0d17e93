"""The specification of a transformer: its sizes and its style. All faults are reported together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from shardplan.errors import Diagnostic, ShardplanError, error

AttentionForm = Literal["fused", "decomposed"]
StyleName = Literal[
    "llama", "gpt", "bert", "nemotron", "phi3", "olmo2", "bloom", "neox", "opt", "mpt", "nemotron4", "starcoder2",
    "stablelm", "cohere", "phi", "gptj", "codegen", "falcon",
    "large_falcon", "glm", "gemma", "hunyuan", "arcee", "bigcode",
]  # fmt: skip
RoutingName = Literal["capacity", "dropless"]
Part = Literal["attention", "state_space", "mlp"]
_PARTS: Final[dict[str, Part]] = {"M": "state_space", "*": "attention", "-": "mlp", "E": "mlp"}
"""What a letter of a pattern is; `E` is an MLP of experts."""


@dataclass(frozen=True, slots=True)
class Style:
    """What the sizes leave open. `norm_first`: normalise before attention and MLP, else after the residual. `packed`:
    one weight makes queries, keys and values, `interleaved`: group by group of heads, not all queries first. `tied`:
    the embedding is also the output matrix. `activation`: of the MLP. `norm_last`: what attention and MLP make is
    normalised, not what they take. `norm_bias`: whether a `LayerNormalization` has one; `head_bias`: whether the output
    matrix has one. `norm_by_head`: where queries and keys are normalised, every head has weights of its own."""

    norm: str
    norm_first: bool
    gated: bool
    rotary: bool
    bias: bool
    packed: bool
    causal: bool
    tied: bool
    epsilon: float
    activation: str
    interleaved: bool = False
    norm_last: bool = False
    norm_bias: bool = True
    head_bias: bool = False
    norm_by_head: bool = False


_LLAMA: Final = Style("RMSNormalization", True, True, True, False, False, True, False, 1e-5, "silu")
_GPT: Final = Style("LayerNormalization", True, False, False, True, True, True, True, 1e-5, "gelu")
_ROTARY_GPT: Final = replace(_GPT, rotary=True, packed=False)
STYLES: Final[dict[str, Style]] = {
    "llama": _LLAMA,
    "gpt": _GPT,
    "bert": Style("LayerNormalization", False, False, False, True, False, False, True, 1e-12, "gelu"),
    "nemotron": Style("RMSNormalization", True, False, False, False, False, True, False, 1e-5, "relu2"),
    "phi3": replace(_LLAMA, packed=True),
    "olmo2": replace(_LLAMA, norm_last=True),
    "glm": _LLAMA,
    "gemma": replace(_LLAMA, tied=True, activation="gelu"),
    "hunyuan": _LLAMA,
    "arcee": replace(_LLAMA, gated=False, activation="relu2"),
    "bigcode": _GPT,
    "bloom": replace(_GPT, interleaved=True),
    "neox": replace(_GPT, rotary=True, interleaved=True, tied=False),
    "opt": replace(_GPT, packed=False, activation="relu"),
    "mpt": replace(_GPT, bias=False, norm_bias=False),
    "nemotron4": replace(_ROTARY_GPT, bias=False, tied=False, activation="relu2"),
    "starcoder2": _ROTARY_GPT,
    "stablelm": replace(_LLAMA, norm="LayerNormalization", norm_by_head=True),
    "cohere": replace(_LLAMA, norm="LayerNormalization", norm_bias=False, norm_by_head=True, tied=True),
    "phi": replace(_ROTARY_GPT, tied=False, head_bias=True),
    "gptj": replace(_ROTARY_GPT, bias=False, tied=False, head_bias=True),
    "codegen": replace(_ROTARY_GPT, bias=False, packed=True, tied=False, head_bias=True),
    "falcon": replace(_GPT, rotary=True, bias=False, interleaved=True),
    "large_falcon": replace(_GPT, rotary=True, bias=False, interleaved=True),
}
"""What ALiBi adds to scores (`bloom`, `mpt`) is made inside of fused attention and is left out."""


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """Sizes of a transformer. `ffn`: inner size of the MLP, 0 for the usual one of its style (4 hidden, or 8/3 hidden
    rounded up to 256 where the MLP is gated). `kv_heads`: 0 for as many as `heads`. `head_size`: 0 for hidden / heads.
    `experts`: 0 for a dense MLP; else every `moe_every`-th layer routes each token to `top_k` of so many experts, each
    of which takes `capacity` times its fair share of a sequence. `attention`: one fused operator, or its parts as
    operators. `dropout`: as in training of that time, with its masks. `head`: whether the output matrix is the
    embedding, `activation`: what the MLP applies; empty for those of the style. `qkv_bias`: biases of queries, keys and
    values alone, `out_bias`: of attention's output matrix, `mlp_bias`: of the MLP, where styles have none. `qk_norm`:
    queries and keys are normalised by head, `qk_norm_whole`: over all heads. `parallel_norms`: attention and MLP take
    the same input, through one norm or one each, and are added together. `logit_cap`: logits go through a tanh.
    `positions`: rows of the table of positions where they are learned; 0, and where `seq` is more, for as many as that.

    `routing`: by one-hot masks and `capacity` (GShard), or `dropless`, by index, where the fullest expert has `skew`
    times its fair share. `shared_ffn`: inner size of an MLP that all tokens pass beside the experts, `shared_gate`: by
    a sigmoid of their own. `dense_layers`: so many first layers have no experts but an MLP of `dense_ffn`.
    `kv_rank`: multi-head latent attention (DeepSeek): keys and values are made from a latent of this size, and
    `rope_size` of the `head_size` of a key, which is rotated, is the same for all heads; values have `value_size`;
    `q_rank`: so are queries, from a latent of their own. `window`: attention sees so many tokens, except in every
    `window_every`-th layer, which sees all. `post_norm`: what attention and MLP make is normalised too (Gemma).
    `window_pattern` says it of any layers, a letter for each, from the start again where there are more layers: `W` the
    window, `F` all; `moe_pattern` says which MLPs are experts (`E`), which dense (`D`).

    `pattern`: what the layers are instead of attention and MLP, a letter for each, as Nemotron writes it: `M` a state
    space (Mamba-2), `*` attention, `-` an MLP, `E` experts; from the start again where there are more layers. A state
    space has `state_heads` heads of `state_head_size` (0: as many as twice `hidden` holds) with a state of
    `state_size` for each of its size, read and written by `state_groups` groups of heads alike, behind a convolution of
    `conv_size` tokens. `expert_latent`: tokens come to the experts in this size (Nemotron 3 Super).

    `mtp`: modules after the last layer, each of which predicts one token further (DeepSeek-V3): it normalises the
    hidden state before it and the embedding of the token that was predicted last, makes one of both, and has a layer of
    the last kind, a norm, and logits by the output matrix of all. With a pattern `mtp_pattern` says what the layers of
    a module are. `mtp_shared`: there are weights of one module, which is run again and again (Nemotron 3 Super)."""

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
    pattern: str = ""
    state_heads: int = 0
    state_head_size: int = 64
    state_size: int = 128
    state_groups: int = 1
    conv_size: int = 4
    expert_latent: int = 0
    window_pattern: str = ""
    moe_pattern: str = ""
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm_whole: bool = False
    parallel_norms: int = 0
    logit_cap: bool = False
    positions: int = 0
    mtp: int = 0
    mtp_pattern: str = ""
    mtp_shared: bool = False

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

    def letter_of(self, layer: int) -> str:
        """What the pattern says of a layer, or of one that predicts further tokens."""
        if layer >= self.layers:
            return self.mtp_pattern[(layer - self.layers) % len(self.mtp_pattern)]
        return self.pattern[layer % len(self.pattern)]

    def is_routed(self, layer: int) -> bool:
        """Whether the MLP of a layer is a mixture of experts: as a pattern says, or the last of every `moe_every`."""
        if self.pattern:
            return self.letter_of(layer) == "E"
        layer = min(layer, self.layers - 1)
        if self.moe_pattern:
            return self.moe_pattern[layer % len(self.moe_pattern)] == "E"
        return bool(self.experts) and layer >= self.dense_layers and layer % self.moe_every == self.moe_every - 1

    def parts_of(self, layer: int) -> tuple[Part, ...]:
        """What a layer consists of, in order; each part has a norm and a residual of its own."""
        if self.pattern:
            return (_PARTS[self.letter_of(layer)],)
        return "attention", "mlp"

    def further_layers(self, module: int) -> range:
        """Numbers of the layers of a module that predicts further tokens, counted on from the others."""
        count = len(self.mtp_pattern) if self.pattern else 1
        first = self.layers + (0 if self.mtp_shared else module * count)
        return range(first, first + count)

    @property
    def heads_of_state(self) -> int:
        """Heads of a state space."""
        return self.state_heads or 2 * self.hidden // self.state_head_size

    @property
    def expert_size(self) -> int:
        """Size of a token when it comes to the experts."""
        return self.expert_latent or self.hidden

    @property
    def act(self) -> str:
        """The activation of MLPs."""
        return self.activation or self.look.activation

    def window_of(self, layer: int) -> int:
        """Tokens that attention of a layer sees; 0 for all."""
        layer = min(layer, self.layers - 1)
        every = "W" * (self.window_every - 1) + "F" if self.window_every else "W"
        letters = self.window_pattern or every
        return 0 if letters[layer % len(letters)] == "F" or self.window >= self.seq else self.window


SIZES: Final = frozenset(field.name for field in fields(TransformerSpec) if field.type == "int")
MOST: Final = 1 << 40
MOST_LAYERS: Final = 4096
"""Sizes beyond which nobody describes a model, and nobody could plan it."""
_MAY_BE_ZERO: Final = frozenset({
    "kv_heads", "ffn", "experts", "head_size", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank",
    "rope_size", "value_size", "window", "window_every", "state_heads", "expert_latent",
    "parallel_norms", "positions", "mtp",
})  # fmt: skip
_CHOICES: Final[dict[str, Iterable[str]]] = {
    "style": tuple(STYLES),
    "attention": ("fused", "decomposed"),
    "dtype": ("bfloat16", "float16", "float"),
    "head": ("", "tied", "untied"),
    "activation": ("", "silu", "gelu", "relu", "relu2"),
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
        elif value > (most := MOST_LAYERS if name in ("layers", "mtp") else MOST):
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
    for name in ("pattern", "mtp_pattern"):
        if wrong := sorted(set(getattr(spec, name)) - set(_PARTS)):
            known = "M (state space), * (attention), - (MLP) and E (experts)"
            yield _bad(f"{name} has '{wrong[0]}'; its letters are {known}")
    if wrong := sorted(set(spec.window_pattern) - set("WF")):
        yield _bad(f"window_pattern has '{wrong[0]}'; its letters are W (the window) and F (all)")
    if wrong := sorted(set(spec.moe_pattern) - set("DE")):
        yield _bad(f"moe_pattern has '{wrong[0]}'; its letters are D (dense) and E (experts)")


def _contradictions(spec: TransformerSpec) -> Iterable[Diagnostic]:
    if not spec.head_size and spec.hidden % spec.heads:
        yield _bad(f"hidden ({spec.hidden}) is no multiple of heads ({spec.heads})", "give head_size as well")
    if spec.heads % spec.key_heads:
        yield _bad(f"heads ({spec.heads}) is no multiple of kv_heads ({spec.key_heads})")
    if spec.look.rotary and spec.width % 2:
        yield _bad(f"the size of a head ({spec.width}) is odd, so it cannot be rotated", "choose even head sizes")
    allowed = ("silu", "gelu") if spec.look.gated else ("gelu", "relu", "relu2")
    if spec.activation and spec.activation not in allowed:
        hint = f"leave it out, or choose {' or '.join(allowed)}"
        yield _bad(f"MLPs of style {spec.style} have no activation '{spec.activation}'", hint)
    if spec.look.bias and (spec.qkv_bias or spec.out_bias or spec.mlp_bias):
        yield _bad(f"style {spec.style} has all biases", "leave out qkv_bias, out_bias and mlp_bias")
    if (spec.qk_norm or spec.qk_norm_whole) and not spec.look.rotary:
        yield _bad(f"qk_norm is of styles whose positions are rotated, not {spec.style}", "leave it out")
    yield from (*_latent(spec), *_of_today(spec), *_of_norms(spec), *_of_pattern(spec), *_of_further(spec))
    if spec.experts and spec.top_k > spec.experts:
        yield _bad(f"top_k ({spec.top_k}) is more than experts ({spec.experts})")


def _of_today(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What stands beside experts, windows, and norms after attention and MLP."""
    if (spec.shared_ffn or spec.dense_layers or spec.shared_gate) and not spec.experts:
        yield _bad("shared_ffn, shared_gate and dense_layers are of mixtures of experts", "give experts as well")
    if spec.shared_gate and not spec.shared_ffn:
        yield _bad("shared_gate is of an MLP beside the experts", "give shared_ffn as well")
    if spec.moe_pattern and (not spec.experts or spec.dense_layers or spec.moe_every > 1):
        yield _bad("moe_pattern is of experts, without dense_layers and moe_every", "give experts, or leave one out")
    if spec.window_pattern and (not spec.window or spec.window_every):
        yield _bad("window_pattern is of windows, without window_every", "give window, or leave one out")
    if spec.window and (spec.attention != "fused" or not spec.look.causal):
        yield _bad("windows are of fused causal attention", "leave out window, or attention=decomposed")


def _of_norms(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """Where values are normalised."""
    has_one = spec.look.norm_last or spec.parallel_norms or not spec.look.norm_first
    if spec.post_norm and (has_one or spec.look.norm != "RMSNormalization"):
        yield _bad("post_norm is of styles with RMSNormalization, without parallel_norms", "leave it out")
    if spec.qk_norm and spec.qk_norm_whole:
        yield _bad("queries and keys are normalised by head or over all heads", "leave out qk_norm or qk_norm_whole")
    if spec.parallel_norms and (spec.parallel_norms > 2 or not spec.look.norm_first or spec.look.norm_last):
        yield _bad("parallel_norms is 1 or 2, of styles that normalise first", "leave it out")


def _of_further(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What predicts further tokens."""
    if spec.mtp and not (spec.logits and spec.look.causal and spec.look.norm_first):
        yield _bad("mtp is of causal styles that normalise first, with logits", "leave it out")
    if spec.mtp_pattern and not spec.pattern:
        yield _bad("mtp_pattern is of models with a pattern", "leave it out, or give pattern as well")
    if spec.mtp and spec.pattern and not spec.mtp_pattern:
        hint = "give mtp_pattern as well, such as mtp_pattern=*E"
        yield _bad("nothing says what layers predict further tokens beside a pattern", hint)


def _of_pattern(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What the letters of a pattern need, and what needs them."""
    if spec.expert_latent and (not spec.experts or spec.routing != "dropless"):
        yield _bad("expert_latent is of experts with dropless routing", "give experts and routing=dropless as well")
    if not spec.pattern:
        if spec.state_heads:
            yield _bad("state_heads is of state spaces", "give pattern as well, such as pattern=M*")
        return
    if not spec.look.norm_first or spec.look.norm_last or spec.post_norm or spec.parallel_norms:
        hint = f"leave out style={spec.style}, post_norm and parallel_norms"
        yield _bad("layers of a pattern are normalised before, and only there", hint)
    letters = spec.pattern + spec.mtp_pattern
    if "E" in letters and not spec.experts:
        yield _bad("pattern has layers of experts (E)", "give experts as well")
    if spec.experts and ("E" not in letters or spec.dense_layers or spec.moe_every > 1):
        yield _bad("of a pattern the layers with letter E have experts", "leave out dense_layers and moe_every")
    if "M" in letters and spec.heads_of_state % spec.state_groups:
        yield _bad(f"state_heads ({spec.heads_of_state}) is no multiple of state_groups ({spec.state_groups})")
    if "M" in letters and not spec.heads_of_state:
        yield _bad(f"state_head_size ({spec.state_head_size}) is more than twice hidden ({spec.hidden})")


def _latent(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """Multi-head latent attention has sizes that belong together."""
    if not spec.kv_rank:
        if spec.q_rank or spec.rope_size or spec.value_size:
            yield _bad("q_rank, rope_size and value_size are of latent attention", "give kv_rank as well")
        return
    if spec.style != "llama" or spec.attention != "fused" or spec.kv_heads or _beside_latent(spec):
        yield _bad("latent attention is of style llama, fused, with as many key heads as heads", "leave the others out")
    if not 0 < spec.rope_size < spec.width or spec.rope_size % 2:
        yield _bad(f"rope_size is {spec.rope_size}, it must be even and less than head_size ({spec.width})")


def _beside_latent(spec: TransformerSpec) -> bool:
    """Whether attention has what latent attention lacks."""
    return spec.qk_norm or spec.qk_norm_whole or spec.qkv_bias or spec.out_bias or bool(spec.parallel_norms)


def _bad(summary: str, hint: str = "") -> Diagnostic:
    return error("bad-description", f"transformer: {summary}", hint=hint)
