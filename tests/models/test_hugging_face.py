"""A `config.json` of Hugging Face is a model; what it says that cannot be planned is refused key by key."""

from pathlib import Path

import pytest
from published_configs import written

from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.models.architectures import ARCHITECTURES
from shardplan.models.hugging_face import configured
from shardplan.models.spec import STYLES

PLAIN = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**PLAIN, "num_key_value_heads": 2, "hidden_act": "silu"}
GPT2 = {"vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": None, "n_positions": 64}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
BASE = 512 * 64 + 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)
"""Parameters of the tied Llama: table, last norm, and two layers of attention, MLP and norms."""
CASES = {
    "llama": (GROUPED, BASE + 512 * 64),
    "mistral": ({**GROUPED, "sliding_window": 64}, BASE + 512 * 64),
    "qwen2": ({**GROUPED, "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 8},
              BASE + 2 * (64 + 2 * 32)),
    "qwen3": ({**GROUPED, "tie_word_embeddings": True, "head_dim": 16}, BASE + 2 * 2 * 16),
    "gemma": ({**GROUPED, "hidden_act": "gelu_pytorch_tanh"}, BASE),
    "mixtral": ({**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
                BASE + 512 * 64 + 2 * (3 * 3 * 64 * 128 + 4 * 64)),
    "qwen3_moe": ({**GROUPED, **ROUTED, "tie_word_embeddings": True},
                  BASE + 2 * (2 * 16 + (4 * 32 - 128) * 3 * 64 + 4 * 64)),
    "gpt2": (GPT2, 512 * 64 + 64 * 64 + 2 * 64 + 2 * (12 * 64 * 64 + 13 * 64)),
    "bert": ({**PLAIN, "hidden_act": "gelu"},
             512 * 64 + 64 * 64 + 2 * 64 + 2 * (4 * 64 * 65 + 2 * 64 * 128 + 192 + 256)),
}  # fmt: skip


def parameters(model):
    return sum(model.tensors[weight.tensor].elements for weight in model.parameters)


@pytest.mark.parametrize("kind", CASES)
def test_a_config_has_the_parameters_of_its_checkpoint(tmp_path, kind):
    keys, count = CASES[kind]
    model = configured(written(tmp_path, {"model_type": kind, **keys}), {"batch": 4})
    assert parameters(model) == count
    assert dict(model.dims) == {"batch": 4, "seq": 64}


LATENT = {
    **PLAIN, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "n_shared_experts": 2, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}  # fmt: skip


def test_a_config_of_deepseek(tmp_path):
    heads = PLAIN["num_attention_heads"]
    attention = 64 * 24 + 24 + 24 * heads * 24 + 64 * 28 + 20 + 20 * heads * 28 + heads * 12 * 64
    dense, routed = 3 * 64 * 128, 64 * 4 + 4 * 3 * 64 * 32 + 3 * 64 * 64
    model = configured(written(tmp_path, {"model_type": "deepseek_v3", **LATENT}), {})
    assert parameters(model) == 2 * 512 * 64 + 64 + 2 * (attention + 2 * 64) + dense + routed


HYBRID = {
    "model_type": "nemotron_h", "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 96, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8,
    "n_groups": 4, "conv_kernel": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 32,
}  # fmt: skip


def test_a_config_of_a_hybrid(tmp_path):
    """Letters or words for the layers; sizes of experts count where there are any."""
    state = 64 * (2 * 128 + 2 * 32 + 8) + (128 + 2 * 32) * 5 + 3 * 8 + 128 + 128 * 64
    attention, dense = 2 * 64 * 64 + 2 * 64 * 32, 2 * 64 * 96
    routed = 64 * 4 + 4 * 2 * 64 * 48 + 2 * 64 * 32
    plain = configured(written(tmp_path, {**HYBRID, "hybrid_override_pattern": "M*-M"}), {})
    assert parameters(plain) == 2 * 512 * 64 + 64 + 4 * 64 + 2 * state + attention + dense
    kinds = ["linear_attention", "moe", "full_attention"]
    mixed = configured(written(tmp_path, {**HYBRID, "layers_block_type": kinds}), {})
    assert parameters(mixed) == 2 * 512 * 64 + 64 + 3 * 64 + state + attention + routed
    with pytest.raises(ShardplanError, match="there is no hybrid_override_pattern of the letters M, "):
        configured(written(tmp_path, {**HYBRID, "hybrid_override_pattern": "MX"}), {})


@pytest.mark.parametrize("keys", [{"attention_head_dim": 16}, {"head_dim": None, "attention_head_dim": 16}])
def test_a_hybrid_may_name_the_size_of_heads_as_it_was_published(tmp_path, keys):
    """NVIDIA's own code reads `attention_head_dim`, transformers `head_dim`."""
    named = {key: value for key, value in HYBRID.items() if key != "head_dim"}
    either = [
        parameters(configured(written(tmp_path, {**config, "hybrid_override_pattern": "M*-M"}), {}))
        for config in (HYBRID, {**named, **keys})
    ]
    assert either[0] == either[1]


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        ({"sliding_window": 16}, [15, 15]),
        ({"sliding_window": 64}, [-1, -1]),
        ({"sliding_window": 16, "use_sliding_window": False}, [-1, -1]),
        ({"sliding_window": 16, "sliding_window_pattern": 2}, [15, -1]),
        ({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}, [15, -1]),
        ({"sliding_window": 16, "layer_types": ["full_attention"] * 2}, [-1, -1]),
        ({"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}, [-1, 15]),
        ({"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1, "model_type": "qwen2"}, [-1, 15]),
        ({"sliding_window": 16, "use_sliding_window": True, "model_type": "qwen2"}, [-1, -1]),
        ({"sliding_window": 16, "model_type": "qwen2"}, [-1, -1]),
        ({"sliding_window": 16, "use_sliding_window": True, "model_type": "qwen2_moe", **ROUTED}, [15, -1]),
        ({"sliding_window": 16, "model_type": "gemma2", "hidden_act": "gelu"}, [15, -1]),
    ],
)
def test_windows_are_those_of_the_config(tmp_path, keys, seen):
    model = configured(written(tmp_path, {"model_type": "llama", **GROUPED, **keys}), {})
    found = [op.attributes.get("left_window_size", -1) for op in model.operators if op.op_type == "Attention"]
    assert found == seen


@pytest.mark.parametrize(("keys", "dtype"), [
    ({"dtype": "float32"}, "float"), ({"torch_dtype": "float16"}, "float16"), ({"torch_dtype": "auto"}, "bfloat16"),
    ({"dtype": None, "torch_dtype": "torch.float32"}, "float"), ({}, "bfloat16"),
])  # fmt: skip
def test_the_type_of_weights_may_be_said_in_several_ways(tmp_path, keys, dtype):
    model = configured(written(tmp_path, {"model_type": "llama", **GROUPED, **keys}), {})
    assert model.tensor(model.parameters[0].tensor).dtype == dtype


def experts_of(model):
    return [number for number in range(4) if any(f"layers.{number}.mlp.experts" in p.name for p in model.parameters)]


@pytest.mark.parametrize(("keys", "found"), [
    ({"model_type": "qwen3_moe"}, [0, 1, 2, 3]),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, [1, 3]),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [1, 2]}, [0, 3]),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [1], "decoder_sparse_step": 2}, [3]),
    ({"model_type": "llama4_text", "intermediate_size_mlp": 64, "moe_layers": [2]}, [2]),
    ({"model_type": "llama4_text", "intermediate_size_mlp": 64, "interleave_moe_layer_step": 2}, [1, 3]),
    ({"model_type": "llama4_text", "intermediate_size_mlp": 64, "moe_layers": None}, [0, 1, 2, 3]),
])  # fmt: skip
def test_layers_with_experts_are_those_of_the_config(tmp_path, keys, found):
    config = {**GROUPED, **ROUTED, "num_hidden_layers": 4, **keys}
    assert experts_of(configured(written(tmp_path, config), {})) == found


