"""`shardplan solve` from end to end on a small model."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper

from shardplan.plan.file import dumps, read_plan

ROOT = Path(__file__).resolve().parents[2]
PLAN = Path("plans/mlp.2x2.plan.json")
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")


def test_first_use(shardplan, mlp):
    run = shardplan(*SOLVE)
    lines = run.out.splitlines()
    assert lines[:3] == [
        "model     mlp: 3 operators, 32,768 parameters (128 KiB)",
        "mode      training (the default; --mode inference for the other), optimizer adam-mixed",
        (
            "cluster   h100-dgx (the default), mesh machine=2 (net, 50 GB/s) x gpu=2 (up, 450 GB/s), "
            "67.1 GiB usable per device"
        ),
    ]
    assert lines[3].startswith("plan      step ")
    assert lines[-2:] == ["wrote     plans/mlp.2x2.plan.json", "next      shardplan show plans/mlp.2x2.plan.json"]


@pytest.mark.parametrize(
    ("output", "argument"),
    [
        ("-dash.plan.json", "./-dash.plan.json"),
        ("sp ace/a b.plan.json", "'sp ace/a b.plan.json'"),
        ("$a.json", "'$a.json'"),
    ],
)
def test_commands_that_are_suggested_can_be_pasted_into_a_shell(output, argument, shardplan, mlp):
    command = shardplan(*SOLVE, "--output", output).out.splitlines()[-1]
    assert command == f"next      shardplan show {argument}"
    (_, *words) = shlex.split(command.removeprefix("next"))
    assert shardplan(*words).code == 0
    file = words[-1]
    Path("mlp.onnx").rename("a b.onnx")
    for verb, wanted in (
        (("verify",), f"shardplan verify MODEL {argument}"),
        (("export", "--to", "onnx", "-o", "x.onnx"), f"shardplan export {argument} MODEL --to onnx"),
    ):
        assert shardplan(*verb, "--", file).err.splitlines()[-1] == f"hint: give it: {wanted}"
    repair = shardplan("check", "--model", "a b.onnx", "--", file).err.splitlines()[-1]
    assert repair.endswith(f" --output {argument}")


@pytest.mark.parametrize("verb", ["solve", "compare"])
def test_a_memory_limit_is_what_is_usable(verb, shardplan, mlp):
    run = shardplan(verb, *SOLVE[1:], "--memory-limit", "300 KiB")
    assert "gpu=2 (up, 450 GB/s), 300 KiB of 67.1 GiB usable per device\n" in run.out


@pytest.mark.parametrize("verb", ["solve", "compare"])
def test_a_memory_limit_above_that_of_a_device_is_said(verb, shardplan, mlp):
    run = shardplan(verb, *SOLVE[1:], "--memory-limit", "4000GB")
    assert "gpu=2 (up, 450 GB/s), a limit of 3.64 TiB per device, of which 67.1 GiB is usable\n" in run.out
    said = "warning[limit-above-device]: the memory limit, 3.64 TiB, is more than the 74.5 GiB that a device has\n"
    assert run.err.count(said) == 1
    assert "limit-above-device" not in shardplan(verb, *SOLVE[1:], "--memory-limit", "80 GB").err


def test_what_was_chosen_is_not_called_a_default(shardplan, mlp):
    run = shardplan(*SOLVE, "--mode", "inference", "--cluster", "a100-dgx")
    assert "mode      inference\n" in run.out
    assert "cluster   a100-dgx, mesh" in run.out


def test_the_profile_gives_the_mesh_when_none_is_asked_for(shardplan, mlp):
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--json")
    assert json.loads(run.out)["result"]["plan"] == "plans/mlp.4x8.plan.json"
    named = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "gpu=2,machine=2", "--json")
    assert json.loads(named.out)["result"]["plan"] == str(PLAN)


def test_solving_again_changes_nothing(shardplan, mlp):
    shardplan(*SOLVE)
    before = PLAN.stat()
    run = shardplan(*SOLVE)
    assert "same as   plans/mlp.2x2.plan.json\n" in run.out
    assert (PLAN.stat().st_ino, PLAN.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_plan_satisfies_the_schema_and_reads_back(shardplan, mlp):
    shardplan(*SOLVE)
    text = PLAN.read_text(encoding="utf-8")
    schema = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(json.loads(text))
    assert dumps(read_plan(PLAN)) == text
    assert str(mlp.parent) not in text


def test_the_bytes_do_not_depend_on_the_process(mlp):
    texts = []
    for seed in ("1", "77"):
        command = [sys.executable, str(ROOT / "cli.py"), *SOLVE, "--output", "-"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        texts.append(run.stdout)
    assert texts[0] == texts[1]
    plan = json.loads(texts[0])
    assert plan["format_version"] == "1.5"


def test_output_goes_where_it_is_told(shardplan, mlp):
    run = shardplan(*SOLVE, "--output", "deep/er/mine.json")
    assert run.code == 0
    assert read_plan("deep/er/mine.json").model["name"] == "mlp"
    assert not Path("plans").exists()


def test_infeasible_names_the_shortfall(shardplan, mlp):
    run = shardplan(*SOLVE, "--memory-limit", "1 KiB")
    assert run.code == 3
    said = re.fullmatch(
        r"error\[infeasible\]: no plan fits in memory: every device is at least (\S+) KiB short\n"
        r"  'mlp' on 'h100-dgx' \(machine=2 x gpu=2\) needs at least (\S+) KiB per device, of which 1 KiB may be used\n"
        r"  parameters \S+ \+ gradients .* = \2 KiB, most of it in\n"
        r"(?:    +\S+ \S+  \S.*\n){1,4}"
        r"hint: more --microbatches, .*\n",
        run.err,
    )
    assert said
    assert float(said[2].replace(",", "")) == pytest.approx(float(said[1].replace(",", "")) + 1, rel=0.01)
    assert not Path("plans").exists()


@pytest.fixture
def odd(folder):
    """`odd.onnx`: a product, and an operator of a domain that nobody knows, with its shape stored."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Swirl", ["h"], ["y"], "swirl", domain="my.own"),
    ]
    x, h, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xhy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.0] * 4096)
    graph = helper.make_graph(nodes, "odd", [x], [y], [weight], value_info=[h])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.own", 1)]
    Path("odd.onnx").write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


