"""`shardplan evaluate`: the price of an assignment that is given."""

import json
import re
from pathlib import Path

import pytest

SMALL = ("--dim", "batch=64", "--mesh", "4", "--mode", "inference")
FIXED = "operators: {up: {gpu: n}, down: {gpu: k}}\ninputs: replicate\noutputs: replicate\n"


def result(run):
    return json.loads(run.out)["result"]


def test_a_plan_costs_what_it_says(shardplan, mlp: Path):
    square = (
        "",
        "--microbatches 2",
        "--shard-optimizer",
        "--remat full",
        "--pin up.weight=replicate",
        "--optimizer sgd",
    )
    asked = [("--mesh", "2x2", *more.split()) for more in square]
    for options in (*asked, ("--mesh", "4", "--mode", "inference"), ("--mesh", "1x4")):
        solved = shardplan("solve", "mlp.onnx", "--dim", "batch=64", *options, "-o", "one.json", "--json")
        run = shardplan("evaluate", "mlp.onnx", "--fix", "one.json", "--json")
        found = result(run)
        assert run.code == 0, run.err
        for key in ("step_us", "compute_us", "communication_us", "memory_bytes", "memory_limit_bytes"):
            assert found["summary"][key] == result(solved)["summary"][key], key
        assert found["fixed"] == found["decisions"] == 3 + 6


def test_the_terms_add_up_to_the_step(shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-o", "one.json")
    found = result(shardplan("evaluate", "mlp.onnx", "--fix", "one.json", "--json"))
    terms = sum(term["time_us"] for term in found["terms"])
    assert terms == pytest.approx(found["summary"]["step_us"], abs=0.01)
    assert sum(term["share"] for term in found["terms"]) == pytest.approx(1, abs=1e-3)


def test_constraints_are_an_assignment_and_the_rest_is_chosen_at_least_cost(shardplan, mlp: Path):
    Path("fix.yaml").write_text(FIXED)
    run = shardplan("evaluate", "mlp.onnx", "--fix", "fix.yaml", *SMALL, "--cost-model", "slapo")
    assert run.code == 0, run.err
    assert run.out == (
        "  share            cost  what  how\n"
        "100.0 %  4,096 elements  y     all-reduce@gpu, forward\n"
        "\n"
        "plan      mlp, inference, on h100-dgx (gpu=4, 4 devices)\n"
        "fixed     fix.yaml: 4 decisions of 9; the others at least cost\n"
        "prices    slapo, in elements\n"
        "step      4,096 elements   compute 0, exposed communication 4,096\n"
        "memory    112 KiB of 67.1 GiB per device: parameters 32 + activations 32 + temporaries 48\n"
    )


def test_any_cost_model_prices_any_plan(shardplan, mlp: Path):
    """Column then row: one reduce-scatter of the result, 64 x 64 floats."""
    shardplan("solve", "mlp.onnx", *SMALL, "-o", "one.json", "--pin", "up={gpu: n}", "--pin", "down={gpu: k}")
    costs = {}
    for name in ("shardplan", "alpa", "slapo", "hidet", "trtllm", "trtllm:cluster_key=A100-SXM-80GB"):
        found = result(shardplan("evaluate", "mlp.onnx", "--fix", "one.json", "--cost-model", name, "--json"))
        costs[name] = found["summary"]["step_us"], found["unit"]
    assert costs["slapo"] == (4096, "elements")
    assert costs["hidet"] == (4 * 4096, "bytes")
    assert costs["alpa"] == (1 + 3 / 4 * 4 * 4096 + 0.001, "units")
    assert costs["trtllm"] != costs["trtllm:cluster_key=A100-SXM-80GB"]
    assert {unit for name, (_, unit) in costs.items() if "t" in name[:1]} == {"us"}


def test_what_does_not_fit_is_priced_all_the_same(shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", *SMALL, "-o", "one.json")
    run = shardplan("evaluate", "mlp.onnx", "--fix", "one.json", "--memory-limit", "1 KiB")
    assert run.code == 3
    assert "does not fit: " in run.out
    assert re.fullmatch(
        r"error\[infeasible\]: the assignment does not fit in memory: [\d.]+ [KM]iB too much\n"
        r"hint: shardplan solve finds one that fits, if there is any, and says what would help\n",
        run.err,
    )


def test_a_plan_can_be_priced_on_another_cluster(shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", *SMALL, "-o", "one.json")
    here, there = (
        result(shardplan("evaluate", "mlp.onnx", "--fix", "one.json", *more, "--json"))["summary"]
        for more in ((), ("-c", "a100-dgx"))
    )
    assert there["step_us"] > here["step_us"]
    assert there["memory_bytes"] == here["memory_bytes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the assignment: --fix FILE, or --pin 'PATTERN=SPEC'"),
        (("--fix", "one.json", "--mesh", "2"), "leave --mesh out: the plan one.json fixes it"),
        (("--fix", "one.json", "--dim", "batch=2"), "leave --dim out: the plan one.json fixes it"),
        (("--fix", "one.json", "--pin", "x=replicate"), "--pin goes with constraints; a plan leaves nothing open"),
        (
            ("--fix", "absent.json"),
            "absent.json: error[unreadable-plan]: cannot read the plan: no such file or directory",
        ),
        (("--fix", "absent.yaml", *SMALL), "absent.yaml: error[unreadable-constraints]"),
        (("--fix", "one.json", "--cost-model", "slap"), "there is no cost model 'slap'\nhint: did you mean 'slapo'?"),
        (("--pin", "up={gpu: q}", *SMALL), "'up' has no factor 'q' that can be split"),
    ],
)
def test_refusals(arguments, said, shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", *SMALL, "-o", "one.json")
    run = shardplan("evaluate", "mlp.onnx", *arguments)
    assert run.code == 2
    assert said in run.err
    assert not run.out


def test_a_plan_of_another_model_is_refused(shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", *SMALL, "-o", "one.json")
    plan = json.loads(Path("one.json").read_text())
    plan["model"]["digest"] = "0"
    Path("one.json").write_text(json.dumps(plan))
    run = shardplan("evaluate", "mlp.onnx", "--fix", "one.json")
    assert run.code == 2
    assert run.err == "one.json: error[stale-plan]: the plan was made for another model\nhint: solve again\n"
