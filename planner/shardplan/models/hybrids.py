"""Rows of the table of architectures: state spaces, gated delta rules and short convolutions, alone and beside
attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardplan.models.architecture import (
    ALL_BIASES,
    BIASES,
    DECODER,
    MAYBE,
    PLAIN,
    Architecture,
    decoder,
    qwen_experts,
)

_STATES: Final = {
    "state_heads": "mamba_n_heads", "state_head_size": "mamba_d_head", "state_size": "mamba_d_state",
    "state_groups": "mamba_n_groups", "conv_size": "mamba_d_conv",
}  # fmt: skip
_DELTA: Final = {
    "delta_heads": "linear_num_value_heads", "delta_key_heads": "linear_num_key_heads",
    "delta_key_size": "linear_key_head_dim", "delta_value_size": "linear_value_head_dim",
    "conv_size": "linear_conv_kernel_dim",
}  # fmt: skip
_STATE_FLAGS: Final = {**ALL_BIASES, "conv_bias": "mamba_conv_bias"}
_QWEN: Final = decoder(
    sizes={**DECODER, **_DELTA}, flags=BIASES, given={"qk_norm": True, "attention_gate": True}, mixer="D",
    assumed={"full_attention_interval": 4},
)  # fmt: skip
_ROUTED: Final = qwen_experts(
    "all", given={**_QWEN.given, "routing": "dropless", "shared_gate": True}, assumed=_QWEN.assumed, mixer="D",
)  # fmt: skip
_QWEN_EXPERTS: Final = replace(_ROUTED, sizes={**_ROUTED.sizes, **_DELTA})
_GRANITE: Final = decoder(
    style="granite_hybrid", sizes={**DECODER, **_STATES, "ffn": "shared_intermediate_size"}, mixer="M",
    flags={**BIASES, "conv_bias": "mamba_conv_bias"}, assumed={"mamba_conv_bias": True, "attn_layer_indices": None},
    only={"mamba_proj_bias": (False,)},
)  # fmt: skip
_GRANITE_EXPERTS: Final = replace(
    _GRANITE, given={"routing": "dropless"},
    sizes={
        **_GRANITE.sizes, "ffn": "intermediate_size", "shared_ffn": "shared_intermediate_size",
        "experts": "num_local_experts", "top_k": "num_experts_per_tok",
    },
)  # fmt: skip
_LFM2: Final = Architecture(
    "lfm2", {**DECODER, "ffn": "block_ff_dim|intermediate_size", "conv_size": "conv_L_cache"}, ("silu",),
    {"conv_bias": (False,)}, {"qk_norm": True}, MAYBE, tied=True, mixer="C",
)  # fmt: skip
HYBRIDS: Final[dict[str, Architecture]] = {
    "qwen3_next": replace(_QWEN_EXPERTS, style="qwen3_next"),
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": _QWEN_EXPERTS,
    "olmo_hybrid": replace(_QWEN, style="olmo_hybrid", given={"qk_norm_whole": True}),
    "minimax": decoder(
        style="minimax", sizes={**DECODER, "experts": "num_local_experts|num_experts", "top_k": "num_experts_per_tok"},
        flags={}, given={"routing": "dropless"}, mixer="L",
    ),
    "kimi_linear": Architecture(
        "kimi",
        {
            "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
            "vocab": "vocab_size", "ffn": "moe_intermediate_size", "experts": "num_experts|num_local_experts",
            "top_k": "num_experts_per_token|num_experts_per_tok", "dense_layers": "first_k_dense_replace",
            "dense_ffn": "intermediate_size", "q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank",
            "rope_size": "qk_rope_head_dim", "value_size": "v_head_dim",
            "delta_heads": "linear_num_heads|linear_attn_config.num_heads",
            "delta_key_size": "linear_head_dim|linear_attn_config.head_dim",
            "delta_value_size": "linear_head_dim|linear_attn_config.head_dim",
            "delta_rank": "linear_head_dim|linear_attn_config.head_dim",
            "conv_size": "linear_conv_kernel_dim|linear_attn_config.short_conv_kernel_size",
        },
        ("silu",), {"attention_bias": (False,)}, {"routing": "dropless"}, ("q_rank",),
        sums={"head_size": ("qk_nope_head_dim", "qk_rope_head_dim")}, assumed={"first_k_dense_replace": 1},
        products={"shared_ffn": ("num_shared_experts", "moe_intermediate_size")}, mixer="D",
    ),
    "bamba": decoder(
        style="bamba", sizes={**DECODER, **_STATES}, flags=_STATE_FLAGS, only={"mamba_proj_bias": (False,)}, mixer="M",
        assumed={"mamba_conv_bias": True, "attn_layer_indices": None},
    ),
    "granitemoehybrid": replace(_GRANITE, instead={"num_local_experts": _GRANITE_EXPERTS}),
    "falcon_h1": decoder(
        style="bamba", sizes={**DECODER, **_STATES}, given={"mixers": "B"},
        flags={**_STATE_FLAGS, "state_norm": "mamba_rms_norm"}, assumed={"mamba_conv_bias": True},
        only={"mamba_proj_bias": (False,), "projectors_bias": (False,)},
    ),
    "lfm2": replace(_LFM2, adjusted=True),
    "lfm2_moe": replace(
        _LFM2, given={**_LFM2.given, "routing": "dropless"},
        sizes={
            **_LFM2.sizes, "ffn": "moe_intermediate_size", "dense_ffn": "intermediate_size",
            "dense_layers": "num_dense_layers", "experts": "num_experts", "top_k": "num_experts_per_tok",
        },
    ),
    "nemotron_h": Architecture(
        "nemotron",
        {
            "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
            "head_size": "head_dim|attention_head_dim", "vocab": "vocab_size", "dense_ffn": "intermediate_size",
            "ffn": "moe_intermediate_size", "experts": "n_routed_experts", "top_k": "num_experts_per_tok",
            "shared_ffn": "moe_shared_expert_intermediate_size", "expert_latent": "moe_latent_size",
            "state_heads": "mamba_num_heads", "state_head_size": "mamba_head_dim", "state_size": "ssm_state_size",
            "state_groups": "n_groups|mamba_n_groups", "conv_size": "conv_kernel|mamba_d_conv",
        },
        ("relu2",),
        {
            **PLAIN, "use_bias": (False,), "mamba_proj_bias": (False,), "use_conv_bias": (True,),
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
}  # fmt: skip
