"""What a plan's choices make is the plan: derived again, every kind of plan is the same to the byte."""

import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from control_models import COUNTED, WHILE
from small_models import FOUR_GEMMS, GPT_BLOCK, LLAMA_BLOCK, LSTM, MOE, proto_of

from shardplan.api import make_plan
from shardplan.layout.layout import Layout
from shardplan.layout.placement import Placement, R, S
from shardplan.model.read import read_model
from shardplan.plan.file import loads
from shardplan.plan.format.encode import dumps
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.study.derive import NotDerivableError, derived

GEMMS = FOUR_GEMMS.replace("BATCH", "32")
OURS = "extends: builtin:h100-dgx\nname: ours\ndevice: {launch_us: 3}\n"
STAGES = """
stages:
  - {runs: [Gemm_0, Relu_1, Gemm_2], mesh: 1x2, parameters: {w1: [null, gpu]}}
  - {runs: ["*"], mesh: 1x2}
pipeline_intermediate_axes: {gpu: 0}
"""
SOFT = {"parameters": {"w1": {"dims": [None, "gpu"], "cost": "3 us"}, "w2": {"dims": ["gpu", None], "cost": "1 ns"}}}
WIDE = FOUR_GEMMS.replace("BATCH", "4096")
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "training": (GPT_BLOCK, {"mesh": "1x2"}),
    "serving": (LLAMA_BLOCK, {"mesh": "1x2", "mode": "inference"}),
    "recomputing": (GPT_BLOCK, {"mesh": "1x2", "remat": "full"}),
    "choosing what to recompute": (WIDE, {"remat": "auto", "memory_limit": "480 KiB"}),
    "microbatches": (GEMMS, {"microbatches": 4}),
    "sharded optimizer": (GEMMS, {"shard_optimizer": True, "optimizer": "sgd"}),
    "pins": (GEMMS, {"pins": ["w1=[null, gpu]", "Relu_1={gpu: x0}"]}),
    "soft constraints": (GEMMS, {"constraints": [SOFT]}),
    "other prices": (GEMMS, {"cost_model": "alpa:beta=1x0.1"}),
    "own cluster": (GEMMS, {"cluster": "ours.yaml"}),
    "best of meshes": (GEMMS, {"mesh": "auto", "devices": "2x2"}),
    "experts": (MOE, {}),
    "recurrent": (LSTM, {}),
    "loop": (COUNTED, {}),
    "loop with a trip count": (WHILE, {"trips": {"Loop_0": 4}}),
    "stages": (GEMMS, {"stages": 2, "microbatches": 4}),
    "stages for serving": (GEMMS, {"stages": 2, "microbatches": 4, "mode": "inference"}),
    "interleaved": (GEMMS, {"mesh": "1x2", "stages": 2, "microbatches": 4, "schedule": "interleaved:2"}),
    "stages of 16-bit values": (
        GEMMS.replace("float[", "bfloat16["),
        {"stages": 2, "microbatches": 4, "optimizer": "adam-fp32"},
    ),
    "stages by hand": (GEMMS, {"constraints": ["stages.yaml"], "microbatches": 2}),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ours.yaml").write_text(OURS)
    Path("stages.yaml").write_text(STAGES)
    return tmp_path


def planned(text: str, asked: dict[str, object]) -> Plan:
    onnx.save(proto_of(text), "m.onnx")
    return make_plan("m.onnx", **{"mesh": "2x2", **asked}, effort="quick")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plan_is_derived_again_to_the_byte(case, here):
    text, asked = CASES[case]
    plan = planned(text, asked)
    written = loads(dumps(plan))
    sizes = {f"trip:{name}": count for name, count in asked.get("trips", {}).items()}
    again = derived(written, "p", read_model("m.onnx", sizes))
    assert dumps(replace(again, sources=plan.sources)) == dumps(plan)


def test_a_pipeline_whose_search_was_cut_off_is_derived_with_what_it_says_of_that(here):
    text, asked = CASES["stages"]
    plan = planned(text, asked)
    cut = replace(plan, summary=replace(plan.summary, outcome="interrupted", reproducible=False))
    assert derived(cut, "p", read_model("m.onnx")).summary == cut.summary


def _split(operator: OperatorDecision, shard: Placement, *factors: str) -> OperatorDecision:
    """An operator that is split by factors that it has not, and reads everything so."""
    reads = tuple(layout and Layout.of(shard, shard) for layout in operator.reads)
    return replace(operator, split=factors, reads=reads)


def test_a_choice_that_there_is_not_is_named(here):
    plan = planned(GEMMS, {"mode": "inference"})
    model = read_model("m.onnx")
    first, *rest = plan.operators
    cases = [
        (replace(plan, operators=tuple(rest)), f"operators: the model's '{first.name}' is missing"),
        (replace(plan, tensors=plan.tensors[1:]), f"tensors: the model's '{plan.tensors[0].name}' is missing"),
        (replace(plan, operators=(_split(first, S(1), "n", "q"), *rest)), f"the operator '{first.name}' cannot be"),
    ]
    for wrong, said in cases:
        with pytest.raises(NotDerivableError, match=re.escape(said)):
            derived(wrong, "p", model)


def test_decisions_keep_their_constraints(here):
    plan = planned(GEMMS, {"pins": ["w1=[null, gpu]"]})
    free = planned(GEMMS, {})
    kept = {one.name: one.layout for one in free.tensors}
    assert kept["w1"] != Layout.of(R, S(1))
    with pytest.raises(NotDerivableError, match="'w1' is not as the constraint"):
        derived(replace(free, model=plan.model), "p", read_model("m.onnx"))