def test_without_shared_experts_there_is_no_mlp_beside_the_others(tmp_path):
    model = configured(written(tmp_path, {"model_type": "deepseek_v3", **LATENT, "n_shared_experts": None}), {})
    assert not [weight.name for weight in model.parameters if "shared" in weight.name]


def test_the_text_part_may_stand_beside_what_sees(tmp_path):
    """As Qwen2.5-VL is published, and as transformers 5 saves it."""
    flat = configured(written(tmp_path, {"model_type": "qwen2_5_vl", "vision_config": {}, **GROUPED}), {})
    nested = {"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text", **GROUPED}}
    inside = configured(written(tmp_path, nested), {})
    assert parameters(flat) == parameters(inside) == BASE + 512 * 64 + 2 * (64 + 2 * 32)
    assert [told.code for told in (*flat.warnings, *inside.warnings)] == ["text-part", "text-part"]


def test_a_table_of_positions_has_the_rows_of_its_checkpoint(tmp_path):
    path = written(tmp_path, {"model_type": "gpt2", **GPT2})
    assert [configured(path, {"seq": seq}).tensor("transformer.wpe.weight").shape for seq in (16, 64, 128)] == [
        (64, 64), (64, 64), (128, 64),
    ]  # fmt: skip


REFUSED = {
    "layer_types": (
        {"sliding_window": 16, "layer_types": ["full_attention", "linear_attention"]},
        'layer_types has "linear_attention", which is not supported',
    ),
    "biases": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "mlp_bias": True},
        "mlp_bias is true, which is not supported; it must be false",
    ),
    "lists": (
        {
            "model_type": "llama4_text",
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "moe_layers": "all",
            "intermediate_size_mlp": 64,
        },
        'moe_layers is "all", it must be a list of numbers of layers',
    ),
    "mechanism": (
        {"model_type": "deepseek_v32"},
        "model_type 'deepseek_v32' is not supported: a description cannot express the indexer",
    ),
    "unlike": (
        {
            "model_type": "dbrx",
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "attn_config": {"kv_n_heads": 2},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 96},
        },
        "ffn_config.hidden_size is 96, which is not supported; it must be that of d_model",
    ),
    "layers unlike": (
        {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [1, 2]},
        "moe_topk is [1, 2], it must be a whole number",
    ),
    "kind of number": (
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 3},
        "num_ln_in_parallel_attn is 3, which is not supported; it must be 2 or null or 1",
    ),
    "activation": ({"hidden_act": "relu2"}, 'hidden_act is "relu2", which is not supported; it must be "silu"'),
    "quantised": ({"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}, which is not supported'),
    "no number": ({"hidden_size": "64"}, 'hidden_size is "64", it must be a whole number'),
    "text for a switch": (
        {"tie_word_embeddings": "false", "attention_bias": "no", "use_sliding_window": "yes"},
        'tie_word_embeddings is "false", it must be true or false',
    ),
    "text for a flag": ({"attention_bias": "no"}, 'attention_bias is "no", it must be true or false'),
    "text for a case": (
        {"model_type": "gpt_neox", "hidden_act": "gelu", "use_parallel_residual": "false"},
        'use_parallel_residual is "false", it must be true or false',
    ),
    "text for another row": (
        {"model_type": "falcon", "new_decoder_architecture": "false", "hidden_act": "gelu"},
        'new_decoder_architecture is "false", it must be true or false',
    ),
    "no heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0, it must be at least 1"),
    "nothing": ({"num_hidden_layers": None}, "there is no 'num_hidden_layers'"),
    "another": ({"model_type": "xlnet"}, "model_type 'xlnet' is not supported"),
    "precision": ({"dtype": "float8"}, 'dtype is "float8", which is not supported'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_said_is_refused(tmp_path, capsys, what):
    keys, said = REFUSED[what]
    path = written(tmp_path, {"model_type": "llama", **GROUPED, **keys})
    assert main(["solve", str(path), "--mesh", "2x2"]) == 2
    assert f"{path}: {said}" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    "kind", ["bart", "chatglm", "gemma3n_text", "internlm2", "lfm3", "minicpm", "minimax_text_01", "zamba", "xlnet", ""]
)
def test_an_unknown_type_is_not_taken_for_another(tmp_path, kind):
    """The nearest name would be another model; one that is unlike all is no reason to list them."""
    with pytest.raises(ShardplanError) as caught:
        configured(written(tmp_path, {**GROUPED, "model_type": kind}), {})
    (told,) = caught.value.diagnostics
    assert told.summary.endswith(f"config.json: model_type '{kind}' is not supported")
    assert told.hint == (
        "docs/command-line.md lists the types that are; else plan the module itself: shardplan.torch.plan, or "
        "my_pkg.module:build as MODEL"
    )


def test_the_page_lists_all_types_and_styles():
    """The message on an unknown type names it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert [name for name in (*ARCHITECTURES, *STYLES) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("kind", "meant"),
    [("lama", "llama"), ("mistal", "mistral"), ("Qwen-3", "qwen3"), ("deepseek-v3", "deepseek_v3"), ("GPT2", "gpt2"),
     ("gpt-noex", "gpt_neox"), ("falcno", "falcon")],
)  # fmt: skip
def test_a_misspelled_type_is_said(tmp_path, kind, meant):
    with pytest.raises(ShardplanError) as caught:
        configured(written(tmp_path, {**GROUPED, "model_type": kind}), {})
    assert [told.hint for told in caught.value.diagnostics] == [f"did you mean '{meant}'?"]


def test_faults_are_said_together(tmp_path):
    path = written(
        tmp_path, {"model_type": "llama", **GROUPED, "hidden_act": "relu", "tie_word_embeddings": False, "dtype": 8}
    )
    with pytest.raises(ShardplanError) as caught:
        configured(path, {"heads": 8})
    assert [fault.code for fault in caught.value.diagnostics] == ["bad-config", "bad-config", "unknown-dim"]


def test_a_key_that_is_there_twice_is_refused(tmp_path, capsys):
    path = written(tmp_path, {"model_type": "llama", **GROUPED})
    path.write_text(path.read_text().replace("{", '{"hidden_size": 128, ', 1))
    assert main(["inspect", str(path)]) == 2
    assert capsys.readouterr().err == (
        f'error[bad-config]: {path}: "hidden_size" is there twice\nhint: keep one of them\n'
    )


def test_the_mark_of_editors_is_no_part_of_a_config(tmp_path):
    path = written(tmp_path, {"model_type": "llama", **GROUPED})
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert parameters(configured(path, {})) == BASE + 512 * 64


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_other_json_is_no_model(tmp_path, capsys, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["inspect", str(path)]) == 2
    assert "error[bad-config]" in capsys.readouterr().err


@pytest.mark.parametrize(("keys", "said"), [
    ({"model_type": ["llama"]}, 'config.json: model_type is ["llama"], it must be a name such as "llama"'),
    ({"model_type": "llava", "text_config": {"model_type": 3}}, "config.json: text_config.model_type is 3, it must be"),
])  # fmt: skip
def test_an_architecture_that_is_no_name_is_refused(tmp_path, monkeypatch, capsys, keys, said):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {**GROUPED, **keys})
    assert main(["inspect", "config.json"]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_of_a_config_is_checked_against_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, {"model_type": "llama", **GROUPED})
    assert main(["solve", "config.json", "--mesh", "2x2", "--dim", "batch=4", "-o", "p.json"]) == 0
    assert main(["check", "p.json"]) == 0
    path.write_text(path.read_text().replace('"intermediate_size": 128', '"intermediate_size": 256'))
    assert main(["check", "p.json"]) == 1
    capsys.readouterr()
