"""One request: every field checked once, with the same words from Python and the command line, obeyed everywhere."""

import inspect
import json
import pickle
import re
from pathlib import Path
from typing import get_args

import onnx
import pytest
from command_line import shardplan
from small_models import proto_of

import shardplan as package
from shardplan.cli import cli, main
from shardplan.cost.recipes import RECIPES
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.graph.options import Mode, PlanOptions, Remat
from shardplan.plan.format.encode import dumps
from shardplan.request import FIELDS, MODES, OPTIMIZERS, REMATS, Request, option_of

__all__ = ["shardplan"]
LAYERS = """layers (float[64,64] x) => (float[64,64] y) <float[64,256] up, float[256,64] down, float[64,64] last> {
  h = MatMul (x, up)
  a = Relu (h)
  z = MatMul (a, down)
  y = MatMul (z, last)
}"""
STAGES = """stages:
  - runs: ["a", "h", "z"]
    mesh: 1x2
  - runs: ["*"]
    mesh: 1x2
"""


@pytest.fixture
def layers(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    proto = proto_of(LAYERS)
    for node, name in zip(proto.graph.node, "haz", strict=False):
        node.name = name
    onnx.save(proto, "layers.onnx")
    Path("st.yaml").write_text(STAGES)
    return tmp_path


def test_words_are_those_of_the_planner():
    assert (get_args(Mode), get_args(Remat), tuple(RECIPES)) == (MODES, REMATS, OPTIMIZERS)
    defaults = PlanOptions()
    for name in ("mode", "optimizer", "microbatches", "remat", "gap", "seed", "presolve", "strict", "time_limit"):
        assert FIELDS[name].default == getattr(defaults, name)


def test_every_field_is_an_option_of_solve_and_an_argument_of_make_plan():
    options = {flag for option in cli.commands["solve"].params for flag in option.opts}
    assert {option_of(name) for name in FIELDS if name != "model"} <= options
    assert list(inspect.signature(package.make_plan).parameters) == list(FIELDS)


WRONG = {
    "memory_limit": -5,
    "gap": 7,
    "time_limit": -3,
    "kv_cache_tokens": -4,
    "microbatches": True,
    "seed": 0.5,
    "dims": {"batch": 0},
    "strict": "yes",
    "devices": "4x4",
    "stages": 0,
}
SAID = """\
error[bad-quantity]: memory_limit -5 leaves no memory
error[bad-argument]: gap is 7; a number between 0 and 1 is expected
error[bad-argument]: time_limit is -3; a number of seconds above 0 is expected
error[bad-argument]: kv_cache_tokens is -4; a whole number of at least 0 is expected
error[bad-argument]: microbatches is True; a whole number of at least 1 is expected
error[bad-argument]: seed is 0.5; a whole number of at least 0 is expected
error[bad-argument]: dims: 'batch' is 0; a whole number of at least 1 is expected
error[bad-argument]: strict is 'yes'; True or False is expected
error[bad-stages]: stages '0' is no number of stages
hint: a positive number, auto, or the file of a plan (.json)
error[bad-argument]: devices goes with mesh auto; otherwise mesh says which devices there are"""


def test_values_that_cannot_be_are_refused_together(layers):
    with pytest.raises(ShardplanError) as caught:
        package.make_plan("layers.onnx", "1x2", **WRONG)
    assert sorted(str(caught.value).splitlines()) == sorted(SAID.splitlines())
    with pytest.raises(ShardplanError) as alone:
        Request("layers.onnx", "1x2", **WRONG)
    assert str(alone.value).count("error[") == len(WRONG)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--memory-limit", "-5", "error[bad-quantity]: --memory-limit '-5' leaves no memory"),
        ("--memory-limit", "0", "error[bad-quantity]: --memory-limit '0' leaves no memory"),
        ("--gap", "7", "error[bad-argument]: --gap is '7'; a number between 0 and 1 is expected"),
        ("--gap", "nan", "error[bad-argument]: --gap is 'nan'; a number between 0 and 1 is expected"),
        ("--time-limit", "-3", "error[bad-argument]: --time-limit is '-3'; a number of seconds above 0 is expected"),
        ("--kv-cache", "tokens=-4", "error[bad-cache]: --kv-cache 'tokens=-4' cannot be read"),
        ("--microbatches", "0", "error[bad-argument]: --microbatches is '0'; a whole number of at least 1 is expected"),
        ("--mode", "inferense", "error[bad-argument]: --mode 'inferense' is none of training, inference\nhint: did"),
        (
            "--for",
            "vllm",
            (
                "error[bad-argument]: --for 'vllm' is none of tp-plan, tp-plan-portable, deepspeed, torchtitan, fsdp2, "
                "megatron, maxtext, jax, shardy, transformers\n"
            ),
        ),
        ("--stages", "0", "error[bad-stages]: --stages '0' is no number of stages"),
        ("--devices", "4x4", "error[bad-argument]: --devices goes with --mesh auto; otherwise --mesh says which"),
    ],
)
def test_the_command_line_says_the_same(layers, shardplan, option, value, said):
    run = shardplan("solve", "layers.onnx", "--mesh", "1x2", option, value)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(said)


