"""`--to tp-plan`: Llama's plan comes out as published, plans go there and back, and what does not fit is said."""

import json
from pathlib import Path

import pytest
from example_plans import example_plan
from tensor_parallel import LAYER, LLAMA, MIXTRAL, QWEN, one_layer, planned, solved

from shardplan.errors import ShardplanError
from shardplan.export.tp_plan import constraints_from_tp_plan, export_portable, export_tp_plan
from shardplan.plan.file import read_plan

ROOT = Path(__file__).parents[2]
NORMS = {
    f"model.layers.*.self_attn.{name}_norm": "replicated_with_grad_allreduce" for name in ("q", "k")
}  # of Qwen3: replicated, and their gradients are summed over heads
SMALL_LLAMA = "transformer:llama3-8b,layers=2,vocab=4096"


def test_llama_comes_out_as_published(tmp_path):
    plan = planned(str(ROOT / "tests/models/llama3_8b.onnx"), tmp_path, LLAMA)
    exported = export_portable(plan)
    assert exported.refused == ()
    document = json.loads(exported.text)
    assert document["base_model_tp_plan"] == LAYER
    assert (document["tp_size"], document["base_model_prefix"]) == (4, "model")
    assert document["tp_plan"]["lm_head"] == "colwise_rep"
    assert json.loads(export_tp_plan(plan).text)["tp_plan"] == LLAMA


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_there_and_back(tmp_path, mode):
    plan = planned(SMALL_LLAMA, tmp_path, LLAMA, "--mode", mode)
    exported = export_tp_plan(plan)
    assert exported.refused == ()
    assert json.loads(exported.text)["tp_plan"] == LLAMA


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_norms_of_queries_and_keys(tmp_path, mode):
    plan = planned(str(one_layer(QWEN, tmp_path)), tmp_path, LLAMA | NORMS, "--mode", mode, mesh="gpu=2")
    assert json.loads(export_tp_plan(plan).text)["tp_plan"] == LLAMA | NORMS
    portable = json.loads(export_portable(plan).text)["base_model_tp_plan"]
    assert portable == LAYER | {"layers.*.self_attn.q_norm": "replicate", "layers.*.self_attn.k_norm": "replicate"}


def test_experts_that_are_cut_inside(tmp_path):
    """What transformers publishes for Mixtral, and Qwen3's norms; no portable style says the experts."""
    attention = {name: style for name, style in LLAMA.items() if ".mlp." not in name}
    experts = '  "*experts.gate_up_proj": {gpu: f}\n  "*experts.down_proj": {gpu: i}\n'
    constraints = constraints_from_tp_plan(attention, "gpu") + experts
    plan = solved(str(one_layer(MIXTRAL, tmp_path)), tmp_path, constraints, "--mode", "inference", mesh="gpu=2")
    exported = export_tp_plan(plan)
    assert exported.refused == ()
    assert json.loads(exported.text)["tp_plan"] == attention | NORMS | {
        "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "model.layers.*.mlp.experts.down_proj": "rowwise",
        "model.layers.*.mlp.experts": "moe_tp_experts",
        "model.layers.*.mlp.gate": "replicate",
    }
    found = reasons(plan)
    assert "'model.layers.0.mlp.experts.down_proj' is a stack of experts that is cut: no style of the five" in found


def test_whole_modules_are_said(tmp_path):
    """Readers keep a class's rules for what a plan does not name; norms of layers have none anywhere."""
    rules = {name: style for name, style in LLAMA.items() if ".mlp." in name}
    plan = planned(str(one_layer(QWEN, tmp_path)), tmp_path, rules, "--mode", "inference", mesh="gpu=2")
    whole = {name for name in LLAMA if name not in rules} | set(NORMS)
    assert json.loads(export_tp_plan(plan).text)["tp_plan"] == rules | dict.fromkeys(whole, "replicate")
    exported = export_portable(plan)
    assert json.loads(exported.text)["tp_plan"] == rules | dict.fromkeys(whole, "replicate")
    assert "\n".join(map(str, exported.refused)) == (
        "warning[not-said]: model.embed_tokens: whole in the plan; "
        "vLLM and SGLang cut it over the vocabulary all the same\n"
        "warning[not-said]: lm_head: outside of base_model_tp_plan; readers cut heads by columns and gather"
    )


