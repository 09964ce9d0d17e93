"""`shardplan check PLAN` alone: it finds the inputs that the plan records, and what it prints to repair it runs."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from example_plans import example_plan

from shardplan.errors import ShardplanError
from shardplan.plan.file import read_plan, write_plan
from shardplan.study.freshness import Given, model_now

OURS = "extends: builtin:h100-dgx\nname: ours\ndevice: {{hbm_gbps: {}}}\n"
PLAN = "plans/mlp.2x2.plan.json"
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-q")


def repaired(shardplan, *plans: str) -> list[str]:
    """The repair commands that `check` prints, each of which has been run."""
    rows = json.loads(shardplan("check", *plans, "--json").out)["result"]["plans"]
    commands = [row["repair"] for row in rows if row["status"] != "fresh"]
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "shardplan"
        run = shardplan(*words[1:], "-q")
        assert run.code == 0, (command, run.err)
    return commands


def change_model():
    model = onnx.load("mlp.onnx", load_external_data=False)
    model.graph.node[1].op_type = "Gelu"
    Path("mlp.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("where", ["option", "settings"])
def test_an_edit_of_ones_own_profile_makes_the_plan_stale(where, shardplan, mlp):
    Path("conf").mkdir()
    Path("conf/cluster.yaml").write_text(OURS.format(3000))
    if where == "settings":
        Path("pyproject.toml").write_text('[tool.shardplan]\ncluster = "conf/cluster.yaml"\n')
    assert shardplan(*SOLVE, *(("--cluster", "./conf/cluster.yaml") if where == "option" else ())).code == 0
    assert read_plan(PLAN).sources == {"model": "mlp.onnx", "cluster": "conf/cluster.yaml"}
    assert shardplan("check", PLAN).code == 0
    Path("conf/cluster.yaml").write_text("# only a remark\n" + OURS.format(3000))
    assert shardplan("check", PLAN).code == 0
    Path("conf/cluster.yaml").write_text(OURS.format(1500))
    run = shardplan("check", PLAN)
    assert (run.code, run.out) == (1, f"{PLAN}  stale\n")
    assert "stale: the profile 'conf/cluster.yaml' changed since\n  device.hbm_gbps 3000.0 → 1500.0\n" in run.err
    (command,) = repaired(shardplan, PLAN)
    assert "--cluster conf/cluster.yaml" in command
    assert shardplan("check", PLAN).code == 0


def test_inputs_are_found_above_the_plan_from_any_folder(shardplan, mlp, monkeypatch):
    shardplan(*SOLVE)
    (mlp.parent / "elsewhere").mkdir()
    monkeypatch.chdir(mlp.parent / "elsewhere")
    assert shardplan("check", f"../{PLAN}").code == 0
    change_model_at = mlp.parent
    monkeypatch.chdir(change_model_at)
    change_model()
    monkeypatch.chdir(mlp.parent / "elsewhere")
    assert shardplan("check", f"../{PLAN}").code == 1
    repaired(shardplan, f"../{PLAN}")
    assert shardplan("check", f"../{PLAN}").code == 0


def test_a_path_outside_is_recorded_by_its_name_alone(shardplan, mlp, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("other"))
    shardplan("solve", str(mlp), "--dim", "batch=64", "--mesh", "2x2", "-o", "a.json")
    assert read_plan("a.json").sources["model"] == "mlp.onnx"
    run = shardplan("check", "a.json")
    assert run.code == 2
    assert "error[no-model]: its model 'mlp.onnx' is neither here, nor beside the plan or above it\n" in run.err
    assert shardplan("check", "a.json", "--model", str(mlp)).code == 0
    assert shardplan("check", "a.json", "--without-model").code == 0


NOT_FOLLOWED = "not looked for: an absolute path, or one with '..', is not followed"
NOWHERE = "neither here, nor beside the plan or above it"


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ("/etc/passwd", NOT_FOLLOWED),
        ("../" * 9 + "dev/zero", NOT_FOLLOWED),
        ("../" * 20 + "etc/passwd", NOT_FOLLOWED),
        ("plans/../../secret", NOT_FOLLOWED),
        ("etc/passwd", NOWHERE),
        ("a\0b", NOWHERE),
        ("plans", NOWHERE),
    ],
)
@pytest.mark.parametrize("key", ["model", "cluster", "constraints"])
def test_what_a_plan_records_is_no_way_to_other_files(key, recorded, why, shardplan, mlp):
    (mlp.parent.parent / "secret").write_text("what nobody is to know")
    shardplan(*SOLVE)
    sources = {"model": "mlp.onnx", "cluster": "h100-dgx", key: [recorded] if key == "constraints" else recorded}
    write_plan(replace(read_plan(PLAN), sources=sources), PLAN)
    run = shardplan("check", PLAN)
    assert run.code == 2
    assert f"error[no-{key}]: " in run.err
    assert f"{why}\n" in run.err


def test_a_model_in_a_folder_beside_that_of_the_plans_is_found(shardplan, mlp, monkeypatch):
    for folder in ("models", "work"):
        (mlp.parent / folder).mkdir()
    mlp.rename("models/mlp.onnx")
    monkeypatch.chdir(mlp.parent / "work")
    assert shardplan("solve", "../models/mlp.onnx", "--dim", "batch=64", "--mesh", "2x2").code == 0
    assert read_plan(PLAN).sources["model"] == "models/mlp.onnx"
    assert shardplan("check", PLAN).code == 0
    monkeypatch.chdir("plans")
    assert shardplan("check", Path(PLAN).name).code == 0


@pytest.mark.parametrize(
    "asked",
    [
        ("--mode", "inference", "--memory-limit", "300 KiB"),
        ("--optimizer", "sgd", "--shard-optimizer", "--microbatches", "2"),
        ("--remat", "auto", "--pin", "up.weight=[null, gpu]"),
        ("--constraints", "fixed.yaml", "--pin", "x=replicate"),
        ("--cost-model", "alpa:beta=1x0.1"),
        ("--stages", "2", "--microbatches", "2", "--schedule", "gpipe"),
        ("--constraints", "stages.yaml", "--microbatches", "2"),
        ("--mesh", "auto", "--devices", "2x2"),
    ],
    ids=" ".join,
)
def test_every_repair_runs_as_it_stands(asked, shardplan, mlp):
    Path("fixed.yaml").write_text("parameters: {down.weight: {dims: [gpu, null], cost: 3 us}}\n")
    Path("stages.yaml").write_text('stages:\n- {runs: [up, relu], mesh: 1x2}\n- {runs: ["*"], mesh: 1x2}\n')
    mesh = () if "auto" in asked else ("--mesh", "2x2")
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", *mesh, *asked, "-o", "it's a.plan.json", "-q")
    assert run.code == 0, run.err
    assert shardplan("check", "it's a.plan.json").code == 0
    before = read_plan("it's a.plan.json")
    change_model()
    assert shardplan("check", "it's a.plan.json").code == 1
    assert repaired(shardplan, "it's a.plan.json")
    assert shardplan("check", "it's a.plan.json").code == 0
    after = read_plan("it's a.plan.json")
    same = ("mode", "optimizer", "remat", "microbatches", "constraints", "cost_model", "stages", "schedule")
    assert [after.model.get(key) for key in same] == [before.model.get(key) for key in same]
    assert after.summary.memory_limit_bytes == before.summary.memory_limit_bytes
    assert (after.mesh, after.cluster["digest"]) == (before.mesh, before.cluster["digest"])


def test_constraints_that_change_make_the_plan_stale(shardplan, mlp):
    Path("fixed.yaml").write_text("parameters: {down.weight: replicate}\n")
    shardplan(*SOLVE, "--constraints", "fixed.yaml")
    assert shardplan("check", PLAN).code == 0
    Path("fixed.yaml").write_text("parameters: {down.weight: [gpu, null]}\n")
    run = shardplan("check", PLAN)
    assert run.code == 1
    assert "stale: the constraints changed since\n  + parameters: down.weight: [gpu, null]\n" in run.err
    repaired(shardplan, PLAN)
    assert shardplan("check", PLAN).code == 0
    Path("fixed.yaml").unlink()
    assert shardplan("check", PLAN).code == 2


def test_a_described_model_needs_no_file(shardplan, folder):
    shardplan("solve", "transformer:llama3-8b,layers=1", "--mesh", "1x2", "--mode", "inference", "-o", "a.json", "-q")
    assert shardplan("check", "a.json").code == 0


def test_of_a_plan_that_does_not_say_its_model_it_is_said_that_it_was_not_compared(shardplan, mlp):
    shardplan(*SOLVE)
    write_plan(replace(read_plan(PLAN), sources={}), PLAN)
    alone = f"{PLAN}  fresh  not compared with its model: give it with --model\n"
    assert shardplan("check", PLAN).out == alone
    assert shardplan("check", PLAN, "--model", "mlp.onnx").out == f"{PLAN}  fresh\n"
    assert shardplan("check", PLAN, "--without-model").out == alone
    assert shardplan("check", PLAN, "--without-model", "--resolve").code == 2


def test_a_function_that_a_plan_records_is_not_called_unasked():
    plan = replace(example_plan(), sources={"model": "nets:build"})
    with pytest.raises(ShardplanError) as problem:
        model_now(plan, "a.json", Given())
    assert str(problem.value).splitlines() == [
        "a.json: error[no-model]: its model 'nets:build' is a function, which is called only where you name it",
        "hint: --model nets:build, or check what the plan says of itself alone with --without-model",
    ]