def test_transformers_is_another_word_for_its_format():
    assert Request("a.onnx", target="transformers") == Request("a.onnx", target="tp-plan")


ODD = (
    None,
    object(),
    float("nan"),
    float("-inf"),
    10**400,
    -1,
    1.5,
    True,
    "",
    "\ud800",
    "9" * 5000,
    b"x",
    [],
    {},
    [None],
    {1: 2},
)


@pytest.mark.parametrize("name", FIELDS)
def test_nothing_but_a_diagnostic_comes_of_odd_values(name):
    """Whatever a field is given, the request is made or says what is wrong with it."""
    codes = set()
    for value in ODD:
        try:
            made = Request(**{"model": "m.onnx", name: value})
            assert Request(**{"model": "m.onnx", name: getattr(made, name)}) == made
        except ShardplanError as problem:
            codes |= {diagnostic.code.partition("-")[0] for diagnostic in problem.diagnostics}
    assert codes <= {"bad"}


def test_the_mesh_may_be_chosen(layers):
    chosen = package.make_plan("layers.onnx", "auto", devices="1x4")
    assert main(["solve", "layers.onnx", "--mesh", "auto", "--devices", "1x4", "-q", "-o", "auto.json"]) == 0
    assert dumps(chosen) == Path("auto.json").read_text(encoding="utf-8")
    with pytest.raises(ShardplanError, match="mesh auto and stages: stages choose their meshes among the parts of one"):
        package.make_plan("layers.onnx", "auto", stages=2)
    with pytest.raises(InfeasibleError, match="no plan fits in memory"):
        package.make_plan("layers.onnx", "auto", devices="1x4", memory_limit=10_000)
    with pytest.raises(ShardplanError, match="cannot be combined with stages fixed by hand") as refused:
        package.make_plan("layers.onnx", "auto", devices="1x4", constraints=["st.yaml"])
    assert refused.value.diagnostics[0].hint == "leave out --mesh auto"


def test_stages_are_planned_from_python_too(layers):
    assert (
        main(["solve", "layers.onnx", "--mesh", "1x4", "--stages", "2", "--microbatches", "2", "-qo", "two.json"]) == 0
    )
    plan = package.make_plan("layers.onnx", "1x4", stages=2, microbatches=2)
    assert dumps(plan) == Path("two.json").read_text(encoding="utf-8")
    as_there = package.make_plan("layers.onnx", "1x4", stages=plan, microbatches=4)
    by_file = package.make_plan("layers.onnx", "1x4", stages=Path("two.json"), microbatches=4)
    names = [
        [[one.name for one in stage.plan.operators] for stage in p.pipeline.stages] for p in (plan, as_there, by_file)
    ]
    assert names[0] == names[1] == names[2]
    with pytest.raises(ShardplanError, match="this plan has no stages") as refused:
        package.make_plan("layers.onnx", "1x4", stages=plan.pipeline.stages[0].plan)
    assert refused.value.diagnostics[0].hint == "give a plan that was solved with --stages"


def test_stages_by_hand_are_obeyed_everywhere(layers, shardplan):
    assert main(["solve", "layers.onnx", "--mesh", "1x4", "--constraints", "st.yaml", "-qo", "hand.json"]) == 0
    solved = Path("hand.json").read_text(encoding="utf-8")
    by_file = package.make_plan("layers.onnx", "1x4", constraints=["st.yaml"])
    assert dumps(by_file) == solved
    entries = [{"runs": ["a", "h", "z"], "mesh": "1x2"}, {"runs": ["*"], "mesh": "1x2"}]
    by_mapping = package.make_plan("layers.onnx", "1x4", constraints=[{"stages": entries}])
    assert by_mapping.pipeline is not None
    assert by_mapping.summary == by_file.summary
    swept = shardplan("sweep", "layers.onnx", "--mesh", "1x4,auto", "--constraints", "st.yaml", "--json", "-q")
    one, auto = json.loads(swept.out)["result"]["points"]
    assert one["step_us"] == by_file.summary.step_ns / 1000
    assert (auto["outcome"], auto["step_us"]) == ("refused", None)
    evaluated = shardplan("evaluate", "layers.onnx", "--mesh", "1x4", "--fix", "st.yaml")
    assert evaluated.code == 2
    assert evaluated.err.startswith("st.yaml: error[bad-stages]: stages cannot be evaluated")


