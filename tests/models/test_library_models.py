"""Descriptions beside transformers: as many parameters, and with the same weights the same logits.

`benchmarks/config_counts.py --library --write` and `benchmarks/library_logits.py --write` make the files.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from library_models import CONFIGS, LOGITS, tiny_model, values_of

from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.models.hugging_face import configured
from shardplan.models.named import described
from shardplan.program.machine.whole import run_whole

COUNTS = json.loads((Path(__file__).parent / "library_counts.json").read_text())
KNOWN = json.loads(LOGITS.read_text())
SMALL = {
    "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    """Writes a configuration; its path."""

    def written(**keys):
        path = tmp_path / "some.json"
        path.write_text(json.dumps({**SMALL, **keys}))
        return path

    return written


def mixers_of(model):
    """A letter for each layer by what its operators are."""
    letters = {"LinearAttention": "D", "Attention": "*"}
    return "".join(letters[one.op_type] for one in model.operators if one.op_type in letters)


@pytest.mark.parametrize("kind", COUNTS)
def test_as_many_parameters(kind, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(json.dumps(COUNTS[kind]["config"]))
    model = configured(path, {"batch": 1, "seq": 128})
    assert sum(model.tensor(weight.tensor).elements for weight in model.parameters) == COUNTS[kind]["parameters"]


def test_named_models_have_the_published_sizes():
    found = {
        name: sum(model.tensor(weight.tensor).elements for weight in model.parameters)
        for name in ("qwen3-next-80b-a3b", "kimi-linear-48b-a3b")
        for model in [described(f"transformer:{name}")]
    }
    assert found == {"qwen3-next-80b-a3b": COUNTS["qwen3_next"]["parameters"], "kimi-linear-48b-a3b": 49_122_675_072}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_same_logits(kind, tmp_path):
    model = tiny_model(kind, tmp_path)
    (logits,) = run_whole(model, values_of(kind, model)).values()
    known = np.array(KNOWN[kind])
    # transformers adds 1e-6 to squared lengths, and rounds gates to single precision
    assert np.abs(logits[0] - known).max() < 1e-4 * np.abs(known).max()


@pytest.mark.parametrize(
    ("keys", "mixers"),
    [
        ({}, "DDD*DDD*"),
        ({"full_attention_interval": 2}, "D*D*D*D*"),
        ({"layer_types": ["full_attention", "linear_attention"] * 4}, "*D*D*D*D"),
        ({"layer_types": ["linear_attention"] * 8}, "DDDDDDDD"),
        ({"layer_types": ["full_attention"] * 8}, "********"),
        ({"linear_attn_config": {"full_attn_layers": [1, 8]}}, "*DDDDDD*"),
    ],
)
def test_which_layers_are_attention(config, keys, mixers):
    assert mixers_of(configured(config(**keys), {"batch": 1, "seq": 16})) == mixers


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"layer_types": ["full_attention", "rnn"] * 4},
            "layer_types must be a list of full_attention or attention or",
        ),
        ({"layer_types": "all"}, "layer_types must be a list of"),
        ({"model_type": "minimax", "num_local_experts": 2, "num_experts_per_tok": 1}, "there is no 'layer_types'"),
        (
            {"model_type": "minimax", "num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": None},
            "there is no 'layer_types'",
        ),
        ({"attn_layer_indices": [1, "two"]}, "the layers that are attention must be whole numbers"),
        ({"full_attention_interval": "four"}, "the layers that are attention must be whole numbers"),
        ({"linear_num_key_heads": 3}, "delta_heads (4) is no multiple of delta_key_heads (3)"),
        ({"model_type": "lfm2", "conv_L_cache": 3, "block_multiple_of": 0}, "block_multiple_of must be a positive"),
        ({"model_type": "jamba"}, "a description cannot express the selective scan of Mamba-1"),
    ],
)
def test_what_is_refused(config, keys, said):
    with pytest.raises(ShardplanError) as caught:
        configured(config(**keys), {"batch": 1, "seq": 16})
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["qwen3_next", "kimi_linear", "falcon_h1", "lfm2", "minimax"])
def test_heads_and_channels_can_be_split(kind, tmp_path, capsys):
    tiny_model(kind, tmp_path)
    model, plan, asked = (str(tmp_path / name) for name in (f"{kind}.json", "some.plan.json", "asked.yaml"))
    wanted = {
        "qwen3_next": "{'*.linear_attn.LinearAttention': {gpu: h}, '*.linear_attn.out_proj': {gpu: k}}",
        "kimi_linear": "{'*.self_attn.LinearAttention': {gpu: h}, '*.mlp.down_proj': {gpu: k}}",
        "falcon_h1": "{'*.mamba.LinearAttention': {gpu: h}, '*.self_attn.o_proj': {gpu: k}}",
        "minimax": "{'*.self_attn.LinearAttention': {gpu: h}, '*.self_attn.out_proj': {gpu: k}}",
        "lfm2": "{'*.conv.CausalConvWithState': {gpu: c}, '*.conv.out_proj': {gpu: k}}",
    }
    Path(asked).write_text(f"operators: {wanted[kind]}\n")
    dims = ["--dim", "batch=4", "--dim", "seq=8"]
    assert main(["solve", model, "--mesh", "2x2", "-o", plan, "--constraints", asked, "--no-advice", *dims]) == 0
    assert main(["verify", model, plan]) == 0, capsys.readouterr()
