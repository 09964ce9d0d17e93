"""The table of Hugging Face `config.json` keys by `model_type`: what each key means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_GELU: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python", "gelu_fast")


@dataclass(frozen=True)
class Architecture:
    """What the keys of a `model_type` mean. `sizes`: field of `TransformerSpec` -> key, or keys with | between; `sums`,
    `products`: fields that several keys make together; `given`: fields that all of this kind have; `only`: key -> the
    values that are supported, the first of which is meant where the key is missing; `optional`: sizes that may be
    missing; `flags`: field -> key that turns it on; `assumed`: key -> what transformers takes where it is missing;
    `within`: longest sequence, a key, that attention in chunks sees as a whole; `tied`: whether the output matrix is
    the embedding where no key says so."""

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
_MAYBE: Final = ("kv_heads", "head_size")
_GPT2: Final = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner", "vocab": "vocab_size",
}  # fmt: skip


_AFTER_DENSE: Final = {
    **_ENCODER, "ffn": "moe_intermediate_size", "experts": "n_routed_experts", "top_k": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace", "dense_ffn": "intermediate_size",
}  # fmt: skip


def _llama(only: Mapping[str, tuple[Any, ...]] = _PLAIN, **given: Any) -> Architecture:
    return Architecture("llama", _DECODER, ("silu",), only, given, _MAYBE)


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
    "mistral": _llama(),
    "qwen2": _llama(qkv_bias=True),
    "qwen3": _llama(qk_norm=True),
    "gemma": Architecture("llama", _DECODER, _GELU, _PLAIN, {"activation": "gelu"}, _MAYBE, tied=True),
    "mixtral": Architecture(
        "llama", {**_DECODER, "experts": "num_local_experts", "top_k": "num_experts_per_tok"}, ("silu",), _PLAIN,
        {"routing": "dropless"}, _MAYBE,
    ),
    "qwen3_moe": Architecture(
        "llama",
        _ROUTED,
        ("silu",), {**_PLAIN, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
        {"routing": "dropless", "qk_norm": True}, _MAYBE,
    ),
    "qwen2_moe": Architecture(
        "llama",
        {**_ROUTED, "shared_ffn": "shared_expert_intermediate_size"},
        ("silu",),
        {**_PLAIN, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
        {"routing": "dropless", "qkv_bias": True, "shared_gate": True}, (*_MAYBE, "shared_ffn"),
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
        ("silu",), _PLAIN, {"routing": "dropless"}, _MAYBE, assumed={"interleave_moe_layer_step": 1},
        within="attention_chunk_size",
    ),
    "gemma3_text": Architecture(
        "llama", _DECODER, _GELU, {**_PLAIN, "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,)},
        {"activation": "gelu", "qk_norm": True, "post_norm": True}, _MAYBE, tied=True, activation="hidden_activation",
        assumed={
            "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "sliding_window_pattern": 6,
        },
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
    "gpt2": Architecture(
        "gpt", _GPT2, _GELU, {"add_cross_attention": (False,)}, {}, ("ffn",), tied=True, positions="n_positions",
        activation="activation_function",
    ),
    "bert": Architecture(
        "bert", _ENCODER, _GELU,
        {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}, tied=True,
    ),
}  # fmt: skip
