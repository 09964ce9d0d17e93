"""`shardplan check`: fresh, stale, invalid, infeasible, no longer optimal; and the command that repairs."""

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import pytest
from jsonschema import Draft202012Validator

from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.plan.file import read_plan, write_plan
from shardplan.study.freshness import by_block

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
PLAN = "plans/mlp.2x2.plan.json"
REPAIR = f"shardplan solve mlp.onnx --mesh machine=2,gpu=2 --cluster h100-dgx --dim batch=64 --output {PLAN}"


@pytest.fixture
def solved(shardplan, mlp) -> Path:
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")
    return Path(PLAN)


def test_fresh(shardplan, solved):
    for options in ((), ("--model", "mlp.onnx"), ("--model", "mlp.onnx", "--resolve")):
        run = shardplan("check", PLAN, *options)
        assert (run.code, run.out, run.err) == (0, f"{PLAN}  fresh\n", "")


def test_constraints_are_part_of_what_was_asked(shardplan, solved):
    pins = ("--pin", "down.weight=[null, [gpu, machine]]", "--pin", "up={gpu: n}", "--pin", "y=replicate")
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", *pins)
    assert shardplan("check", PLAN, "--model", "mlp.onnx", "--resolve").code == 0


def test_stale_model(shardplan, solved):
    model = onnx.load("mlp.onnx", load_external_data=False)
    model.graph.node[1].op_type, model.graph.node[1].name = "Gelu", "gelu"
    Path("mlp.onnx").write_bytes(model.SerializeToString())
    run = shardplan("check", PLAN, "--model", "mlp.onnx")
    assert (run.code, run.out) == (1, f"{PLAN}  stale\n")
    assert run.err == (
        f"{PLAN}: error[stale-plan]: stale: model structure changed since this plan was made\n"
        "  + 'gelu'\n  - 'relu'\n"
        f"hint: {REPAIR}\n"
    )


def test_a_model_of_another_name_is_not_to_overwrite_the_plan_unasked(shardplan, solved):
    model = onnx.load("mlp.onnx", load_external_data=False)
    model.graph.node[1].op_type = "Gelu"
    Path("other.onnx").write_bytes(model.SerializeToString())
    run = shardplan("check", PLAN, "--model", "other.onnx")
    command = REPAIR.replace("mlp.onnx", "other.onnx")
    assert run.err == (
        f"{PLAN}: error[stale-plan]: stale: it was made for 'mlp', and this is another model, 'other'\n"
        f"hint: give its own model with --model; if this one has taken its place, {command}\n"
    )


def test_a_model_of_other_dims_is_another_one(shardplan, solved):
    model = onnx.load("mlp.onnx", load_external_data=False)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    Path("mlp.onnx").write_bytes(model.SerializeToString())
    checked, explained = (shardplan(*verb, "--model", "mlp.onnx") for verb in (("check", PLAN), ("explain", PLAN, "x")))
    said = "the plan was made for another model than 'mlp.onnx'\n  --dim batch=64: no dim is called 'batch'\nhint: "
    assert (checked.code, checked.out) == (1, f"{PLAN}  stale\n")
    again = "solve again; the plan does not say the sizes of the dims that the model has now"
    assert checked.err == f"{PLAN}: error[stale-plan]: stale: {said}{again}\n"
    assert (explained.code, explained.err) == (2, f"{PLAN}: error[stale-plan]: {said}solve again\n")


def test_stale_profile(shardplan, solved):
    plan = read_plan(PLAN)
    profile = {**plan.cluster["profile"], "device": {**plan.cluster["profile"]["device"], "hbm_gbps": 1.0}}
    write_plan(replace(plan, cluster={**plan.cluster, "profile": profile}), PLAN)
    run = shardplan("check", PLAN)
    assert run.code == 1
    assert "error[stale-plan]: stale: the profile 'h100-dgx' changed since\n" in run.err


