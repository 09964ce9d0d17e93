"""The table of Hugging Face `config.json` keys by `model_type`: what each key means."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardplan.models.architecture import (
    AFTER_DENSE,
    ALL_BIASES,
    BIASES,
    DECODER,
    ENCODER,
    GELU,
    GPT2,
    MAYBE,
    PLAIN,
    QWEN,
    ROUTED,
    Architecture,
    decoder,
    qwen_experts,
    ungated,
)
from shardplan.models.hybrids import HYBRIDS

_AFTER: Final = "after max_window_layers"
_QWEN2: Final = decoder(given={"qkv_bias": True}, flags={}, only=PLAIN, assumed=QWEN, windowed=_AFTER)
_QWEN3: Final = decoder(given={"qk_norm": True}, flags=BIASES, assumed=QWEN, windowed=_AFTER)
_OLMO2: Final = decoder(style="olmo2", given={"qk_norm_whole": True}, flags=BIASES)
_GLM: Final = decoder(style="glm", flags={"qkv_bias": "attention_bias"}, assumed={"attention_bias": True})
_GEMMA2: Final = decoder(
    style="gemma",
    activations=GELU, activation="hidden_activation", tied=True,
    given={"activation": "gelu", "post_norm": True}, flags={**BIASES, "logit_cap": "final_logit_softcapping"},
    assumed={"sliding_window": 4096, "sliding_window_pattern": 2, "final_logit_softcapping": 30.0, "head_dim": 256},
)  # fmt: skip
_EXPERTS: Final = {**DECODER, "experts": "num_local_experts|num_experts", "top_k": "num_experts_per_tok"}
_FALCON: Final = ungated(
    "falcon",
    {
        "layers": "num_hidden_layers|n_layer", "hidden": "hidden_size", "heads": "num_attention_heads|n_head",
        "ffn": "ffn_hidden_size", "vocab": "vocab_size",
    },
    flags=dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "bias"), tied=True, activation="activation",
    assumed={"multi_query": True, "parallel_attn": True},
    cases={
        "multi_query": {True: {"kv_heads": 1}, False: {}}, "parallel_attn": {True: {"parallel_norms": 1}, False: {}},
        "alibi": {True: {"style": "falcon_rw"}, False: {}},
    },
)  # fmt: skip
_LARGE_FALCON: Final = replace(
    _FALCON, sizes={**_FALCON.sizes, "kv_heads": "num_kv_heads|n_head_kv"},
    only={"alibi": (False,), "parallel_attn": (True,), "num_ln_in_parallel_attn": (2, None, 1)},
    cases={
        "num_ln_in_parallel_attn": {
            1: {"parallel_norms": 1}, 2: {"style": "large_falcon", "parallel_norms": 2},
            False: {"style": "large_falcon", "parallel_norms": 2},
        },
    },
)  # fmt: skip
_DEEPSEEK: Final = Architecture(
    "llama",
    {
        **AFTER_DENSE, "q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "rope_size": "qk_rope_head_dim",
        "value_size": "v_head_dim",
    },
    ("silu",), {**PLAIN, "moe_layer_freq": (1,)}, {"routing": "dropless"}, ("q_rank",),
    sums={"head_size": ("qk_nope_head_dim", "qk_rope_head_dim")},
    products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")},
)  # fmt: skip
_LATENT: Final = decoder(
    sizes={
        **ENCODER, "q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "rope_size": "qk_rope_head_dim",
        "value_size": "v_head_dim",
    },
    only=PLAIN, flags={}, optional=("q_rank",), sums={"head_size": ("qk_nope_head_dim", "qk_rope_head_dim")}, tied=True,
)  # fmt: skip
_ROBERTA: Final = Architecture(
    "roberta", ENCODER, GELU, {"is_decoder": (False,), "add_cross_attention": (False,)}, tied=True,
)  # fmt: skip
ARCHITECTURES: Final[dict[str, Architecture]] = {
    "llama": decoder(),
    "mistral": decoder(flags={}, only=PLAIN),
    "ministral": decoder(flags={}, only=PLAIN),
    "ministral3": decoder(flags={}, only=PLAIN),
    "helium": decoder(),
    "cwm": decoder(flags={}, only=PLAIN),
    "exaone": decoder(sizes={**DECODER, "layers": "num_hidden_layers|num_layers"}, activation="activation_function"),
    "olmo": decoder(style="olmo", flags=BIASES),
    "nanochat": decoder(
        style="nanochat", activations=("relu2",), flags={**BIASES, "logit_cap": "final_logit_softcapping"},
        given={"qk_norm": True}, assumed={"final_logit_softcapping": 15.0},
    ),
    "minicpm3": _LATENT,
    "youtu": _LATENT,
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": decoder(given={"qk_norm": True}, flags=BIASES),
    "gemma": decoder(activations=GELU, given={"activation": "gelu"}, flags=BIASES, tied=True),
    "gemma2": _GEMMA2,
    "vaultgemma": replace(_GEMMA2, given={"activation": "gelu"}),
    "phi3": decoder(style="phi3", flags={}, only=PLAIN),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, assumed={"sliding_window": 4096, "sliding_window_pattern": 4}),
    "glm": _GLM,
    "glm4": replace(_GLM, given={"post_norm": True}),
    "exaone4": decoder(
        style="olmo2", given={"qk_norm": True}, flags={},
        assumed={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "seed_oss": decoder(
        flags={"qkv_bias": "attention_bias", "out_bias": "attention_out_bias", "mlp_bias": "mlp_bias"},
        assumed={"attention_bias": True},
    ),
    "ernie4_5": decoder(flags=dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias"), tied=True),
    "hunyuan_v1_dense": decoder(style="hunyuan", given={"qk_norm": True}, flags=BIASES),
    "arcee": decoder(style="arcee", activations=("relu2",)),
    "apertus": decoder(style="apertus", activations=("xielu",), given={"qk_norm": True}, flags=BIASES),
    "granite": decoder(),
    "smollm3": decoder(tied=True, assumed={"use_sliding_window": False}),
    "stablelm": decoder(
        style="stablelm", flags={"qkv_bias": "use_qkv_bias", "qk_norm": "qk_layernorm"},
        cases={"use_parallel_residual": {True: {"parallel_norms": 1}, False: {}}},
    ),
    "cohere": decoder(
        style="cohere", given={"parallel_norms": 1}, flags={**BIASES, "qk_norm": "use_qk_norm"}, tied=True,
    ),
    "cohere2": decoder(
        style="cohere", given={"parallel_norms": 1}, flags=BIASES, tied=True,
        assumed={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "nemotron": ungated(
        "nemotron4", DECODER, activations=("relu2",), flags=ALL_BIASES,
    ),
    "starcoder2": ungated("starcoder2", DECODER, only={"use_bias": (True,)}, tied=True),
    "phi": ungated("phi", DECODER, only={"qk_layernorm": (False,)}, given={"parallel_norms": 1}),
    "gpt_bigcode": ungated(
        "bigcode", GPT2, positions="n_positions", activation="activation_function", tied=True,
        only={"add_cross_attention": (False,), "multi_query": (True,)}, given={"kv_heads": 1},
    ),
    "gptj": ungated(
        "gptj", GPT2, given={"parallel_norms": 1, "mlp_bias": True}, positions="n_positions",
        activation="activation_function",
    ),
    "codegen": ungated(
        "codegen", GPT2, given={"parallel_norms": 1, "mlp_bias": True}, positions="n_positions",
        activation="activation_function",
    ),
    "gpt_neox": ungated(
        "neox", ENCODER, only={"attention_bias": (True,)}, assumed={"use_parallel_residual": True},
        cases={"use_parallel_residual": {True: {"parallel_norms": 2}, False: {}}},
    ),
    "bloom": ungated(
        "bloom", {"layers": "n_layer|num_hidden_layers", "hidden": "hidden_size|n_embed",
                  "heads": "n_head|num_attention_heads", "vocab": "vocab_size"},
        only={"apply_residual_connection_post_layernorm": (False,)}, tied=True, positions="seq_length",
    ),
    "gpt_neo": ungated(
        "gpt_neo", {"layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads", "ffn": "intermediate_size",
                    "vocab": "vocab_size"},
        tied=True, activation="activation_function", given={"out_bias": True, "mlp_bias": True},
        assumed={"window_size": 256},
    ),
    "biogpt": ungated("biogpt", ENCODER, tied=True, spare=2),
    "xglm": ungated(
        "xglm", {"layers": "num_layers", "hidden": "d_model", "heads": "attention_heads", "ffn": "ffn_dim",
                 "vocab": "vocab_size"},
        tied=True, activation="activation_function", only={"add_cross_attention": (False,)},
    ),
    "opt": ungated(
        "opt", {**ENCODER, "ffn": "ffn_dim", "embed_size": "word_embed_proj_dim"}, activations=("relu",),
        activation="activation_function", tied=True, optional=("ffn", "embed_size"),
        only={"enable_bias": (True,), "layer_norm_elementwise_affine": (True,), "_remove_final_layer_norm": (False,)},
        assumed={"do_layer_norm_before": True},
        cases={"do_layer_norm_before": {True: {}, False: {"style": "opt_post"}}}, spare=2,
    ),
    "mpt": ungated(
        "mpt", {"layers": "n_layers", "hidden": "d_model", "heads": "n_heads", "vocab": "vocab_size"},
        only={"no_bias": (True,), "expansion_ratio": (4,)}, tied=True, positions="max_seq_len",
    ),
    "falcon": replace(_FALCON, instead={"new_decoder_architecture": _LARGE_FALCON}),
    "mixtral": decoder(sizes=_EXPERTS, flags={}, only=PLAIN, given={"routing": "dropless"}),
    "qwen3_moe": qwen_experts("all", given={"routing": "dropless", "qk_norm": True}),
    "qwen3_vl_moe_text": qwen_experts("all", given={"routing": "dropless", "qk_norm": True}),
    "qwen2_moe": qwen_experts(
        "every second before max_window_layers", given={"routing": "dropless", "shared_gate": True},
        flags={"qkv_bias": "qkv_bias"}, only=PLAIN, assumed={**QWEN, "qkv_bias": True},
    ),
    "dbrx": decoder(
        style="dbrx",
        sizes={
            "layers": "n_layers", "hidden": "d_model", "heads": "n_heads", "kv_heads": "attn_config.kv_n_heads",
            "vocab": "vocab_size", "ffn": "ffn_config.ffn_hidden_size", "experts": "ffn_config.moe_num_experts",
            "top_k": "ffn_config.moe_top_k",
        },
        activations=({"name": "silu"}, None), activation="ffn_config.ffn_act_fn", flags={}, positions="max_seq_len",
        given={"routing": "dropless"}, same={"ffn_config.hidden_size": "d_model"},
    ),
    "hunyuan_v1_moe": decoder(
        style="hunyuan",
        sizes={
            **DECODER, "experts": "num_experts|num_local_experts", "top_k": "moe_topk|num_experts_per_tok",
            "shared_ffn": "intermediate_size",
        },
        given={"qk_norm": True, "routing": "dropless"}, flags=BIASES,
    ),
    "afmoe": decoder(
        style="afmoe",
        sizes={**ROUTED, "dense_layers": "num_dense_layers", "dense_ffn": "intermediate_size"}, flags=BIASES,
        given={"routing": "dropless", "qk_norm": True, "post_norm": True, "attention_gate": True},
        products={"shared_ffn": ("num_shared_experts", "moe_intermediate_size")},
        assumed={"global_attn_every_n_layers": 4, "sliding_window": 1024, "num_dense_layers": 1},
    ),
    "olmoe": decoder(sizes=_EXPERTS, flags=BIASES, given={"routing": "dropless", "qk_norm_whole": True}),
    "granitemoe": decoder(sizes=_EXPERTS, flags=BIASES, given={"routing": "dropless"}),
    "granitemoeshared": decoder(
        sizes={**_EXPERTS, "shared_ffn": "shared_intermediate_size"}, flags=BIASES, given={"routing": "dropless"},
    ),
    "minimax_m2": decoder(
        sizes=_EXPERTS, flags={}, only=PLAIN, given={"routing": "dropless"}, assumed={"use_qk_norm": True},
        cases={"use_qk_norm": {True: {"qk_norm_whole": True}, False: {}}},
    ),
    "flex_olmo": decoder(
        style="olmo2", sizes=_EXPERTS, flags=BIASES, given={"routing": "dropless", "qk_norm_whole": True},
    ),
    "phimoe": decoder(
        style="stablelm", sizes=_EXPERTS, flags={**BIASES, "head_bias": "lm_head_bias"}, given={"routing": "dropless"},
    ),
    "ernie4_5_moe": decoder(
        sizes={
            **DECODER, "ffn": "moe_intermediate_size", "experts": "moe_num_experts", "top_k": "moe_k",
            "dense_ffn": "intermediate_size",
        },
        flags=dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), "use_bias"), given={"routing": "dropless"}, tied=True,
        products={"shared_ffn": ("moe_num_shared_experts", "moe_intermediate_size")},
        assumed={"moe_layer_start_index": 1},
    ),
    "cohere2_moe": decoder(
        style="cohere", sizes={**_EXPERTS, "dense_ffn": "prefix_dense_intermediate_size"}, flags=BIASES, tied=True,
        given={"parallel_norms": 1, "routing": "dropless"}, optional=(*MAYBE, "dense_ffn"),
        only={"num_shared_experts": (0,)}, assumed={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "glm4_moe_lite": replace(_DEEPSEEK, assumed={"first_k_dense_replace": 1}),
    "exaone_moe": decoder(
        sizes={
            **DECODER, "ffn": "moe_intermediate_size", "experts": "num_experts", "top_k": "num_experts_per_tok",
            "dense_layers": "first_k_dense_replace", "dense_ffn": "intermediate_size",
        },
        flags={}, given={"routing": "dropless", "qk_norm": True},
        products={"shared_ffn": ("num_shared_experts", "moe_intermediate_size")},
        assumed={"first_k_dense_replace": 1, "sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "solar_open": decoder(
        sizes={**ROUTED, "experts": "n_routed_experts"}, flags=BIASES, given={"routing": "dropless"},
        products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")},
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": Architecture(
        "llama", {**AFTER_DENSE, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}, ("silu",),
        {"mlp_bias": (False,)}, {"routing": "dropless"}, MAYBE,
        products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")},
        flags={"qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"},
    ),
    "dots1": Architecture(
        "llama", {**AFTER_DENSE, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}, ("silu",), {},
        {"routing": "dropless", "qk_norm": True}, MAYBE, flags=BIASES, windowed=_AFTER,
        products={"shared_ffn": ("n_shared_experts", "moe_intermediate_size")}, assumed={"max_window_layers": 62},
    ),
    "gpt_oss": Architecture(
        "llama", {**ROUTED, "ffn": "intermediate_size"}, ("silu",), {"attention_bias": (True,)},
        {"routing": "dropless", "qkv_bias": True, "out_bias": True}, MAYBE,
    ),
    "llama4_text": Architecture(
        "llama",
        {
            **ROUTED, "ffn": "intermediate_size", "shared_ffn": "intermediate_size",
            "dense_ffn": "intermediate_size_mlp", "moe_every": "interleave_moe_layer_step",
        },
        ("silu",), {}, {"routing": "dropless"}, MAYBE, assumed={"interleave_moe_layer_step": 1},
        within="attention_chunk_size", flags=BIASES, routed="moe_layers",
    ),
    "gemma3_text": Architecture(
        "gemma", DECODER, GELU, {},
        {"activation": "gelu", "qk_norm": True, "post_norm": True}, MAYBE, tied=True, activation="hidden_activation",
        assumed={
            "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "sliding_window_pattern": 6,
        },
        flags={**BIASES, "logit_cap": "final_logit_softcapping"},
    ),
    **HYBRIDS,
    "gpt2": Architecture(
        "gpt", GPT2, GELU, {"add_cross_attention": (False,)}, {}, ("ffn",), tied=True, positions="n_positions",
        activation="activation_function",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "bert": Architecture(
        "bert", ENCODER, GELU,
        {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}, tied=True,
    ),
}  # fmt: skip
FLAT: Final = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Models that see as well, published with the keys of the text part beside the others -> that part."""
MISSING: Final = {
    "mamba": "the selective scan of Mamba-1",
    "falcon_mamba": "the selective scan of Mamba-1",
    "jamba": "the selective scan of Mamba-1",
    "deepseek_v32": "the indexer that chooses the tokens which attention sees",
    "glm_moe_dsa": "the indexer that chooses the tokens which attention sees",
}
"""Architectures with a mechanism that descriptions lack."""
