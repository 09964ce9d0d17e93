"""Published configurations of Hugging Face's hub by model, with their keys that count, and what transformers counts;
and files of such configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final


def written(folder: Path, config: dict[str, Any]) -> Path:
    """A `config.json` in a folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def _decoder(kind: str, hidden: int, inner: int, layers: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocab, **more,
    }  # fmt: skip


def _gpt(kind: str, hidden: int, layers: int, heads: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": kind, "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab, "rotary_dim": 64,
        "n_positions": 2048,
    }  # fmt: skip


_UNTIED: Final = {"tie_word_embeddings": False}
_TIED: Final = {"tie_word_embeddings": True}
_SCOUT: Final = _decoder(
    "llama4_text", 5120, 8192, 48, 40, 202048, num_key_value_heads=8, head_dim=128, intermediate_size_mlp=16384,
    num_local_experts=128, num_experts_per_tok=1, attention_chunk_size=8192, **_UNTIED,
)  # fmt: skip
_QWEN3_MOE: Final = _decoder(
    "qwen3_moe", 2048, 6144, 48, 32, 151936, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8, **_UNTIED,
)  # fmt: skip
_QWEN25_VL: Final = {"num_key_value_heads": 4, "use_sliding_window": False, **_UNTIED}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "Phi-3 mini": _decoder("phi3", 3072, 8192, 32, 32, 32064, num_key_value_heads=32, sliding_window=2047),
    "Phi-4": _decoder("phi3", 5120, 17920, 40, 40, 100352, num_key_value_heads=10, **_UNTIED),
    "Phi-4 mini": _decoder("phi3", 3072, 8192, 32, 24, 200064, num_key_value_heads=8, **_TIED),
    "Gemma 2 9B": _decoder("gemma2", 3584, 14336, 42, 16, 256000, num_key_value_heads=8, head_dim=256),
    "GLM-4 9B": _decoder("glm", 4096, 13696, 40, 32, 151552, num_key_value_heads=2, head_dim=128, **_UNTIED),
    "GLM-4-0414 32B": _decoder(
        "glm4", 6144, 23040, 61, 48, 151552, num_key_value_heads=2, head_dim=128, attention_bias=False, **_UNTIED
    ),
    "EXAONE 4 32B": _decoder(
        "exaone4", 5120, 27392, 64, 40, 102400, num_key_value_heads=8, head_dim=128, sliding_window_pattern=4, **_UNTIED
    ),
    "Seed-OSS 36B": _decoder(
        "seed_oss", 5120, 27648, 64, 80, 155136, num_key_value_heads=8, head_dim=128, attention_bias=True, **_UNTIED
    ),
    "ERNIE 4.5 0.3B": _decoder(
        "ernie4_5", 1024, 3072, 18, 16, 103424, num_key_value_heads=2, head_dim=128, use_bias=False, **_TIED
    ),
    "Hunyuan 7B": _decoder(
        "hunyuan_v1_dense", 4096, 14336, 32, 32, 128167, num_key_value_heads=8, head_dim=128, **_TIED
    ),
    "AFM 4.5B": _decoder(
        "arcee", 2560, 18432, 36, 20, 128005, num_key_value_heads=4, head_dim=128, hidden_act="relu2", **_UNTIED
    ),
    "StarCoder": {
        "model_type": "gpt_bigcode",
        "n_embd": 6144,
        "n_layer": 40,
        "n_head": 48,
        "n_inner": 24576,
        "vocab_size": 49152,
        "n_positions": 8192,
        "multi_query": True,
    },
    "dots.llm1": _decoder(
        "dots1",
        4096,
        10944,
        62,
        32,
        152064,
        num_key_value_heads=32,
        moe_intermediate_size=1408,
        n_routed_experts=128,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
        **_UNTIED,
    ),
    "Gemma 3 27B": _decoder("gemma3_text", 5376, 21504, 62, 32, 262208, num_key_value_heads=16, head_dim=128),
    "OLMo 2 7B": _decoder("olmo2", 4096, 11008, 32, 32, 100352, **_UNTIED),
    "OLMo 2 32B": _decoder("olmo2", 5120, 27648, 64, 40, 100352, num_key_value_heads=8, **_UNTIED),
    "OLMo 3 7B": _decoder("olmo3", 4096, 11008, 32, 32, 100278, num_key_value_heads=32, **_UNTIED),
    "OLMoE 1B-7B": _decoder("olmoe", 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8, **_UNTIED),
    "Granite 3.1 8B": _decoder("granite", 4096, 12800, 40, 32, 49155, num_key_value_heads=8, **_TIED),
    "Granite 3.0 3B-A800M": _decoder(
        "granitemoe",
        1536,
        512,
        32,
        24,
        49155,
        num_key_value_heads=8,
        num_local_experts=40,
        num_experts_per_tok=8,
        **_TIED,
    ),
    "BLOOM": {
        "model_type": "bloom",
        "hidden_size": 14336,
        "n_layer": 70,
        "n_head": 112,
        "vocab_size": 250880,
        "seq_length": 2048,
    },
    "GPT-NeoX 20B": _decoder("gpt_neox", 6144, 24576, 44, 64, 50432, use_parallel_residual=True, **_UNTIED),
    "Pythia 6.9B": _decoder("gpt_neox", 4096, 16384, 32, 32, 50432, **_UNTIED),
    "OPT 6.7B": {
        "model_type": "opt",
        "hidden_size": 4096,
        "ffn_dim": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 50272,
        "word_embed_proj_dim": 4096,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
    },
    "MPT 7B": {
        "model_type": "mpt",
        "d_model": 4096,
        "n_heads": 32,
        "n_layers": 32,
        "vocab_size": 50432,
        "max_seq_len": 2048,
        "no_bias": True,
        "expansion_ratio": 4,
    },
    "Nemotron-4 340B": _decoder(
        "nemotron", 18432, 73728, 96, 96, 256000, num_key_value_heads=8, hidden_act="relu2", **_UNTIED
    ),
    "Minitron 4B": _decoder(
        "nemotron", 3072, 9216, 32, 24, 256000, num_key_value_heads=8, head_dim=128, hidden_act="relu2", **_UNTIED
    ),
    "SmolLM3 3B": _decoder("smollm3", 2048, 11008, 36, 16, 128256, num_key_value_heads=4, **_TIED),
    "MiniMax-M2": _decoder(
        "minimax_m2",
        3072,
        1536,
        62,
        48,
        200064,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        use_qk_norm=True,
        **_UNTIED,
    ),
    "StarCoder2 3B": _decoder("starcoder2", 3072, 12288, 30, 24, 49152, num_key_value_heads=2, use_bias=True),
    "StarCoder2 15B": _decoder("starcoder2", 6144, 24576, 40, 48, 49152, num_key_value_heads=4, **_UNTIED),
    "StableLM 2 1.6B": _decoder(
        "stablelm", 2048, 5632, 24, 32, 100352, num_key_value_heads=32, use_qkv_bias=True, **_UNTIED
    ),
    "StableLM 2 12B": _decoder(
        "stablelm",
        5120,
        13824,
        40,
        32,
        100352,
        num_key_value_heads=8,
        qk_layernorm=True,
        use_parallel_residual=True,
        **_UNTIED,
    ),
    "Command R": _decoder("cohere", 8192, 22528, 40, 64, 256000, num_key_value_heads=64),
    "Command R+": _decoder("cohere", 12288, 33792, 64, 96, 256000, num_key_value_heads=8, use_qk_norm=True),
    "Command R7B": _decoder("cohere2", 4096, 14336, 32, 32, 256000, num_key_value_heads=8),
    "Phi-2": _decoder("phi", 2560, 10240, 32, 32, 51200, hidden_act="gelu_new", **_UNTIED),
    "GPT-J 6B": _gpt("gptj", 4096, 28, 16, 50400),
    "CodeGen 6B": _gpt("codegen", 4096, 33, 16, 51200),
    "Falcon 7B": {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "vocab_size": 65024,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
    },
    "Falcon 40B": {
        "model_type": "falcon",
        "hidden_size": 8192,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "vocab_size": 65024,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
    },
    "Apertus 8B": _decoder(
        "apertus", 4096, 21504, 32, 32, 131072, num_key_value_heads=8, hidden_act="xielu", **_UNTIED
    ),
    "Hunyuan A13B": _decoder(
        "hunyuan_v1_moe",
        4096,
        3072,
        32,
        32,
        128167,
        num_key_value_heads=8,
        head_dim=128,
        num_experts=64,
        moe_topk=[8] * 32,
        num_shared_expert=[1] * 32,
        **_TIED,
    ),
    "Trinity Mini": _decoder(
        "afmoe",
        2048,
        6144,
        32,
        32,
        200192,
        num_key_value_heads=4,
        head_dim=128,
        moe_intermediate_size=1024,
        num_dense_layers=2,
        num_experts=128,
        num_experts_per_tok=8,
        num_shared_experts=1,
        global_attn_every_n_layers=4,
        sliding_window=2048,
        **_UNTIED,
    ),
    "MiniMax-Text-01": _decoder(
        "minimax",
        6144,
        9216,
        80,
        64,
        200064,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=32,
        num_experts_per_tok=2,
        layer_types=(["linear_attention"] * 7 + ["full_attention"]) * 10,
        **_UNTIED,
    ),
    "OLMo Hybrid 7B": _decoder(
        "olmo_hybrid",
        3840,
        11008,
        32,
        30,
        100352,
        num_key_value_heads=30,
        linear_num_key_heads=30,
        linear_num_value_heads=30,
        linear_key_head_dim=96,
        linear_value_head_dim=192,
        linear_conv_kernel_dim=4,
        **_UNTIED,
    ),
    "DBRX": {
        "model_type": "dbrx",
        "d_model": 6144,
        "n_layers": 40,
        "n_heads": 48,
        "vocab_size": 100352,
        "max_seq_len": 32768,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "ffn_act_fn": {"name": "silu"}},
        **_UNTIED,
    },
    "Falcon 2 11B": {
        "model_type": "falcon",
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "vocab_size": 65024,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
        "ffn_hidden_size": 16384,
        "bias": False,
        "parallel_attn": True,
        **_UNTIED,
    },
    "Falcon RW 1B": {
        "model_type": "falcon",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "vocab_size": 50304,
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "new_decoder_architecture": False,
        "parallel_attn": False,
    },
    "OPT 350M": {
        "model_type": "opt",
        "hidden_size": 1024,
        "ffn_dim": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "vocab_size": 50272,
        "word_embed_proj_dim": 512,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": False,
    },
    "Codestral Mamba 7B": {
        "model_type": "mamba2",
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "expand": 2,
        "vocab_size": 32768,
        **_UNTIED,
    },
    "Qwen2.5-VL 7B": _decoder("qwen2_5_vl", 3584, 18944, 28, 28, 152064, **_QWEN25_VL),
    "Qwen3-VL 8B": _decoder(
        "qwen3_vl_text", 4096, 12288, 36, 32, 151936, num_key_value_heads=8, head_dim=128, **_UNTIED
    ),
    "Qwen3-VL 30B-A3B": {**_QWEN3_MOE, "model_type": "qwen3_vl_moe_text"},
    "Qwen1.5-MoE A2.7B": _decoder(
        "qwen2_moe",
        2048,
        5632,
        24,
        16,
        151936,
        num_key_value_heads=16,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts=60,
        num_experts_per_tok=4,
        decoder_sparse_step=1,
        **_UNTIED,
    ),
    "Qwen3 30B-A3B with dense layers": {**_QWEN3_MOE, "mlp_only_layers": [0, 2, 47], "decoder_sparse_step": 2},
    "Llama 4 Maverick by a list": {**_SCOUT, "interleave_moe_layer_step": 1, "moe_layers": list(range(1, 48, 2))},
    "Llama 3 8B with all biases": _decoder(
        "llama", 4096, 14336, 32, 32, 128256, num_key_value_heads=8, attention_bias=True, mlp_bias=True, **_UNTIED
    ),
}

