"""Tiny configurations of transformers, and values for the models that they describe, for a comparison of what both
compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardplan.model.types import Model
from shardplan.models.hugging_face import configured
from shardplan.program.machine.values import random_values

LOGITS: Final = Path(__file__).resolve().parents[1] / "models" / "library_logits.json"
"""What transformers computes: by name, the logits of the first sequence. Names are model types where configurations do
not say one."""
BATCH, SEQ = 2, 12
THETA = 10000.0
_BASE: Final[dict[str, Any]] = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 24, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
    "rope_parameters": {"rope_theta": THETA, "rope_type": "default", "partial_rotary_factor": 1.0},
}  # fmt: skip
_FALCON: Final = {
    **{key: value for key, value in _BASE.items() if key != "head_dim"},
    "model_type": "falcon", "activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
}  # fmt: skip
_DELTA: Final = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
_STATES: Final = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_next": {
        **_BASE, **_DELTA, "mlp_only_layers": [0, 1, 2, 3], "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": {**_BASE, **_DELTA},
    "olmo_hybrid": {**_BASE, **_DELTA, "linear_allow_neg_eigval": False},
    "minimax": {
        **_BASE, "layer_types": ["linear_attention"] + ["full_attention"] * 3, "block_size": 4, "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
    "kimi_linear": {
        **_BASE, "layer_types": _DELTA["layer_types"], "mlp_layer_types": ["dense"] * 4, "num_key_value_heads": 4,
        "linear_head_dim": 8, "linear_num_heads": 4, "linear_conv_kernel_dim": 3, "q_lora_rank": None,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_experts": 4,
        "moe_intermediate_size": 16, "num_experts_per_token": 2, "num_shared_experts": 1,
    },
    "bamba": {**_BASE, **_STATES, "attn_layer_indices": [2]},
    "granitemoehybrid": {
        **_BASE, **_STATES, "layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 0,
        "num_experts_per_tok": 0, "shared_intermediate_size": 48, "position_embedding_type": "rope",
        "attention_multiplier": 8**-0.5,
    },
    "falcon_h1": {**_BASE, **_STATES, "mamba_d_ssm": 64},
    "lfm2": {**_BASE, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "block_multiple_of": 16},
    "olmo": _BASE,
    "apertus": {**_BASE, "hidden_act": "xielu"},
    "afmoe": {
        **_BASE, "num_dense_layers": 4, "layer_types": ["sliding_attention"] * 4, "sliding_window": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_shared_experts": 1,
    },
    "falcon in turn": {
        **_FALCON, "bias": True, "alibi": False, "parallel_attn": False, "multi_query": False, "num_kv_heads": 4,
    },
    "falcon of one norm": {
        **_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
    },
    "opt of other embeddings": {
        **_BASE, "model_type": "opt", "do_layer_norm_before": False, "word_embed_proj_dim": 16, "ffn_dim": 48,
        "tie_word_embeddings": True,
    },
    "cwm": {**_BASE, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"] * 2},
}  # fmt: skip


def tiny_model(kind: str, folder: Path) -> Model:
    """The model of a tiny configuration, which is written into a folder."""
    path = folder / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    return configured(path, {"batch": BATCH, "seq": SEQ})


def values_of(kind: str, model: Model) -> dict[str, NDArray[Any]]:
    """Values of inputs, parameters and constants: random ones by name, and true positions."""
    given: dict[str, NDArray[Any]] = {"position_ids": np.tile(np.arange(SEQ), (BATCH, 1))}
    for name in ("rotary.cos", "rotary.sin"):
        if name in model.tensors:
            half = model.tensors[name].shape[1]
            # attention of Kimi Linear rotates nothing
            speed = np.zeros(half) if kind == "kimi_linear" else THETA ** -(np.arange(half) / half)
            given[name] = getattr(np, name[-3:])(np.arange(SEQ)[:, None] * speed)
    return random_values(model, given=given)
