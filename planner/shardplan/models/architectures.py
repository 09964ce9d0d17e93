"""The table of Hugging Face `config.json` keys by `model_type`: what each key means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

_GELU: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python", "gelu_fast")


@dataclass(frozen=True)
class Architecture:
    """What the keys of a `model_type` mean. `sizes`: field of `TransformerSpec` -> key, or keys with | between; `sums`,
    `products`: fields that several keys make together; `given`: fields that all of this kind have; `only`: key -> the
    values that are supported, the first of which is meant where the key is missing; `optional`: sizes that may be
    missing; `flags`: field -> key that turns it on; `assumed`: key -> what transformers takes where it is missing;
    `within`: longest sequence, a key, that attention in chunks sees as a whole; `tied`: whether the output matrix is
    the embedding where no key says so; `cases`: key -> the fields that true and false come to; `windowed`: which layers
    have a sliding window where no list says it; `routed`, `unrouted`: keys that list layers with experts, and without;
    `spare`: rows that a table of positions has beyond the longest sequence; `same`: keys that must be equal; `instead`:
    key -> the row that holds where it is true.

    Factors by which values are multiplied (Granite, Gemma's embedding), caps of scores, parts of heads that are not
    rotated and rotations that some layers lack change no matrix product, and are left out."""

    style: str
    sizes: Mapping[str, str]
    activations: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    tied: bool = False
    positions: str = "max_position_embeddings"
    activation: str = "hidden_act"
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    within: str = ""
    cases: Mapping[str, Mapping[bool, Mapping[str, Any]]] = field(default_factory=dict)
    windowed: Literal["all", "after max_window_layers", "every second before max_window_layers"] = "all"
    routed: str = ""
    unrouted: str = ""
    spare: int = 0
    same: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Architecture] = field(default_factory=dict)


_ENCODER: Final = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip
_DECODER: Final = {**_ENCODER, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}
_ROUTED: Final = {
    **_DECODER, "ffn": "moe_intermediate_size", "experts": "num_experts|num_local_experts",
    "top_k": "num_experts_per_tok",
}  # fmt: skip
_PLAIN: Final = {"attention_bias": (False,), "mlp_bias": (False,)}
_BIASES: Final = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_ALL_BIASES: Final = {**_BIASES, "mlp_bias": "mlp_bias"}
_QWEN: Final = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_MAYBE: Final = ("kv_heads", "head_size")
_GPT2: Final = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner", "vocab": "vocab_size",
}  # fmt: skip


_AFTER_DENSE: Final = {
    **_ENCODER, "ffn": "moe_intermediate_size", "experts": "n_routed_experts", "top_k": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace", "dense_ffn": "intermediate_size",
}  # fmt: skip


def _llama(**more: Any) -> Architecture:
    """A plain decoder: gated MLPs, rotated positions."""
    return Architecture(**{
        "style": "llama", "sizes": _DECODER, "activations": ("silu",), "optional": _MAYBE, "flags": _ALL_BIASES, **more,
    })  # fmt: skip


def _qwen_experts(windowed: str, **more: Any) -> Architecture:
    sizes = {
        **_ROUTED, "dense_ffn": "intermediate_size", "moe_every": "decoder_sparse_step",
        "shared_ffn": "shared_expert_intermediate_size",
    }  # fmt: skip
    return _llama(**{
        "sizes": sizes, "optional": (*_MAYBE, "dense_ffn", "moe_every", "shared_ffn"), "unrouted": "mlp_only_layers",
        "flags": _BIASES, "assumed": _QWEN, "windowed": windowed, **more,
    })  # fmt: skip


def _gpt(style: str, sizes: Mapping[str, str], **more: Any) -> Architecture:
    """A decoder whose MLPs have no gates."""
    return Architecture(style, sizes, **{"activations": _GELU, "optional": ("ffn", *_MAYBE), **more})


_AFTER: Final = "after max_window_layers"
_QWEN2: Final = _llama(given={"qkv_bias": True}, flags={}, only=_PLAIN, assumed=_QWEN, windowed=_AFTER)
_QWEN3: Final = _llama(given={"qk_norm": True}, flags=_BIASES, assumed=_QWEN, windowed=_AFTER)
_OLMO2: Final = _llama(style="olmo2", given={"qk_norm_whole": True}, flags=_BIASES)
_GLM: Final = _llama(style="glm", flags={"qkv_bias": "attention_bias"}, assumed={"attention_bias": True})
_GEMMA2: Final = _llama(
    style="gemma",
    activations=_GELU, activation="hidden_activation", tied=True,
    given={"activation": "gelu", "post_norm": True}, flags={**_BIASES, "logit_cap": "final_logit_softcapping"},
    assumed={"sliding_window": 4096, "sliding_window_pattern": 2, "final_logit_softcapping": 30.0, "head_dim": 256},
)  # fmt: skip
_EXPERTS: Final = {**_DECODER, "experts": "num_local_experts|num_experts", "top_k": "num_experts_per_tok"}
_FALCON: Final = _gpt(
    "falcon",
    {
        "layers": "num_hidden_layers|n_layer", "hidden": "hidden_size", "heads": "num_attention_heads|n_head",
        "ffn": "ffn_hidden_size", "vocab": "vocab_size",
    },
    only={"bias": (False,), "alibi": (False,), "parallel_attn": (True,)}, given={"parallel_norms": 1}, tied=True,
    activation="activation", assumed={"multi_query": True},
    cases={"multi_query": {True: {"kv_heads": 1}, False: {}}},
)  # fmt: skip
_LARGE_FALCON: Final = replace(
    _FALCON, style="large_falcon", sizes={**_FALCON.sizes, "kv_heads": "num_kv_heads|n_head_kv"}, cases={},
    only={**_FALCON.only, "num_ln_in_parallel_attn": (2, None)}, given={"parallel_norms": 2},
)  # fmt: skip
_DEEPSEEK: Final = Architecture(
    "llama",
    {
        **_AFTER_DENSE, "q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "rope_size": "qk_rope_head_dim",
        "value_size": "v_head_dim",
    },
    ("silu",), {**_PLAIN, "moe_layer_freq": (1,)}, {"routing": "dropless"}, ("q_rank",),
    sums={"head_size": ("qk_nope_head_dim", "qk_rope_head_dim")},
    products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")},
)  # fmt: skip
ARCHITECTURES: Final[dict[str, Architecture]] = {
    "llama": _llama(),
    "mistral": _llama(flags={}, only=_PLAIN),
    "ministral": _llama(flags={}, only=_PLAIN),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _llama(given={"qk_norm": True}, flags=_BIASES),
    "gemma": _llama(activations=_GELU, given={"activation": "gelu"}, flags=_BIASES, tied=True),
    "gemma2": _GEMMA2,
    "phi3": _llama(style="phi3", flags={}, only=_PLAIN),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, assumed={"sliding_window": 4096, "sliding_window_pattern": 4}),
    "glm": _GLM,
    "glm4": replace(_GLM, given={"post_norm": True}),
    "exaone4": _llama(
        style="olmo2", given={"qk_norm": True}, flags={},
        assumed={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "seed_oss": _llama(
        flags={"qkv_bias": "attention_bias", "out_bias": "attention_out_bias", "mlp_bias": "mlp_bias"},
        assumed={"attention_bias": True},
    ),
    "ernie4_5": _llama(flags=dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias"), tied=True),
    "hunyuan_v1_dense": _llama(style="hunyuan", given={"qk_norm": True}, flags=_BIASES),
    "arcee": _llama(style="arcee", activations=("relu2",)),
    "granite": _llama(),
    "smollm3": _llama(tied=True, assumed={"use_sliding_window": False}),
    "stablelm": _llama(
        style="stablelm", flags={"qkv_bias": "use_qkv_bias", "qk_norm": "qk_layernorm"},
        cases={"use_parallel_residual": {True: {"parallel_norms": 1}, False: {}}},
    ),
    "cohere": _llama(
        style="cohere", given={"parallel_norms": 1}, flags={**_BIASES, "qk_norm": "use_qk_norm"}, tied=True,
    ),
    "cohere2": _llama(
        style="cohere", given={"parallel_norms": 1}, flags=_BIASES, tied=True,
        assumed={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "nemotron": _gpt(
        "nemotron4", _DECODER, activations=("relu2",), flags=_ALL_BIASES,
    ),
    "starcoder2": _gpt("starcoder2", _DECODER, only={"use_bias": (True,)}, tied=True),
    "phi": _gpt("phi", _DECODER, only={"qk_layernorm": (False,)}, given={"parallel_norms": 1}),
    "gpt_bigcode": _gpt(
        "bigcode", _GPT2, positions="n_positions", activation="activation_function", tied=True,
        only={"add_cross_attention": (False,), "multi_query": (True,)}, given={"kv_heads": 1},
    ),
    "gptj": _gpt(
        "gptj", _GPT2, given={"parallel_norms": 1, "mlp_bias": True}, positions="n_positions",
        activation="activation_function",
    ),
    "codegen": _gpt(
        "codegen", _GPT2, given={"parallel_norms": 1, "mlp_bias": True}, positions="n_positions",
        activation="activation_function",
    ),
    "gpt_neox": _gpt(
        "neox", _ENCODER, only={"attention_bias": (True,)}, assumed={"use_parallel_residual": True},
        cases={"use_parallel_residual": {True: {"parallel_norms": 2}, False: {}}},
    ),
    "bloom": _gpt(
        "bloom", {"layers": "n_layer|num_hidden_layers", "hidden": "hidden_size|n_embed",
                  "heads": "n_head|num_attention_heads", "vocab": "vocab_size"},
        only={"apply_residual_connection_post_layernorm": (False,)}, tied=True, positions="seq_length",
    ),
    "opt": _gpt(
        "opt", {**_ENCODER, "ffn": "ffn_dim"}, activations=("relu",), activation="activation_function", tied=True,
        only={"do_layer_norm_before": (True,), "enable_bias": (True,), "layer_norm_elementwise_affine": (True,),
              "_remove_final_layer_norm": (False,)},
        same={"word_embed_proj_dim": "hidden_size"}, spare=2,
    ),
    "mpt": _gpt(
        "mpt", {"layers": "n_layers", "hidden": "d_model", "heads": "n_heads", "vocab": "vocab_size"},
        only={"no_bias": (True,), "expansion_ratio": (4,)}, tied=True, positions="max_seq_len",
    ),
    "falcon": replace(_FALCON, instead={"new_decoder_architecture": _LARGE_FALCON}),
    "mixtral": _llama(sizes=_EXPERTS, flags={}, only=_PLAIN, given={"routing": "dropless"}),
    "qwen3_moe": _qwen_experts("all", given={"routing": "dropless", "qk_norm": True}),
    "qwen3_vl_moe_text": _qwen_experts("all", given={"routing": "dropless", "qk_norm": True}),
    "qwen2_moe": _qwen_experts(
        "every second before max_window_layers", given={"routing": "dropless", "shared_gate": True},
        flags={"qkv_bias": "qkv_bias"}, only=_PLAIN, assumed={**_QWEN, "qkv_bias": True},
    ),
    "olmoe": _llama(sizes=_EXPERTS, flags=_BIASES, given={"routing": "dropless", "qk_norm_whole": True}),
    "granitemoe": _llama(sizes=_EXPERTS, flags=_BIASES, given={"routing": "dropless"}),
    "granitemoeshared": _llama(
        sizes={**_EXPERTS, "shared_ffn": "shared_intermediate_size"}, flags=_BIASES, given={"routing": "dropless"},
    ),
    "minimax_m2": _llama(
        sizes=_EXPERTS, flags={}, only=_PLAIN, given={"routing": "dropless"}, assumed={"use_qk_norm": True},
        cases={"use_qk_norm": {True: {"qk_norm_whole": True}, False: {}}},
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": Architecture(
        "llama", {**_AFTER_DENSE, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}, ("silu",),
        {"mlp_bias": (False,)}, {"routing": "dropless"}, _MAYBE,
        products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")},
        flags={"qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"},
    ),
    "dots1": Architecture(
        "llama", {**_AFTER_DENSE, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}, ("silu",), {},
        {"routing": "dropless", "qk_norm": True}, _MAYBE, flags=_BIASES, windowed=_AFTER,
        products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")}, assumed={"max_window_layers": 62},
    ),
    "gpt_oss": Architecture(
        "llama", {**_ROUTED, "ffn": "intermediate_size"}, ("silu",), {"attention_bias": (True,)},
        {"routing": "dropless", "qkv_bias": True}, _MAYBE,
    ),
    "llama4_text": Architecture(
        "llama",
        {
            **_ROUTED, "ffn": "intermediate_size", "shared_ffn": "intermediate_size",
            "dense_ffn": "intermediate_size_mlp", "moe_every": "interleave_moe_layer_step",
        },
        ("silu",), {}, {"routing": "dropless"}, _MAYBE, assumed={"interleave_moe_layer_step": 1},
        within="attention_chunk_size", flags=_BIASES, routed="moe_layers",
    ),
    "gemma3_text": Architecture(
        "gemma", _DECODER, _GELU, {},
        {"activation": "gelu", "qk_norm": True, "post_norm": True}, _MAYBE, tied=True, activation="hidden_activation",
        assumed={
            "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "sliding_window_pattern": 6,
        },
        flags={**_BIASES, "logit_cap": "final_logit_softcapping"},
    ),
    "nemotron_h": Architecture(
        "nemotron",
        {
            "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
            "head_size": "head_dim", "vocab": "vocab_size", "dense_ffn": "intermediate_size",
            "ffn": "moe_intermediate_size", "experts": "n_routed_experts", "top_k": "num_experts_per_tok",
            "shared_ffn": "moe_shared_expert_intermediate_size", "expert_latent": "moe_latent_size",
            "state_heads": "mamba_num_heads", "state_head_size": "mamba_head_dim", "state_size": "ssm_state_size",
            "state_groups": "n_groups|mamba_n_groups", "conv_size": "conv_kernel|mamba_d_conv",
        },
        ("relu2",),
        {
            **_PLAIN, "use_bias": (False,), "mamba_proj_bias": (False,), "use_conv_bias": (True,),
            "mamba_hidden_act": ("silu",), "n_shared_experts": (1, 0),
        },
        {"routing": "dropless"}, ("ffn", "experts", "top_k", "shared_ffn", "expert_latent"),
        activation="mlp_hidden_act",
    ),
    "mamba2": Architecture(
        "nemotron",
        {
            "layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size", "state_heads": "num_heads",
            "state_head_size": "head_dim", "state_size": "state_size", "state_groups": "n_groups",
            "conv_size": "conv_kernel",
        },
        ("silu",), {"use_bias": (False,), "use_conv_bias": (True,)}, {"pattern": "M", "heads": 1},
    ),
    "gpt2": Architecture(
        "gpt", _GPT2, _GELU, {"add_cross_attention": (False,)}, {}, ("ffn",), tied=True, positions="n_positions",
        activation="activation_function",
    ),
    "bert": Architecture(
        "bert", _ENCODER, _GELU,
        {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}, tied=True,
    ),
}  # fmt: skip
FLAT: Final = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Models that see as well, published with the keys of the text part beside the others -> that part."""
MISSING: Final = {
    "mamba": "the selective scan of Mamba-1",
    "falcon_mamba": "the selective scan of Mamba-1",
    "jamba": "the selective scan of Mamba-1",
    "falcon_h1": "attention and a state space that see the same input",
    "deepseek_v32": "the indexer that chooses the tokens which attention sees",
    "glm_moe_dsa": "the indexer that chooses the tokens which attention sees",
    "qwen3_next": "gated delta rules (Gated DeltaNet)",
    "qwen3_5_text": "gated delta rules (Gated DeltaNet)",
    "qwen3_5_moe_text": "gated delta rules (Gated DeltaNet)",
    "kimi_linear": "gated delta rules (Kimi Delta Attention)",
}
"""Architectures with a mechanism that descriptions lack."""
