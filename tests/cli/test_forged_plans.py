"""Forged plans: what `check`, `verify`, `diff --fail-if` and `shardplan.load` say of a file that was edited."""

import copy
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import shardplan as package
from shardplan.plan.format.digest import content_digest
from shardplan.plan.schema import plan_schema

PLAN, FORGED = "plans/mlp.2x2.plan.json", "forged.plan.json"
DOCUMENTS = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
Document = dict[str, Any]
_SOLVED: list[str] = []
"""The text of the plan, which all tests begin with."""
Forge = Callable[[Document], None]


@pytest.fixture
def plan(shardplan, mlp: Path) -> Document:
    if not _SOLVED:
        asked = ("--mode", "inference", "--memory-limit", "110 KiB")
        assert shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", *asked).code == 0
        _SOLVED.append(Path(PLAN).read_text())
    Path(PLAN).parent.mkdir(exist_ok=True)
    Path(PLAN).write_text(_SOLVED[0])
    found: Document = json.loads(_SOLVED[0])
    Draft202012Validator(plan_schema()).validate(found)
    return found


def forged(plan: Document, forge: Forge, *, signed: bool) -> None:
    wrong = copy.deepcopy(plan)
    forge(wrong)
    if signed and "digest" in wrong:
        wrong["digest"] = content_digest(wrong)
    Path(FORGED).write_text(json.dumps(wrong))


def named(rows: list[Document], name: str) -> Document:
    return next(row for row in rows if name in (row["name"], row.get("tensor")))


def set_step(plan: Document) -> None:
    plan["summary"].update(step_us=1.0, objective=1.0, bound_us=1.0, compute_us=1.0, communication_us=0.0, gap=0.0)


def move_parameter(plan: Document) -> None:
    up = named(plan["parameters"], "up.weight")
    up.pop("served", None)
    up |= {"layout": "S(1)@gpu", "dims": [[], ["gpu"]]}
    if up == named(json.loads(Path(PLAN).read_text())["parameters"], "up.weight"):
        up |= {"layout": "S(0)@gpu", "dims": [["gpu"], []]}


FORGERIES: dict[str, Forge] = {
    "name": lambda plan: named(plan["parameters"], "up.weight").update(name="up.wait"),
    "shape": lambda plan: named(plan["tensors"], "hidden").update(shape=[64, 512]),
    "dtype": lambda plan: named(plan["parameters"], "up.weight").update(dtype="bfloat16"),
    "layout": move_parameter,
    "a tensor's layout": lambda plan: named(plan["tensors"], "hidden").update(layout="S(1)@machine"),
    "step": set_step,
    "bound": lambda plan: plan["summary"].update(bound_us=0.5),
    "memory": lambda plan: plan["summary"]["memory"].update(activations=1, temporaries=0),
    "moves": lambda plan: plan["moves"].clear(),
    "dropped parameter": lambda plan: plan["parameters"].pop(),
    "operator": lambda plan: plan["operators"][0].update(op="Gemm"),
    "model digest": lambda plan: plan["model"].update(digest="sha256:" + "0" * 64),
    "cluster digest": lambda plan: plan["cluster"].update(digest="sha256:" + "0" * 64),
    "cluster": lambda plan: plan["cluster"]["profile"]["device"].update(launch_us=0.0),
    "digest": lambda plan: plan.update(digest="sha256:" + "0" * 64),
    "no digest": lambda plan: plan.pop("digest"),
}


@pytest.mark.parametrize("signed", [False, True], ids=["edited", "with its digest made anew"])
@pytest.mark.parametrize("what", FORGERIES)
def test_check_refuses_it(what, signed, shardplan, plan):
    if what == "digest" and signed:
        pytest.skip("a digest made anew is no forgery")
    forged(plan, FORGERIES[what], signed=signed)
    for options in (("--model", "mlp.onnx"), ()):
        run = shardplan("check", FORGED, *options)
        assert run.code in (1, 2), run.out
        assert "error[" in run.err
    assert not signed or what == "no digest" or "digest is sha256" not in run.err