def test_invalid(shardplan, solved):
    plan = read_plan(PLAN)
    odd = {"layout": Layout.of(S(0), R), "shape": (63, 256)}
    tensors = tuple(replace(t, **odd) if t.name == "hidden" else t for t in plan.tensors)
    write_plan(replace(plan, tensors=tensors), PLAN)
    run = shardplan("check", PLAN)
    assert run.code == 1
    assert "'hidden' cannot be S(0)@machine: dim 0 of size 63 does not divide by machine=2\n" in run.err


def test_infeasible(shardplan, solved):
    plan = read_plan(PLAN)
    write_plan(replace(plan, summary=replace(plan.summary, memory_limit_bytes=1024)), PLAN)
    run = shardplan("check", PLAN)
    assert run.code == 3
    assert "of the 1 KiB that a device may use\n" in run.err


@pytest.mark.parametrize("options", [(), ("--without-model",)], ids=["with its model", "without it"])
def test_a_memory_limit_that_no_device_has_and_nobody_asked_for(options, shardplan, solved):
    plan = read_plan(PLAN)
    write_plan(replace(plan, summary=replace(plan.summary, memory_limit_bytes=4 * 10**12)), PLAN)
    run = shardplan("check", PLAN, *options)
    assert run.code == 1
    assert run.err.startswith(
        f"{PLAN}: error[invalid-plan]: invalid: summary.memory_limit_bytes is 3.64 TiB, and a device has 74.5 GiB: "
        "no warning of the plan says that this was asked for\n"
    )
    asked = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--memory-limit", "4000GB", "-o", PLAN)
    assert shardplan(*asked).code == 0
    assert shardplan("check", PLAN, *options).code == 0


def test_not_optimal(shardplan, solved):
    pins = ("--pin", "down.weight=[null, [gpu, machine]]", "--pin", "up={gpu: n}", "--pin", "x=[gpu]")
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", *pins, "-o", PLAN)
    plan = read_plan(PLAN)
    asked = {key: value for key, value in plan.model.items() if key != "constraints"}
    write_plan(replace(plan, model=asked, sources={"model": "mlp.onnx"}), PLAN)
    assert shardplan("check", PLAN).code == 0
    run = shardplan("check", PLAN, "--resolve")
    assert run.code == 1
    assert "error[not-optimal-plan]: not optimal: a step of" in run.err
    assert re.search(r", [0-9.]+ % more\n", run.err)


def test_several_and_json(shardplan, solved):
    Path("other.json").write_text("{}")
    run = shardplan("check", PLAN, "other.json", "--json")
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert run.code == 2
    assert [row["status"] for row in document["result"]["plans"]] == ["fresh", "unreadable"]
    assert "1 of 2 plans needs attention\n" in shardplan("check", PLAN, "other.json").out
    assert "all 2 plans are fresh\n" in shardplan("check", PLAN, PLAN).out


def test_reports_for_ci(shardplan, solved):
    hostile = 'x\x1b\n::error::y"<&>]]>.plan.json'
    Path("plans", hostile).write_text("{}")
    Path("edited.plan.json").write_text(Path(PLAN).read_text().replace('"machine"', '"mash"', 1))
    run = shardplan("check", PLAN, f"plans/{hostile}", "edited.plan.json", "--junit", "a/c.xml", "--sarif", "c.sarif")
    assert run.code == 2
    suite = ET.parse("a/c.xml").getroot()
    assert suite.attrib == {
        "name": "shardplan check", "tests": "3", "failures": "1", "errors": "1", "skipped": "0"
    }  # fmt: skip
    assert [[child.tag for child in case] for case in suite] == [[], ["error"], ["failure"]]
    assert suite[1].attrib["name"] == 'plans/x\\x1b\\n::error::y"<&>]]>.plan.json'
    text = Path("c.sarif").read_text()
    document = json.loads(text)
    assert document["version"] == "2.1.0"
    (one,) = document["runs"]
    assert one["tool"]["driver"]["name"] == "shardplan"
    names = [rule["id"] for rule in one["tool"]["driver"]["rules"]]
    assert [names[result["ruleIndex"]] for result in one["results"]] == ["unreadable-plan", "invalid-plan"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in one["results"]]
    assert places == ["plans/x%1B%0A%3A%3Aerror%3A%3Ay%22%3C%26%3E%5D%5D%3E.plan.json", "edited.plan.json"]
    assert not re.search(r"^\s*::", text + Path("a/c.xml").read_text(), re.MULTILINE)