NO_RULE = "  my.own.Swirl: 'swirl'\n"


def test_an_operator_without_a_rule_is_replicated_with_one_warning(shardplan, odd):
    run = shardplan("solve", "odd.onnx", "--mesh", "2x2", "--mode", "inference")
    assert (run.code, run.err) == (
        0,
        (
            f"warning[no-rule]: 1 operator has no sharding rule and will be replicated\n{NO_RULE}"
            "hint: shardplan inspect says how much of the work they are\n"
        ),
    )
    plan = read_plan("plans/odd.2x2.plan.json")
    assert [warning.splitlines()[0] for warning in plan.warnings] == [run.err.splitlines()[0]]
    assert plan.operators[1].split == ("-", "-")


def test_strict_refuses_it(shardplan, odd):
    run = shardplan("solve", "odd.onnx", "--mesh", "2x2", "--mode", "inference", "--strict")
    assert (run.code, run.err) == (
        2,
        (
            f"error[no-rule]: 1 operator has no sharding rule, and --strict forbids to replicate them\n{NO_RULE}"
            "hint: plan without --strict, or add a rule\n"
        ),
    )
    assert not Path("plans").exists()


def test_quiet_prints_results_and_errors_only(shardplan, mlp):
    assert shardplan(*SOLVE, "--quiet").err == ""


@pytest.mark.parametrize("presolve", ["--presolve", "--no-presolve"])
def test_the_optimum_does_not_depend_on_the_presolve(shardplan, mlp, presolve):
    summary = json.loads(shardplan(*SOLVE, presolve, "--json").out)["result"]["summary"]
    reference = json.loads(shardplan(*SOLVE, "--json").out)["result"]["summary"]
    assert summary["step_us"] == reference["step_us"]
    assert max(summary["bound_us"], reference["bound_us"]) <= min(summary["step_us"], reference["step_us"])