def test_the_field_is_named_with_what_it_should_be(shardplan, plan):
    forged(plan, lambda plan: plan["operators"][2].update(compute_ns=7), signed=True)
    run = shardplan("check", FORGED, "--json")
    (row,) = json.loads(run.out)["result"]["plans"]
    right = plan["operators"][2]["compute_ns"]
    assert {"path": "operators[2].compute_ns", "found": "7", "expected": str(right)} in row["differences"]
    assert f"operators[2].compute_ns ('down') is 7; it should be {right}" in row["findings"]
    Draft202012Validator(DOCUMENTS).validate(json.loads(run.out))


@pytest.mark.parametrize("what", ["name", "shape", "dtype", "dropped parameter", "operator"])
def test_verify_refuses_it(what, shardplan, plan):
    assert shardplan("verify", "mlp.onnx", PLAN).code == 0
    forged(plan, FORGERIES[what], signed=True)
    run = shardplan("verify", "mlp.onnx", FORGED, "--json")
    document = json.loads(run.out)
    assert run.code == 1
    assert document["result"]["verified"] is False
    assert document["result"]["misdeclared"]
    lines = shardplan("verify", "mlp.onnx", FORGED).out.splitlines()
    assert lines[0] == "not verified: the plan says otherwise of 'mlp'"


@pytest.mark.parametrize("signed", [False, True], ids=["edited", "with its digest made anew"])
def test_a_gate_goes_by_what_is_derived(signed, shardplan, plan):
    forged(plan, set_step, signed=signed)
    for pair in ((FORGED, PLAN), (PLAN, FORGED)):
        run = shardplan("diff", *pair, "--fail-if", "step>+2%")
        assert run.code == 0, "the decisions are the same"
        assert f"{FORGED}: warning[{'not-derived' if signed else 'edited-plan'}]: " in run.err
        assert "step is 1 us in the file, " in run.err


def test_a_gate_needs_a_model_for_a_plan_that_was_edited(shardplan, plan):
    forged(plan, set_step, signed=False)
    Path("mlp.onnx").rename("hidden.onnx")
    run = shardplan("diff", PLAN, FORGED, "--fail-if", "step>+2%")
    assert run.code == 2
    assert f"{FORGED}: error[edited-plan]: it was edited after it was written" in run.err
    assert shardplan("diff", PLAN, FORGED, "--fail-if", "step>+2%", "--model", "hidden.onnx").code == 0
    assert shardplan("diff", PLAN, PLAN, "--fail-if", "step>+2%").code == 0


@pytest.mark.parametrize("verb", ["show", "explain", "timeline", "diff"])
def test_who_shows_an_edited_plan_says_so(verb, shardplan, plan):
    arguments = (verb, PLAN) if verb == "diff" else (verb,)
    forged(plan, set_step, signed=False)
    run = shardplan(*arguments, FORGED)
    assert run.code in (0, 1)
    assert run.err.startswith(f"{FORGED}: warning[edited-plan]: it was edited after it was written: its digest is ")
    forged(plan, set_step, signed=True)
    assert "edited-plan" not in shardplan(*arguments, FORGED).err


def test_loading_verifies(plan):
    assert package.load(PLAN, verify=True, model="mlp.onnx") == package.load(PLAN)
    forged(plan, set_step, signed=False)
    assert package.load(FORGED).summary.step_ns == 1000
    with pytest.raises(package.ShardplanError, match="edited-plan"):
        package.load(FORGED, verify=True)
    forged(plan, FORGERIES["a tensor's layout"], signed=True)
    with pytest.raises(package.ShardplanError, match="plan\\]: "):
        package.load(FORGED, verify=True, model="mlp.onnx")
    assert package.check(PLAN).status == "fresh"
    assert package.check(FORGED, model="mlp.onnx").findings


def test_a_step_that_its_schedule_does_not_take_is_seen_without_a_model(shardplan, plan):
    assert shardplan("check", PLAN, "--without-model").code == 0
    forged(plan, set_step, signed=True)
    run = shardplan("check", FORGED, "--without-model")
    assert run.code == 1
    assert "invalid: summary.step_us is 1.0, and the schedule of its moves takes " in run.err
