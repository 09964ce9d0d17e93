"""`shardplan explain`: shares of the step, and alternatives that were solved again."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from shardplan.plan.file import read_plan, write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
PLAN = "plans/mlp.2x2.plan.json"
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")


@pytest.fixture
def solved(shardplan, mlp) -> Path:
    shardplan(*SOLVE)
    return Path(PLAN)


def explained(shardplan, name: str, *options: str) -> dict:
    run = shardplan("explain", PLAN, name, "--model", "mlp.onnx", "--json", *options)
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert (run.code, run.err) == (0, "")
    return document["result"]


def test_what_a_step_is_made_of(shardplan, solved):
    run = shardplan("explain", PLAN)
    assert run.code == 0
    assert run.out.startswith("step ")
    document = json.loads(shardplan("explain", PLAN, "--json").out)
    Draft202012Validator(SCHEMA).validate(document)
    times = [share["time_us"] for share in document["result"]["shares"]]
    assert times == sorted(times, reverse=True)
    # The optimizer's own time is no operator's.
    assert 0 < sum(times) <= document["result"]["step_us"] * 1.001


def test_no_alternative_costs_less_than_the_choice(shardplan, solved):
    result = explained(shardplan, "up.weight")
    chosen, *others = result["alternatives"]
    assert chosen["chosen"]
    assert chosen["cost_us_delta"] == 0
    assert others
    assert all(one["cost_us_delta"] >= 0 for one in others if one["possible"])
    assert len({one["choice"] for one in result["alternatives"]}) == len(result["alternatives"])


def test_the_difference_is_that_of_solving_with_the_choice_pinned(shardplan, solved):
    before = json.loads(Path(PLAN).read_text())["summary"]["objective"]
    weight = json.loads(Path(PLAN).read_text())["details"]["overlap_weight"]
    one = next(one for one in explained(shardplan, "down.weight")["alternatives"][1:] if one["possible"])
    (dims,) = [f"[{'gpu' if '0' in one['choice'] else 'null'}, {'gpu' if '1' in one['choice'] else 'null'}]"]
    spec = "replicate" if one["choice"] == "R" else dims if one["choice"][-4:] == "@gpu" else one["choice"]
    shardplan(*SOLVE, "--pin", f"down.weight={spec}", "--output", "pinned.plan.json")
    pinned = json.loads(Path("pinned.plan.json").read_text())
    if pinned["details"]["overlap_weight"] == weight:
        assert pinned["summary"]["objective"] - before == pytest.approx(one["cost_us_delta"], abs=0.01)


def test_an_operator(shardplan, solved):
    result = explained(shardplan, "up")
    assert result["subject"] == "up"
    assert any("n@gpu" in one["choice"] for one in result["alternatives"])


def test_text(shardplan, solved):
    lines = shardplan("explain", PLAN, "up.weight", "--model", "mlp.onnx").out.splitlines()
    assert lines[0].startswith("up.weight  [64, 256] float  ")
    assert lines[1].endswith(" % of the step, 64 KiB per device")
    assert any(line.split() == ["instead", "costs", "memory", "and", "then"] for line in lines)


def test_what_does_not_fit(shardplan, mlp):
    shardplan(*SOLVE, "--memory-limit", "300 KiB")
    found = explained(shardplan, "up.weight")["alternatives"]
    (whole,) = [one for one in found if one["choice"] == "R"]
    assert (whole["possible"], whole["cost_us_delta"]) == (False, None)
    assert whole["why_not"].startswith("does not fit: ")
    assert all(one["possible"] == (not one["why_not"]) for one in found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", PLAN, "up.weigh", "--model", "mlp.onnx"), "error[no-match]: no tensor or operator matches 'up.we"),
        (("explain", PLAN, "*", "--model", "mlp.onnx"), "error[too-many]: '*' matches 2 tensors of 2 kinds; explain"),
        (("explain", PLAN, "up.weight"), "to explain NAME, give the plan's --model"),
        (("explain", "absent.json"), "absent.json: error[unreadable-plan]"),
    ],
)
def test_refusals(arguments, said, shardplan, solved):
    run = shardplan(*arguments)
    assert run.code == 2
    assert said in run.err


def test_a_plan_of_another_model(shardplan, solved):
    plan = read_plan(PLAN)
    write_plan(replace(plan, model={**plan.model, "digest": "sha256:0"}), PLAN)
    run = shardplan("explain", PLAN, "up.weight", "--model", "mlp.onnx")
    assert (run.code, run.err) == (
        2,
        f"{PLAN}: error[stale-plan]: the plan was made for another model\nhint: solve again\n",
    )
