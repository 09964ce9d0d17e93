"""What sizes of a transformer cannot be, alone and together. All faults are reported together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.models.spec import MIXERS, PARTS, SIZES, STYLES, TransformerSpec

MOST: Final = 1 << 40
MOST_LAYERS: Final = 4096
"""Sizes beyond which nobody describes a model, and nobody could plan it."""
_MAY_BE_ZERO: Final = frozenset({
    "kv_heads", "ffn", "experts", "head_size", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank",
    "rope_size", "value_size", "window", "window_every", "state_heads", "expert_latent",
    "parallel_norms", "positions", "mtp", "delta_heads", "delta_key_heads", "delta_rank",
    "embed_size",
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
        if wrong := sorted(set(getattr(spec, name)) - set(PARTS)):
            known = "M (state space), * (attention), - (MLP) and E (experts)"
            yield _bad(f"{name} has '{wrong[0]}'; its letters are {known}")
    if wrong := sorted(set(spec.mixers) - set(MIXERS)):
        known = "* (attention), M (state space), B (both), D (gated delta rule), C (short convolution)"
        yield _bad(f"mixers has '{wrong[0]}'; its letters are {known} and L (lightning attention)")
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
    yield from _of_mixers(spec)
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
    has_one = spec.look.norm_last or spec.look.norm_kept or spec.parallel_norms or not spec.look.norm_first
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
    if spec.mtp and spec.embedded != spec.hidden:
        yield _bad("mtp takes embeddings as they are", "leave out mtp or embed_size")
    if spec.mtp_pattern and not spec.pattern:
        yield _bad("mtp_pattern is of models with a pattern", "leave it out, or give pattern as well")
    if spec.mtp and spec.pattern and not spec.mtp_pattern:
        hint = "give mtp_pattern as well, such as mtp_pattern=*E"
        yield _bad("nothing says what layers predict further tokens beside a pattern", hint)


def _of_pattern(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What the letters of a pattern need, and what needs them."""
    if spec.expert_latent and (not spec.experts or spec.routing != "dropless"):
        yield _bad("expert_latent is of experts with dropless routing", "give experts and routing=dropless as well")
    if "M" in spec.pattern + spec.mtp_pattern or set(spec.mixers) & set("MB"):
        yield from _of_state_spaces(spec)
    elif spec.state_heads:
        yield _bad("state_heads is of state spaces", "give pattern or mixers as well, such as pattern=M*")
    if not spec.pattern:
        return
    if not spec.look.norm_first or spec.look.norm_last or spec.post_norm or spec.parallel_norms:
        hint = f"leave out style={spec.style}, post_norm and parallel_norms"
        yield _bad("layers of a pattern are normalised before, and only there", hint)
    letters = spec.pattern + spec.mtp_pattern
    if "E" in letters and not spec.experts:
        yield _bad("pattern has layers of experts (E)", "give experts as well")
    if spec.experts and ("E" not in letters or spec.dense_layers or spec.moe_every > 1):
        yield _bad("of a pattern the layers with letter E have experts", "leave out dense_layers and moe_every")


def _of_state_spaces(spec: TransformerSpec) -> Iterable[Diagnostic]:
    if spec.heads_of_state % spec.state_groups:
        yield _bad(f"state_heads ({spec.heads_of_state}) is no multiple of state_groups ({spec.state_groups})")
    if not spec.heads_of_state:
        yield _bad(f"state_head_size ({spec.state_head_size}) is more than twice hidden ({spec.hidden})")


def _of_mixers(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """What the letters of mixers need, and what needs them."""
    if spec.mixers and (spec.pattern or spec.parallel_norms or not spec.look.causal or not spec.look.norm_first):
        hint = "leave out pattern and parallel_norms, and choose a causal style such as llama"
        yield _bad("mixers are of causal layers that normalise before each mixer and MLP", hint)
    if ("D" in spec.mixers) != bool(spec.delta_heads):
        yield _bad("delta_heads and the letter D of mixers belong together", "give both, such as mixers=DDD*")
    if spec.delta_key_heads and spec.delta_heads % spec.delta_key_heads:
        said = f"delta_heads ({spec.delta_heads}) is no multiple of delta_key_heads ({spec.delta_key_heads})"
        yield _bad(said)
    if spec.attention_gate and (spec.look.packed or spec.kv_rank or "*" not in (spec.mixers or spec.pattern or "*")):
        yield _bad("attention_gate is of attention with a matrix for queries alone", "leave it out")


def _latent(spec: TransformerSpec) -> Iterable[Diagnostic]:
    """Multi-head latent attention has sizes that belong together."""
    if not spec.kv_rank:
        if spec.q_rank or spec.rope_size or spec.value_size:
            yield _bad("q_rank, rope_size and value_size are of latent attention", "give kv_rank as well")
        return
    if STYLES[spec.style] != STYLES["llama"] or spec.attention != "fused" or spec.kv_heads or _beside_latent(spec):
        yield _bad("latent attention is of style llama, fused, with as many key heads as heads", "leave the others out")
    if not 0 < spec.rope_size < spec.width or spec.rope_size % 2:
        yield _bad(f"rope_size is {spec.rope_size}, it must be even and less than head_size ({spec.width})")


def _beside_latent(spec: TransformerSpec) -> bool:
    """Whether attention has what latent attention lacks."""
    return spec.qk_norm or spec.qk_norm_whole or spec.qkv_bias or spec.out_bias or bool(spec.parallel_norms)


def _bad(summary: str, hint: str = "") -> Diagnostic:
    return error("bad-description", f"transformer: {summary}", hint=hint)
