"""`--to deepspeed`: patterns that match the weights they are for, fused columns, and what AutoTP has no words for."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from small_plans import plan_of, weight
from tensor_parallel import LLAMA, QWEN, one_layer, planned

from shardplan.export.deepspeed import export_deepspeed
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.plan.file import read_plan
from shardplan.plan.types import OperatorDecision, TensorDecision

ROOT = Path(__file__).parents[2]


def section(exported):
    return json.loads(exported.text)["tensor_parallel"]


def test_llama(tmp_path):
    rules = {name: style for name, style in LLAMA.items() if name not in ("model.embed_tokens", "lm_head")}
    plan = planned("transformer:llama3-8b,layers=2,vocab=4096", tmp_path, rules, "--mode", "inference")
    exported = export_deepspeed(plan)
    found = section(exported)
    assert found["autotp_size"] == 4
    assert not found["partition_config"]["use_default_specs"]
    kinds = {spec["partition_type"]: spec["patterns"] for spec in found["partition_config"]["layer_specs"]}
    parameters = [tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"]
    for kind, names in {"column": ("q", "k", "v", "gate", "up"), "row": ("o", "down")}.items():
        matched = {name for name in parameters if any(re.match(pattern, name) for pattern in kinds[kind])}
        expected = {name for name in parameters if name.endswith(tuple(f".{part}_proj.weight" for part in names))}
        assert {name for name in matched if "layers" in name} == expected


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_norms_of_queries_and_keys(tmp_path, mode):
    """Whole, but in training their gradients are summed over heads."""
    rules = {name: style for name, style in LLAMA.items() if name != "model.embed_tokens"}
    exported = export_deepspeed(planned(str(one_layer(QWEN, tmp_path)), tmp_path, rules, "--mode", mode, mesh="gpu=2"))
    specs = section(exported)["partition_config"]["layer_specs"]
    summed = [spec for spec in specs if spec["partition_type"] == "skip"]
    names = [rf"(.*\.)?model\.layers\.\d+\.self_attn\.{name}_norm\.weight$" for name in ("q", "k")]
    expected = [{"patterns": names, "partition_type": "skip", "grad_allreduce": True}]
    assert summed == (expected if mode == "training" else [])


def linear(name, shape, cut, made, **fields):
    """One linear module, its weight [out, in]."""
    decision = weight(f"{name}.weight", shape, cut, (1, 0), **fields)
    whole = Layout.of(R)
    data = whole if made.placements[0].is_shard else Layout.of(S(1))
    layout = decision.layout
    operator = OperatorDecision(
        name,
        "MatMul",
        name,
        "m k, k n -> m n",
        ("n",),
        (data, layout),
        (made,),
        1,
        ("x", decision.name),
        (f"{name}.y",),
    )
    return decision, operator


def test_fused_columns(tmp_path):
    cases = {
        "qkv": ((32, 8), Layout.of(S(0, (16, 8, 8))), Layout.of(S(1, (16, 8, 8)))),
        "gate_up": ((32, 8), Layout.of(S(0, (16, 16))), Layout.of(S(1, (16, 16)))),
    }
    made = [linear(name, *case) for name, case in cases.items()]
    x = TensorDecision("x", "input", (4, 8), "float", Layout.of(R), Layout.of(R), 0)
    plan = plan_of(Mesh.of(tp=2), {}, tensors=(*(d for d, _ in made), x), operators=tuple(o for _, o in made))
    specs = section(export_deepspeed(plan))["partition_config"]["layer_specs"]
    assert [(spec["shape"], spec["partition_dim"]) for spec in specs] == [([[16, 8, 8], -1], 0), ([2, -1], 0)]


def test_what_autotp_cannot_say(tmp_path):
    plan = planned("transformer:llama3-8b,layers=2,vocab=4096", tmp_path, LLAMA)
    refused = export_deepspeed(plan).refused
    assert refused[0].detail == "'model.embed_tokens' is an embedding that is cut; AutoTP leaves embeddings whole"
    assert str(refused[1]) == (
        "warning[not-said]: lm_head: gather_output is known to recent versions of DeepSpeed only"
    )
    decision, operator = linear("head", (8, 16), Layout.of(S(0)), Layout.of(S(1)))
    sums = dataclasses.replace(operator, makes=(Layout.of(P()),))
    x = TensorDecision("x", "input", (4, 16), "float", Layout.of(R), Layout.of(R), 0)
    wrong = plan_of(Mesh.of(tp=2), {}, tensors=(decision, x), operators=(sums,))
    assert "stores its weight as [in, out] (Conv1D)" in export_deepspeed(wrong).refused[0].detail
    two = read_plan(ROOT / "plans/llama3_8b.4x8.plan.json")
    assert "parameters are sharded over machine and gpu" in export_deepspeed(two).refused[0].detail
