"""Published configurations of today's mixtures, hybrids and models with windows: as many parameters as published."""

import json

import pytest

import shardplan
from shardplan.errors import ShardplanError
from shardplan.models.hugging_face import configured

DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_bias": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
GLM = {
    "model_type": "glm4_moe", "attention_bias": True, "hidden_act": "silu", "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "n_shared_experts": 1, "first_k_dense_replace": 3, "num_attention_heads": 96,
    "num_experts_per_tok": 8, "num_hidden_layers": 92, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5, "use_qk_norm": True, "vocab_size": 151552, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "num_local_experts": 128, "sliding_window": 128, "tie_word_embeddings": False,
    "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
SCOUT = {
    "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760, "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
    "use_qk_norm": True, "vocab_size": 202048,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "mlp_only_layers": [], "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_sliding_window": False, "sliding_window": None, "vocab_size": 151936,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "attention_head_dim": 128, "head_dim": 128, "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "intermediate_size": 21504,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": False,
    "mlp_bias": False, "mlp_hidden_act": "relu2", "n_groups": 8, "conv_kernel": 4, "num_attention_heads": 32,
    "num_hidden_layers": 52, "num_key_value_heads": 8, "ssm_state_size": 128, "tie_word_embeddings": False,
    "use_bias": False, "use_conv_bias": True, "vocab_size": 131072,
}  # fmt: skip
PUBLISHED = {  # billions of parameters, and of those that a token meets
    "DeepSeek-V3": (DEEPSEEK, 671.0, 37.6),
    "Kimi K2": ({**DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384,
                 "first_k_dense_replace": 1, "vocab_size": 163840}, 1026.4, 32.9),
    "Qwen3 235B": (QWEN, 235.1, 22.2),
    "GLM 4.5": (GLM, 352.8, 33.6),  # 355 are without embeddings and with the layer that predicts one token more
    "GLM 4.5 Air": ({**GLM, "use_qk_norm": False, "hidden_size": 4096, "intermediate_size": 10944,
                     "moe_intermediate_size": 1408, "n_routed_experts": 128, "first_k_dense_replace": 1,
                     "num_hidden_layers": 46}, 106.9, 13.3),
    "gpt-oss-120b": (GPT_OSS, 116.8, 5.71),  # 5.1 are without the embedding
    "gpt-oss-20b": ({**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32,
                     "layer_types": ["sliding_attention", "full_attention"] * 12}, 20.9, 4.2),
    "Llama 4 Scout": ({"model_type": "llama4", "text_config": SCOUT, "torch_dtype": "bfloat16"}, 107.8, 17.2),
    "Llama 4 Maverick": ({**SCOUT, "num_local_experts": 128, "interleave_moe_layer_step": 2}, 400.7, 17.2),
    "Gemma 3 27B": ({"model_type": "gemma3", "text_config": GEMMA}, 27.0, 27.0),
    "Nemotron-H 8B": (NEMOTRON, 8.1, 8.1),
}  # fmt: skip


def written(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_as_many_parameters_as_published(tmp_path, name):
    config, billions, active = PUBLISHED[name]
    model = configured(written(tmp_path, config), {"seq": 128, "batch": 1})
    text = config.get("text_config", config)
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((text[key] for key in keys if key in text), 1)
    sizes = [model.tensor(parameter.tensor) for parameter in model.parameters]
    whole = sum(tensor.elements for tensor in sizes)
    routed = sum(tensor.elements for tensor in sizes if len(tensor.shape) == 3 and tensor.shape[0] == experts)
    used = whole - routed + routed * text.get("num_experts_per_tok", 1) // experts
    assert whole / 1e9 == pytest.approx(billions, rel=0.005)
    assert used / 1e9 == pytest.approx(active, rel=0.01)


def test_the_text_part_of_a_model_that_sees_is_the_model_and_said(tmp_path):
    path = written(tmp_path, {"model_type": "gemma3", "text_config": {**GEMMA, "num_hidden_layers": 6}})
    model = configured(path, {"seq": 2048})
    assert [told.code for told in model.warnings] == ["text-part"]
    windows = [op.attributes.get("left_window_size", -1) for op in model.operators if op.op_type == "Attention"]
    assert windows == [1023] * 5 + [-1]


def test_attention_in_chunks_is_refused_beyond_one(tmp_path):
    path = written(tmp_path, {**SCOUT, "num_hidden_layers": 2})
    assert configured(path, {"seq": 8192}).dims["seq"] == 8192
    with pytest.raises(ShardplanError, match="attention_chunk_size is 8192, so that a sequence of 16384 is seen in"):
        configured(path, {"seq": 16384})


@pytest.mark.parametrize("config", [GLM, GPT_OSS, DEEPSEEK, {**SCOUT, "num_local_experts": 8}])
def test_such_a_config_is_priced(tmp_path, config):
    """Two layers of it, with experts over eight devices, in more memory and time than without experts' state."""
    small = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "layer_types": ["sliding_attention", "full_attention"]}
    path = written(tmp_path, {**config, **{key: value for key, value in small.items() if key in config}})
    found = shardplan.price(str(path), cluster="b200-dgx", dp=8, ep=8, zero=1, global_batch=8)
    assert found.fits
    assert 0 < found.spent.compute_ns < found.plan.summary.step_ns
