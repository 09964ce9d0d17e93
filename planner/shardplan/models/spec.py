"""The specification of a transformer: its sizes and its style."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

AttentionForm = Literal["fused", "decomposed"]
StyleName = Literal[
    "llama", "gpt", "bert", "nemotron", "phi3", "olmo2", "bloom", "neox", "opt", "mpt", "nemotron4", "starcoder2",
    "stablelm", "cohere", "phi", "gptj", "codegen", "falcon", "large_falcon", "falcon_rw", "opt_post", "apertus",
    "dbrx", "afmoe", "olmo_hybrid", "minimax", "glm", "gemma", "hunyuan", "arcee", "bigcode", "qwen3_next", "kimi",
    "bamba", "granite_hybrid", "lfm2", "olmo", "nanochat", "gpt_neo", "biogpt", "xglm", "roberta",
]  # fmt: skip
RoutingName = Literal["capacity", "dropless"]
Part = Literal[
    "attention",
    "state_space",
    "delta_rule",
    "short_convolution",
    "lightning_attention",
    "attention_and_state_space",
    "mlp",
]
PARTS: Final[dict[str, Part]] = {"M": "state_space", "*": "attention", "-": "mlp", "E": "mlp"}
"""What a letter of a pattern is; `E` is an MLP of experts."""
MIXERS: Final[dict[str, Part]] = {
    "*": "attention", "M": "state_space", "D": "delta_rule", "C": "short_convolution", "L": "lightning_attention",
    "B": "attention_and_state_space",
}  # fmt: skip
"""What a letter of `mixers` puts in front of a layer's MLP; `B`: both, of the same input."""


@dataclass(frozen=True, slots=True)
class Style:
    """What the sizes leave open. `norm_first`: normalise before attention and MLP, else after the residual.
    `packed`: one weight makes queries, keys and values, `interleaved`: group by group of heads, not all queries
    first. `tied`: the embedding is also the output matrix. `activation`: of the MLP. `norm_last`: what attention and
    MLP make is normalised, not what they take, but in layers with another mixer. `norm_kept`: the residual is what
    was normalised. `norm_bias`: whether a `LayerNormalization` has one; `head_bias`: whether the output matrix has
    one. `norm_by_head`: where queries and keys are normalised, every head has weights of its own; `norm_weight`:
    whether norms have weights at all."""

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
    norm_kept: bool = False
    norm_bias: bool = True
    head_bias: bool = False
    norm_by_head: bool = False
    norm_weight: bool = True


_LLAMA: Final = Style("RMSNormalization", True, True, True, False, False, True, False, 1e-5, "silu")
_GPT: Final = Style("LayerNormalization", True, False, False, True, True, True, True, 1e-5, "gelu")
_ROTARY_GPT: Final = replace(_GPT, rotary=True, packed=False)
_BERT: Final = Style("LayerNormalization", False, False, False, True, False, False, True, 1e-12, "gelu")
STYLES: Final[dict[str, Style]] = {
    "llama": _LLAMA,
    "gpt": _GPT,
    "bert": _BERT,
    "roberta": _BERT,
    "nemotron": Style("RMSNormalization", True, False, False, False, False, True, False, 1e-5, "relu2"),
    "phi3": replace(_LLAMA, packed=True),
    "olmo2": replace(_LLAMA, norm_last=True),
    "olmo_hybrid": replace(_LLAMA, norm_last=True),
    "minimax": replace(_LLAMA, norm_kept=True),
    "glm": _LLAMA,
    "gemma": replace(_LLAMA, tied=True, activation="gelu"),
    "hunyuan": _LLAMA,
    "arcee": replace(_LLAMA, gated=False, activation="relu2"),
    "apertus": replace(_LLAMA, gated=False, activation="xielu"),
    "dbrx": replace(_LLAMA, norm="LayerNormalization", norm_bias=False, packed=True),
    "afmoe": _LLAMA,
    "bigcode": _GPT,
    "bloom": replace(_GPT, interleaved=True),
    "neox": replace(_GPT, rotary=True, interleaved=True, tied=False),
    "opt": replace(_GPT, packed=False, activation="relu"),
    "opt_post": replace(_GPT, packed=False, activation="relu", norm_first=False),
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
    "falcon_rw": replace(_GPT, bias=False, interleaved=True),
    "olmo": replace(_LLAMA, norm="LayerNormalization", norm_bias=False, norm_weight=False),
    "nanochat": replace(_LLAMA, gated=False, activation="relu2", norm_weight=False),
    "gpt_neo": replace(_GPT, bias=False, packed=False),
    "biogpt": replace(_GPT, packed=False),
    "xglm": replace(_GPT, packed=False),
    "qwen3_next": _LLAMA,
    "kimi": _LLAMA,
    "bamba": _LLAMA,
    "granite_hybrid": _LLAMA,
    "lfm2": _LLAMA,
}
"""What ALiBi adds to scores (`bloom`, `mpt`, `falcon_rw`) is made inside of fused attention and is left out."""


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
    the same input, through one norm or one each, and are added together. `logit_cap`: logits go through a tanh;
    `head_bias`: they have a bias, as some styles always have. `embed_size`: of embeddings (0: `hidden`), which two
    matrices bring to `hidden` and back (OPT 350M).
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

    `mixers`: what stands in front of the MLP of a layer, a letter for each, from the start again where there are more
    layers: `*` attention, `M` a state space, `B` both, of the same input, and added (Falcon-H1), `D` a gated delta rule
    (Gated DeltaNet, Kimi Delta Attention), `C` a convolution of `conv_size` tokens between two gates (LFM2), `L`
    lightning attention, which has the heads of attention (MiniMax-01). A gated delta rule has `delta_heads` heads of
    values of `delta_value_size`, and `delta_key_heads` (0: as many) of keys and queries of `delta_key_size`, behind a
    convolution of `conv_size` tokens; with `delta_rank` its decay differs from dim to dim of a key, and decay and
    output gate are made through a latent of this size. `attention_gate`: what attention makes is gated, element by
    element. `state_norm`: state spaces normalise what they make; `conv_bias`: their convolution has a bias.

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
    mixers: str = ""
    delta_heads: int = 0
    delta_key_heads: int = 0
    delta_key_size: int = 128
    delta_value_size: int = 128
    delta_rank: int = 0
    attention_gate: bool = False
    state_norm: bool = True
    conv_bias: bool = True
    window_pattern: str = ""
    moe_pattern: str = ""
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm_whole: bool = False
    parallel_norms: int = 0
    logit_cap: bool = False
    head_bias: bool = False
    positions: int = 0
    mtp: int = 0
    mtp_pattern: str = ""
    mtp_shared: bool = False
    embed_size: int = 0

    @property
    def look(self) -> Style:
        style = STYLES[self.style]
        return replace(style, tied=self.head == "tied") if self.head else style

    @property
    def width(self) -> int:
        """Size of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def embedded(self) -> int:
        """Size of an embedding."""
        return self.embed_size or self.hidden

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
            return (PARTS[self.letter_of(layer)],)
        letters = self.mixers or "*"
        return MIXERS[letters[min(layer, self.layers - 1) % len(letters)]], "mlp"

    @property
    def has_recurrences(self) -> bool:
        """Whether operators are needed that attention and MLPs do without."""
        return "M" in self.pattern + self.mtp_pattern or bool(set(self.mixers) - {"*"})

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
