"""Published configurations of today's mixtures, hybrids and models with windows: as many parameters as published."""

from collections import Counter

import pytest
from published_configs import CONFIGS, COUNTS, written

import shardplan
from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.graph.hidden_state import hidden_of
from shardplan.models.hugging_face import configured
from shardplan.rules import model_rules

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


def test_gpt_oss_lacks_the_biases_of_experts_and_routers_and_its_sinks(tmp_path):
    """Of 116,829,156,672 parameters in transformers, as the documentation says."""
    model = configured(written(tmp_path, GPT_OSS), {"batch": 1})
    lacking = 36 * (128 * (5760 + 2880) + 128 + 64)
    assert sum(model.tensor(weight.tensor).elements for weight in model.parameters) == 116_829_156_672 - lacking


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_as_many_parameters_as_transformers_counts(tmp_path, name):
    model = configured(written(tmp_path, CONFIGS[name]), {"batch": 1})
    assert sum(model.tensor(weight.tensor).elements for weight in model.parameters) == COUNTS[name]


FAMILIES = {config["model_type"]: config for config in CONFIGS.values()} | {
    "falcon": CONFIGS["Falcon 40B"], "falcon 7B": CONFIGS["Falcon 7B"], "falcon rw": CONFIGS["Falcon RW 1B"],
    "pythia in turn": {**CONFIGS["Pythia 6.9B"], "use_parallel_residual": False},
}  # fmt: skip
DEPTHS, WIDTHS = ("num_hidden_layers", "n_layer", "n_layers"), ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
SMALL = {
    **dict.fromkeys(DEPTHS, 2), **dict.fromkeys(WIDTHS, 32), **dict.fromkeys(HEADS, 4), "vocab_size": 64,
    "intermediate_size": 48, "intermediate_size_mlp": 80, "ffn_dim": 48, "num_key_value_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40, "word_embed_proj_dim": 16, "moe_layers": [1], "mlp_only_layers": [0],
    "num_heads": 8, "state_size": 8, "n_groups": 4, "decoder_sparse_step": 1, "moe_topk": [2, 2], "num_dense_layers": 1,
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 16, "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip


def small(folder, kind):
    keys = {key: value for key, value in SMALL.items() if key in FAMILIES[kind]}
    return written(folder, {**FAMILIES[kind], **keys, "dtype": "float32"})


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_operator_of_an_architecture_has_a_rule(tmp_path, kind):
    model = configured(small(tmp_path, kind), {"batch": 4, "seq": 16})
    assert not [rule for rule in model_rules(model) if rule.fallback]


@pytest.mark.parametrize(
    "kind",
    [
        "phi3",
        "olmo2",
        "bloom",
        "gpt_neox",
        "opt",
        "stablelm",
        "cohere",
        "codegen",
        "falcon",
        "falcon 7B",
        "falcon rw",
        "qwen3_moe",
        "apertus",
        "dbrx",
        "hunyuan_v1_moe",
        "afmoe",
    ],
)
def test_plans_with_heads_split_compute_what_the_model_does(tmp_path, capsys, kind):
    path, plan, asked = str(small(tmp_path, kind)), str(tmp_path / "own.plan.json"), tmp_path / "heads.yaml"
    asked.write_text(f"operators: {{'*Attention': {{gpu: {'g' if kind == 'falcon 7B' else 'h'}}}}}\n")
    given = ["--dim", "batch=4", "--dim", "seq=16", "--constraints", str(asked), "--effort", "quick", "--no-advice"]
    assert main(["solve", path, "--mesh", "2x2", "-o", plan, *given]) == 0
    assert main(["verify", path, plan]) == 0, capsys.readouterr()


def forward_collectives(path, **asked):
    plan = shardplan.price(str(path), cluster="h100-dgx", tp=2, global_batch=4, **asked).plan
    return Counter(step.collective.kind for move in plan.moves if move.phase == "forward" for step in move.steps)


def test_in_parallel_attention_and_mlp_are_reduced_together(tmp_path):
    """GPT-NeoX reduces once in a layer, twice where one comes after the other."""
    both, in_turn = (
        forward_collectives(small(tmp_path, kind))["all_reduce"] for kind in ("gpt_neox", "pythia in turn")
    )
    assert (both, in_turn) == (2, 4)


def test_queries_with_a_bias_stay_split_by_heads(tmp_path):
    """They are as wide as the hidden state, and are not taken for it; queries of a small model may be whole."""
    path = written(tmp_path, {**CONFIGS["OPT 6.7B"], "num_hidden_layers": 1})
    found = shardplan.price(str(path), cluster="h100-dgx", tp=8, global_batch=8).plan
    assert not [
        move.tensor
        for move in found.moves
        if ".self_attn." in move.tensor
        and move.tensor.endswith("proj.Add")
        and move.steps[0].collective.kind == "all_gather"
    ]


def test_norms_of_single_heads_do_not_say_how_wide_the_hidden_state_is(tmp_path):
    path = written(tmp_path, {**CONFIGS["StableLM 2 12B"], "num_hidden_layers": 1})
    assert hidden_of(configured(path, {"seq": 64})) == 5120


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