@pytest.mark.parametrize(
    ("constraints", "asked", "said"),
    [
        (["st.yaml"], {"stages": 2}, "st.yaml: error[bad-stages]: stages are asked for and fixed here: only one"),
        (["st.yaml", "more.yaml"], {}, "st.yaml: error[bad-stages]: stages are fixed here, and in more.yaml too"),
        ([{"pipeline_intermediate_axes": {"gpu": 0}}], {}, "constraints[0]:2:3: error[bad-stages]: pipeline_interm"),
        (
            ["st.yaml"],
            {"uneven": True},
            "st.yaml: error[bad-stages]: uneven shards go with one mesh, and not with stages",
        ),
        (["two.json"], {}, "two.json: error[pipeline-plan]: this plan is a pipeline of 2 stages, not constraints of"),
        (
            ["st.yaml"],
            {"target": "jax"},
            "st.yaml: error[bad-stages]: jax cannot express a pipeline: its plans are of one mesh",
        ),
        (
            [],
            {"stages": 2, "target": "fsdp2"},
            "error[bad-stages]: fsdp2 cannot express a pipeline: its plans are of one mesh",
        ),
        ([3], {}, "error[bad-argument]: constraints[0] is 3; a file, a mapping or a plan is expected"),
    ],
)
def test_no_key_of_constraints_is_passed_over(layers, constraints, asked, said):
    Path("more.yaml").write_text(STAGES)
    package.save(package.make_plan("layers.onnx", "1x4", stages=2), "two.json")
    with pytest.raises(ShardplanError) as caught:
        package.make_plan("layers.onnx", "1x4", constraints=constraints, **asked)
    assert str(caught.value).startswith(said)


def test_a_request_can_be_sent_to_a_worker():
    request = Request("transformer:llama3-8b,layers=1", "1x4", dims={"batch": 4}, constraints="one.yaml")
    assert pickle.loads(pickle.dumps(request)) == request
    assert (request.constraints, request.trips) == (("one.yaml",), {})


def test_robustness_is_that_of_the_command_line(layers, shardplan):
    run = shardplan("solve", "layers.onnx", "--mesh", "1x2", "--robust", "2", "--json", "-o", "one.json")
    found = package.robustness(package.load("one.json"), "layers.onnx", 2)
    assert [round(regret, 6) for regret in found.regrets] == json.loads(run.out)["result"]["robustness"]["regrets"]
    run = shardplan("solve", "layers.onnx", "--mesh", "1x4", "--stages", "2", "--robust", "2")
    assert run.code == 2
    assert run.err == (
        "error[pipeline-plan]: the plan is a pipeline; sensitivity analysis is for plans of one mesh\n"
        "hint: leave out --robust, or solve without stages\n"
    )


def test_helps_are_of_one_table(shardplan):
    helps = {name: shardplan(name, "--help").out for name in ("solve", "compare", "evaluate", "sweep")}
    for text in helps.values():
        assert "Optimizer state to budget for." in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mode": "inference", "optimizer": "sgd"}, "optimizer is of training"),
        ({"mode": "inference", "remat": "full"}, "remat is of training"),
        ({"mode": "inference", "shard_optimizer": True}, "shard_optimizer is of training"),
        ({"schedule": "gpipe"}, "schedule gpipe is of a pipeline, and no stages are asked for"),
        ({"schedule": None}, "schedule is None; text is expected"),
        ({"cost_model": None}, "cost_model is None; text is expected"),
        ({"seed": -1}, "seed is -1; a whole number of at least 0 is expected"),
        ({"pins": [3]}, "pins is 3; text is expected"),
        ({"pins": {"x": 1}}, "pins is {'x': 1}; text is expected"),
        ({"memory_limit": "40"}, "memory_limit 40 has no unit"),
        ({"constraints": [{"parameters": {"x": 1j}}]}, "constraints[0] holds what YAML cannot express: 1j"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_read_is_refused(asked, said):
    model = "transformer:layers=1,hidden=256,heads=4,vocab=512,seq=128,batch=16"
    with pytest.raises(ShardplanError) as problem:
        package.make_plan(model, "2x2", **asked)
    assert said in str(problem.value)