COUNTS: Final = {
    "Phi-3 mini": 3_821_079_552,
    "Phi-4": 14_659_507_200,
    "Phi-4 mini": 3_836_021_760,
    "Gemma 2 9B": 9_241_705_984,
    "GLM-4 9B": 9_399_951_360,
    "GLM-4-0414 32B": 32_566_081_536,
    "EXAONE 4 32B": 32_003_216_384,
    "Seed-OSS 36B": 36_151_104_512,
    "ERNIE 4.5 0.3B": 360_748_032,
    "Hunyuan 7B": 7_504_568_320,
    "AFM 4.5B": 4_619_189_760,
    "StarCoder": 15_517_456_384,
    "dots.llm1": 142_774_373_888,
    "Gemma 3 27B": 27_009_346_304,
    "OLMo 2 7B": 7_298_617_344,
    "OLMo 2 32B": 32_234_279_936,
    "OLMo 3 7B": 7_298_011_136,
    "OLMoE 1B-7B": 6_919_161_856,
    "Granite 3.1 8B": 8_170_848_256,
    "Granite 3.0 3B-A800M": 3_298_793_472,
    "BLOOM": 176_247_271_424,
    "GPT-NeoX 20B": 20_554_567_680,
    "Pythia 6.9B": 6_857_302_016,
    "OPT 6.7B": 6_658_473_984,
    "MPT 7B": 6_649_286_656,
    "Nemotron-4 340B": 341_029_195_776,
    "Minitron 4B": 4_190_509_056,
    "SmolLM3 3B": 3_075_098_624,
    "MiniMax-M2": 228_689_748_992,
    "StarCoder2 3B": 3_030_371_328,
    "StarCoder2 15B": 15_957_889_024,
    "StableLM 2 1.6B": 1_644_515_328,
    "StableLM 2 12B": 12_143_185_920,
    "Command R": 34_980_831_232,
    "Command R+": 103_810_674_688,
    "Command R7B": 8_028_033_024,
    "Phi-2": 2_779_683_840,
    "GPT-J 6B": 6_050_882_784,
    "CodeGen 6B": 7_064_213_504,
    "Falcon 7B": 6_921_720_704,
    "Falcon 40B": 41_303_293_952,
    "Apertus 8B": 8_053_338_176,
    "Hunyuan A13B": 80_393_183_232,
    "Trinity Mini": 26_123_970_560,
    "MiniMax-Text-01": 456_089_655_296,
    "OLMo Hybrid 7B": 7_430_870_688,
    "DBRX": 131_596_523_520,
    "Falcon 2 11B": 11_102_822_400,
    "Falcon RW 1B": 1_311_625_216,
    "OPT 350M": 331_196_416,
    "Codestral Mamba 7B": 7_285_403_648,
    "Qwen2.5-VL 7B": 7_615_616_512,
    "Qwen3-VL 8B": 8_190_735_360,
    "Qwen3-VL 30B-A3B": 30_532_122_624,
    "Qwen1.5-MoE A2.7B": 14_315_784_192,
    "Qwen3 30B-A3B with dense layers": 16_369_793_024,
    "Llama 4 Maverick by a list": 400_711_848_960,
    "Llama 3 8B with all biases": 8_031_637_504,
}
"""Parameters in transformers, without what sees; `benchmarks/config_counts.py --write` writes them."""
