"""`--to torchtitan`: the four sides of every module, evaluated, and what has no boundary to be written at."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from example_plans import example_plan
from tensor_parallel import LLAMA, planned, solved

from shardplan.export.titan import export_titan
from shardplan.export.tp_plan import constraints_from_tp_plan
from shardplan.plan.file import read_plan

ROOT = Path(__file__).parents[2]
SMALL_LLAMA = "transformer:llama3-8b,layers=2,vocab=4096"


@dataclass
class ShardingConfig:
    """The fields of torchtitan's."""

    state_shardings: dict
    in_src_shardings: dict | None = None
    in_dst_shardings: dict | None = None
    out_src_shardings: dict | None = None
    out_dst_shardings: dict | None = None


@pytest.fixture
def evaluate(monkeypatch):
    """Run the text; placements are written `S0`, `R`, `P` where torch is a stand-in."""
    fake = ModuleType("torch.distributed.tensor")
    fake.Shard, fake.Replicate, fake.Partial = (lambda dim: f"S{dim}"), (lambda: "R"), (lambda: "P")
    for name in ("torch", "torch.distributed"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", fake)

    def run(text, axis=str):
        module: dict = {}
        exec(compile(text, "titan.py", "exec"), module)
        return module["sharding_configs"](ShardingConfig, axis)

    return run


def test_columns_and_rows(tmp_path, evaluate):
    plan = planned(SMALL_LLAMA, tmp_path, LLAMA, "--mode", "inference")
    exported = export_titan(plan)
    assert exported.refused == ()
    configs = evaluate(exported.text, {"gpu": "tp"}.get)
    assert configs["model.layers.*.self_attn.q_proj"] == ShardingConfig(
        {"weight": {"tp": "S0"}}, {"input": {"tp": "R"}}, {"input": {"tp": "R"}}, {"tp": "S2"}, {"tp": "S2"}
    )
    assert configs["model.layers.*.self_attn.o_proj"] == ShardingConfig(
        {"weight": {"tp": "S1"}}, {"input": {"tp": "S2"}}, {"input": {"tp": "S2"}}, {"tp": "P"}, {"tp": "R"}
    )
    assert configs["model.embed_tokens"].state_shardings == {"weight": {"tp": "S0"}}
    parameters = {tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"}
    assert {name.replace(".*.", ".0.") for name in configs} == {
        name.rpartition(".")[0] for name in parameters if ".1." not in name
    }


def test_sequence_parallelism_is_said(tmp_path, evaluate):
    """Sums are reduced to slices of the sequence behind a row; what a norm makes is gathered once for its readers."""
    constraints = constraints_from_tp_plan(LLAMA, "gpu").replace("forbid: [reduce_scatter, all_to_all]", "forbid: []")
    constraints = constraints.replace("operators:", 'operators:\n  "*layernorm": {gpu: x1}')
    kept_in_slices = ("model.layers.[01]", "*.o_proj", "*.down_proj", "*layernorm")
    sums = ", ".join(f'"{name}": [null, gpu, null]' for name in kept_in_slices)
    tensors = f"tensors: {{{sums}}}\n"
    plan = solved(SMALL_LLAMA, tmp_path, constraints + tensors)
    kept = next(tensor for tensor in plan.tensors if tensor.served.forward != tensor.layout.forward)
    assert kept.role == "activation"
    exported = export_titan(plan)
    configs = evaluate(exported.text)
    assert configs["model.layers.*.self_attn.o_proj"].out_dst_shardings == {"gpu": "S1"}
    norm = configs["model.layers.*.post_attention_layernorm"]
    assert (norm.in_dst_shardings, norm.out_src_shardings) == ({"input": {"gpu": "S1"}}, {"gpu": "S1"})
    assert norm.out_dst_shardings == {"gpu": "R"}
    assert configs["model.layers.*.mlp.up_proj"].in_src_shardings == {"input": {"gpu": "R"}}


def test_what_has_no_boundary():
    exported = export_titan(read_plan(ROOT / "plans/gpt2_small.4x4.plan.json"))
    assert str(exported.refused[0]) == (
        "error[cannot-say]: a ShardingConfig cannot say what this plan does\n"
        "  'lm_head.weight' is kept in shards and gathered for use (ZeRO-3), which is FSDP's (and 1 more like this)\n"
        "  'add_1' is moved between operators that are in no module with parameters"
    )
    detail = export_titan(example_plan()).refused[0].detail
    assert "'layers.0.attention.qkv.weight' is cut by segments (a fused dim) (and 1 more like this)" in detail
    assert "'embed.weight' is sharded by axes in another order than the mesh's" in detail


def test_every_committed_plan_is_python():
    for path in sorted((ROOT / "plans").glob("*.json")):
        compile(export_titan(read_plan(path)).text, "titan.py", "exec")