def test_data_parallelism_beside_it_is_left_to_the_launcher(tmp_path):
    constraints = constraints_from_tp_plan(LLAMA, "gpu").replace("replicate", "[machine]")
    constraints = constraints.replace("axes: {", "axes: {machine: {inputs: 0, parameters: replicate}, ")
    plan = solved(SMALL_LLAMA + ",batch=4", tmp_path, constraints, mesh="2x4")
    exported = export_portable(plan)
    said = "warning[not-said]: machine: data parallelism, which a tp_plan leaves to the launcher"
    assert [str(warning) for warning in exported.refused] == [said]
    assert json.loads(exported.text)["base_model_tp_plan"] == LAYER


def reasons(plan, export=export_portable):
    """What is said of a plan that does not fit."""
    refused = export(plan).refused[0]
    assert (refused.severity, refused.code) == ("error", "cannot-say")
    return refused.detail


def test_two_axes_are_refused():
    plan = read_plan(ROOT / "plans/llama3_8b.4x8.plan.json")
    assert str(export_portable(plan).refused[0]) == (
        "error[cannot-say]: a portable tp_plan cannot express what this plan does\n"
        "  parameters are sharded over machine and gpu, and the format has one axis: "
        "'model.embed_tokens.weight' over machine; 'model.embed_tokens.weight' over gpu\n"
        "hint: solve --for tp-plan-portable finds the best plan that it can express, and what that costs"
    )
    assert "parameters are sharded over machine and gpu" in reasons(example_plan(), export_tp_plan)


def test_sequence_parallelism_is_refused(tmp_path):
    """The same columns and rows, but sums are reduced to slices of the sequence."""
    constraints = constraints_from_tp_plan(LLAMA, "gpu").replace("forbid: [reduce_scatter, all_to_all]", "forbid: []")
    tensors = 'tensors: {"model.layers.0": [null, gpu, null]}\n'
    found = reasons(solved(SMALL_LLAMA, tmp_path, constraints + tensors))
    assert "over gpu (sequence parallelism)" in found
    assert "is gathered over gpu inside of a module" in found


def test_gathered_weights_are_refused(tmp_path):
    constraints = 'parameters: {"*.q_proj.weight": [gpu, null]}\noperators: {"*.q_proj": {gpu: none}}\n'
    found = reasons(solved(SMALL_LLAMA, tmp_path, constraints))
    assert "'model.layers.0.self_attn.q_proj.weight' is kept sharded over gpu and gathered for use (ZeRO-3)" in found


def test_layers_that_differ_are_refused(tmp_path):
    rules = {name.replace("*", "0"): style for name, style in LLAMA.items()}
    found = reasons(planned(SMALL_LLAMA, tmp_path, rules))
    assert "model.layers.*.self_attn.q_proj: layers differ, and a rule is for all of them: " in found


def test_fused_convolutions_of_gpt2_are_refused(tmp_path):
    """GPT-2 stores c_attn as [in, out], q, k and v in one: no style says that."""
    rules = {"c_attn": "n", "c_proj": "k", "c_fc": "n"}
    operators = "".join(f'  "transformer.h.*.{name}": {{gpu: {factor}}}\n' for name, factor in rules.items())
    constraints = 'inputs: {"*": replicate}\noutputs: {"*": replicate}\noperators:\n' + operators
    plan = solved(str(ROOT / "tests/models/gpt2_small.onnx"), tmp_path, constraints, "--mode", "inference")
    found = reasons(plan, export_tp_plan)
    assert (
        "'transformer.h.0.attn.c_attn' stores its weight as [in, out] (Conv1D), and styles are for nn.Linear" in found
    )


def test_styles_that_are_no_tensor_parallelism():
    with pytest.raises(ShardplanError) as caught:
        constraints_from_tp_plan({"a": "colwise", "b": "sequence_parallel", "c": "packed_colwise"}, "gpu")
    assert str(caught.value) == (
        "error[unknown-style]: 'b': style 'sequence_parallel' is none that the planner can be held to\n"
        "error[unknown-style]: 'c': style 'packed_colwise' is none that the planner can be held to"
    )
