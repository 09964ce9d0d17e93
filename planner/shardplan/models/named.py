"""Models by name: `transformer:llama3-70b`, with any size given differently: `transformer:llama3-70b,batch=16`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.model.types import Model
from shardplan.models.spec import SIZES, TransformerSpec
from shardplan.models.transformer import build
from shardplan.units import whole_number

PREFIX: Final = "transformer:"


def _gpt(hidden: int, layers: int, heads: int, seq: int = 2048) -> TransformerSpec:
    return TransformerSpec(layers=layers, hidden=hidden, heads=heads, vocab=51200, seq=seq, style="gpt")


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq: int) -> TransformerSpec:
    return TransformerSpec(layers, hidden, heads, kv_heads, ffn, vocab, seq)


def _qwen3_moe(layers: int, hidden: int, heads: int, ffn: int) -> TransformerSpec:
    return TransformerSpec(
        layers, hidden, heads, 4, ffn, 151936, 4096, experts=128, top_k=8, head_size=128, qk_norm=True,
        routing="dropless",
    )  # fmt: skip


def _deepseek(heads: int, experts: int, dense_layers: int, vocab: int) -> TransformerSpec:
    return TransformerSpec(
        61, 7168, heads, ffn=2048, vocab=vocab, seq=4096, experts=experts, top_k=8, routing="dropless",
        shared_ffn=2048, dense_layers=dense_layers, dense_ffn=18432, head_size=192, q_rank=1536, kv_rank=512,
        rope_size=64, value_size=128,
    )  # fmt: skip


def _after_dense(
    layers: int, hidden: int, experts: int, ffn: int, dense_layers: int, dense_ffn: int, *, qk_norm: bool = False
) -> TransformerSpec:
    return TransformerSpec(
        layers, hidden, 96, 8, ffn, 151552, 4096, experts=experts, top_k=8, head_size=128, qkv_bias=True,
        qk_norm=qk_norm, routing="dropless", shared_ffn=ffn, dense_layers=dense_layers, dense_ffn=dense_ffn,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> TransformerSpec:
    return TransformerSpec(
        layers, 2880, 64, 8, 2880, 201088, 4096, experts=experts, top_k=4, head_size=64, qkv_bias=True,
        out_bias=True, routing="dropless", window=128, window_every=2,
    )  # fmt: skip


def _llama4(experts: int, moe_every: int) -> TransformerSpec:
    return TransformerSpec(
        48, 5120, 40, 8, 8192, 202048, 4096, experts=experts, top_k=1, moe_every=moe_every, head_size=128,
        routing="dropless", shared_ffn=8192, dense_ffn=16384,
    )  # fmt: skip


def _nemotron(
    hidden: int, pattern: str, *, ffn: int, shared: int, experts: int, top_k: int, state_heads: int, latent: int = 0,
    further: str = "",
) -> TransformerSpec:  # fmt: skip
    return TransformerSpec(
        len(pattern), hidden, 32, 2, ffn, 131072, 8192, experts=experts, top_k=top_k, head_size=128, style="nemotron",
        routing="dropless", shared_ffn=shared, pattern=pattern, state_heads=state_heads, state_groups=8,
        expert_latent=latent, mtp_pattern=further, mtp_shared=bool(further),
    )  # fmt: skip


NAMED: Final[dict[str, TransformerSpec]] = {
    # Llama 2 and 3, and Mixtral: published configurations; sequences of 4096 are what they are trained on at first
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 4096),
    "llama3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 4096),
    "llama3-405b": _llama(126, 16384, 128, 8, 53248, 128256, 4096),
    "mixtral-8x7b": replace(_llama(32, 4096, 32, 8, 14336, 32000, 4096), experts=8, routing="dropless"),
    # mixtures of experts of today, by index: published configurations, without what predicts further tokens
    "deepseek-v3": _deepseek(128, 256, 3, 129280),
    "kimi-k2": _deepseek(64, 384, 1, 163840),
    "qwen3-30b-a3b": _qwen3_moe(48, 2048, 32, 768),
    "qwen3-235b-a22b": _qwen3_moe(94, 4096, 64, 1536),
    "glm-4.5": _after_dense(92, 5120, 160, 1536, 3, 12288, qk_norm=True),
    "glm-4.5-air": _after_dense(46, 4096, 128, 1408, 1, 10944),
    # windows of 128, then a layer that sees all, in turn
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "llama4-scout": _llama4(16, 1),
    "llama4-maverick": _llama4(128, 2),
    # five windows of 1024, then a layer that sees all
    "gemma3-27b": TransformerSpec(
        62,
        5376,
        32,
        16,
        21504,
        262208,
        4096,
        head_size=128,
        qk_norm=True,
        window=1024,
        window_every=6,
        post_norm=True,
        head="tied",
        activation="gelu",
    ),
    # three layers of a gated delta rule, then one of attention: published configurations
    "qwen3-next-80b-a3b": TransformerSpec(
        48,
        2048,
        16,
        2,
        512,
        151936,
        4096,
        experts=512,
        top_k=10,
        head_size=256,
        style="qwen3_next",
        qk_norm=True,
        routing="dropless",
        shared_ffn=512,
        shared_gate=True,
        mixers="DDD*",
        attention_gate=True,
        delta_heads=32,
        delta_key_heads=16,
    ),
    "kimi-linear-48b-a3b": TransformerSpec(
        27,
        2304,
        32,
        ffn=1024,
        vocab=163840,
        seq=4096,
        experts=256,
        top_k=8,
        head_size=192,
        style="kimi",
        routing="dropless",
        shared_ffn=1024,
        dense_layers=1,
        dense_ffn=9216,
        kv_rank=512,
        rope_size=64,
        value_size=128,
        mixers="DDD*" * 6 + "DD*",
        delta_heads=32,
        delta_rank=128,
    ),
    # hybrids of state spaces, attention and experts: published configurations; mtp=2 is what Nemotron 3 Super trained
    "nemotron-3-nano": _nemotron(
        2688,
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        ffn=1856,
        shared=3712,
        experts=128,
        top_k=6,
        state_heads=64,
    ),
    "nemotron-3-super": _nemotron(
        4096,
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        ffn=2688,
        shared=5376,
        experts=512,
        top_k=22,
        state_heads=128,
        latent=1024,
        further="*E",
    ),
    # Megatron-LM (Narayanan et al. 2021, table 1; Korthikanti et al. 2022 for 22B)
    "gpt-1.7b": _gpt(2304, 24, 24),
    "gpt-3.6b": _gpt(3072, 30, 32),
    "gpt-7.5b": _gpt(4096, 36, 32),
    "gpt-18b": _gpt(6144, 40, 48),
    "gpt-22b": _gpt(6144, 48, 64),
    "gpt-39b": _gpt(8192, 48, 64),
    "gpt-76b": _gpt(10240, 60, 80),
    "gpt-145b": _gpt(12288, 80, 96),
    "gpt-175b": _gpt(12288, 96, 96),
    "gpt-310b": _gpt(16384, 96, 128),
    "gpt-530b": _gpt(20480, 105, 128),
    "gpt-1t": _gpt(25600, 128, 160),
    # Alpa (Zheng et al. 2022, table 4)
    "alpa-350m": _gpt(1024, 24, 16, 1024),
    "alpa-1.3b": _gpt(2048, 24, 32, 1024),
    "alpa-2.6b": _gpt(2560, 32, 32, 1024),
    "alpa-6.7b": _gpt(4096, 32, 32, 1024),
    "alpa-15b": _gpt(5120, 48, 40, 1024),
    "alpa-39b": _gpt(8192, 48, 64, 1024),
    # encoders
    "bert-base": TransformerSpec(layers=12, hidden=768, heads=12, vocab=30522, seq=512, style="bert"),
    "bert-large": TransformerSpec(layers=24, hidden=1024, heads=16, vocab=30522, seq=512, style="bert"),
}


def described(text: str, dims: Mapping[str, int] | None = None) -> Model:
    """The model that `transformer:NAME,SIZE=N,...` describes; NAME may be left out. `dims` win over the text.

    Raises `ShardplanError` with every word that is no name and no size.
    """
    spec, problems = _read(text)
    given: dict[str, object] = {}
    for name, size in sorted((dims or {}).items()):
        if name in SIZES:
            given[name] = size
        else:
            problems.append(_unknown_size(name))
    if problems:
        raise ShardplanError(*problems)
    return build(replace(spec, **given), title_of(text))  # type: ignore[arg-type]


def title_of(text: str) -> str:
    """A name for the described model that can be part of a file name: `llama3-70b`, `transformer`."""
    first = text.removeprefix(PREFIX).split(",")[0].strip()
    return first if first in NAMED else "transformer"


def size_in(text: str, name: str) -> object:
    """What a description says of a size; `None` if it says nothing."""
    words = (word.partition("=") for word in text.removeprefix(PREFIX).split(","))
    return next((_value(name, value.strip()) for word, _, value in words if word.strip() == name), None)


def _read(text: str) -> tuple[TransformerSpec, list[Diagnostic]]:
    spec, problems = TransformerSpec(), list[Diagnostic]()
    given: dict[str, object] = {}
    for place, word in enumerate(text.removeprefix(PREFIX).split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals and place == 0:
            if name in NAMED:
                spec = NAMED[name]
            elif name:
                problems.append(_unknown_name(name))
        elif name not in _KINDS:
            problems.append(_unknown_size(name))
        elif name in given:
            problems.append(error("bad-description", f"transformer: '{name}' is given twice"))
        elif (read := _value(name, value)) is None:
            problems.append(_unlike(word.strip(), name, value))
        else:
            given[name] = read
    return replace(spec, **given), problems  # type: ignore[arg-type]


def _value(name: str, text: str) -> object:
    """What a word gives a field; `None` when it is of the wrong kind."""
    if _KINDS[name] == "N":
        return whole_number(text) if text.isascii() else None
    if _KINDS[name] == "true|false":
        return {"true": True, "false": False}.get(text)
    if _KINDS[name] == "NUMBER":
        try:
            return float(text)
        except ValueError:
            return None
    return text or None


_KINDS: Final[dict[str, str]] = {
    field.name: {"int": "N", "bool": "true|false", "float": "NUMBER"}.get(str(field.type), "WORD")
    for field in fields(TransformerSpec)
}


def _unlike(word: str, name: str, value: str) -> Diagnostic:
    """A word whose value is of another kind than its field, or out of its range."""
    if _KINDS[name] == "N" and value.removeprefix("-").isdecimal():
        summary = f"transformer: '{word}': {name} is a whole number without a sign, of at most 18 digits"
        return error("bad-description", summary)
    return error("bad-description", f"transformer: '{word}' should be {name}={_KINDS[name]}")


def _unknown_name(name: str) -> Diagnostic:
    hint = did_you_mean(name, NAMED) or f"names: {', '.join(NAMED)}; or sizes, such as transformer:layers=12,hidden=768"
    return error("unknown-model", f"there is no transformer called '{name}'", hint=hint)


def _unknown_size(name: str) -> Diagnostic:
    hint = did_you_mean(name, _KINDS) or f"sizes: {', '.join(_KINDS)}"
    return error("bad-description", f"transformer: '{name}' is no size of a transformer", hint=hint)