def test_reports_say_what_is_wrong_and_what_to_do(shardplan, solved):
    edited = Path(PLAN).read_text().replace('"hidden_us": ', '"hidden_us": 9', 1)
    Path(PLAN).write_text(edited)
    assert shardplan("check", PLAN, "--junit", "c.xml", "--sarif", "c.sarif").code == 1
    (case,) = ET.parse("c.xml").getroot()
    (failure,) = case
    assert failure.attrib["type"] == "invalid"
    assert "edited after it was written" in failure.attrib["message"]
    assert f"to make it anew: {REPAIR}" in failure.text
    (result,) = json.loads(Path("c.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "invalid-plan"


def test_a_report_takes_no_other_files_place(shardplan, solved):
    for option, kind in (("--junit", "JUnit"), ("--sarif", "SARIF")):
        run = shardplan("check", PLAN, option, PLAN)
        assert run.code == 2
        assert run.err == (
            f"{PLAN}: error[output-not-a-{kind.lower()}-report]: this file exists and is not a {kind} report; "
            f"it is left as it is\nhint: write elsewhere with {option}, or remove the file\n"
        )
        for _ in range(2):
            assert shardplan("check", PLAN, option, "report").code == 0
        Path("report").unlink()


def test_two_reports_have_two_names(shardplan, solved):
    run = shardplan("check", PLAN, "--sarif", "out/a.sarif", "--junit", "./out/a.sarif")
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "out/a.sarif: error[same-output]: the report would replace what this command reads, or writes besides\n"
        "hint: give --sarif a name of its own\n"
    )
    assert not Path("out").exists()


def test_resolve_needs_a_model(shardplan, solved):
    write_plan(replace(read_plan(PLAN), sources={}), PLAN)
    run = shardplan("check", PLAN, "--resolve")
    assert (run.code, run.out) == (2, f"{PLAN}  not checked\n")
    assert "error[no-model]: it cannot be solved again: it does not say which model it is of\n" in run.err


def test_what_is_new_is_gathered_by_layers():
    modules = {f"node{n}": f"model.layers.{32 + n % 2}.mlp" for n in range(6)} | {"head": "lm_head", "a": "", "b": ""}
    assert by_block(modules) == [
        "model.layers.32 (3 nodes)",
        "model.layers.33 (3 nodes)",
        "2 nodes, among them 'a'",
        "'head'",
    ]
    many = {f"n{n}": f"stage.{n // 2}.block" for n in range(12)}
    assert by_block(many)[-1] == "4 nodes elsewhere"


@pytest.mark.parametrize(
    ("asked", "repair"),
    [
        (
            ("--pin", "up.weight=[null, gpu]", "--pin", "up={gpu: n}"),
            "--pin 'up.weight=[null, gpu]' --pin 'up={gpu: n}'",
        ),
        (("--mode", "inference", "--cost-model", "alpa:beta=1x0.1"), "--mode inference --cost-model alpa:beta=1x0.1"),
        (("--shard-optimizer", "--microbatches", "2"), "--shard-optimizer --microbatches 2"),
        (("--constraints", "fixed.yaml"), "--constraints fixed.yaml"),
    ],
)
def test_the_repair_asks_for_the_same(asked, repair, shardplan, mlp):
    Path("fixed.yaml").write_text("inputs: {x: [machine]}\n")
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", *asked, "-o", "one.json")
    model = onnx.load("mlp.onnx", load_external_data=False)
    model.graph.node[1].op_type = "Gelu"
    Path("mlp.onnx").write_bytes(model.SerializeToString())
    run = shardplan("check", "one.json", "--model", "mlp.onnx")
    hint = run.err.splitlines()[-1]
    assert run.code == 1
    assert repair in hint
    assert hint.startswith("hint: shardplan solve mlp.onnx --mesh machine=2,gpu=2 --cluster h100-dgx ")
