"""`solve --constraints FILE --pin 'PATTERN=SPEC'` from end to end."""

import json
from pathlib import Path

from command_line import unproven

from shardplan.plan.file import read_plan

SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")
PLAN = "plans/mlp.2x2.plan.json"


def layouts() -> dict[str, str]:
    document = json.loads(Path(PLAN).read_text(encoding="utf-8"))
    rows = [*document["parameters"], *document["inputs"], *document["outputs"], *document["tensors"]]
    return {row["name"]: row["layout"] for row in rows}


def test_files_and_pins_add_up(shardplan, mlp):
    Path("fixed.yaml").write_text("inputs: {x: [machine]}\nparameters: {up.weight: [null, gpu]}\n")
    run = shardplan(*SOLVE, "--constraints", "fixed.yaml", "--pin", "down.weight=replicate")
    assert (run.code, run.err) == (0, unproven("plans/mlp.2x2.plan.json"))
    found = layouts()
    assert (found["x"], found["up.weight"], found["down.weight"]) == ("S(0)@machine", "S(1)@gpu", "R")
    assert read_plan(PLAN).model["constraints"] == [
        "inputs: x: [machine]",
        "parameters: up.weight: [null, gpu]",
        "down.weight: replicate",
    ]


def test_everything_wrong_is_said_at_once(shardplan, mlp):
    Path("fixed.yaml").write_text("input: {x: [machine]}\n")
    run = shardplan(*SOLVE, "--mesh", "2x", "--constraints", "fixed.yaml", "--pin", "x", "--constraints", "no.yaml")
    assert run.code == 2
    assert [line.partition("error[")[2].partition("]")[0] for line in run.err.splitlines() if "error[" in line] == [
        "bad-mesh",
        "unknown-key",
        "unreadable-constraints",
        "bad-constraint",
    ]


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_written(shardplan, mlp):
    run = shardplan(*SOLVE, "--pin", "uq.weight=replicate")
    assert run.code == 2
    assert run.err == (
        "--pin 'uq.weight=replicate': error[no-match]: no tensor matches 'uq.weight'\n"
        "  there are down.weight, up.weight, active, hidden, x, y\n"
        "hint: did you mean 'up.weight'?\n"
    )
    assert not Path("plans").exists()


def test_a_set_that_cannot_be_had_is_proven_so(shardplan, mlp):
    pins = ("--pin", "up.weight=replicate", "--pin", "down.weight=replicate")
    run = shardplan(*SOLVE, *pins, "--memory-limit", "400 KiB", "--json")
    document = json.loads(run.out)
    assert run.code == 3
    (said,) = [d for d in document["diagnostics"] if d["severity"] == "error"]
    assert said["code"] == "infeasible"
    assert "constraint" in said["detail"]


def test_a_plan_fixes_inputs_and_weights_of_another(shardplan, mlp: Path):
    first = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")
    shardplan(*first, "--pin", "up.weight=[null, gpu]", "-o", "one.json")
    run = shardplan(*first, "--mode", "inference", "--constraints", "one.json:parameters", "-o", "two.json")
    assert run.code == 0, run.err
    two = json.loads(Path("two.json").read_text())
    assert two["parameters"][0]["layout"] == "S(1)@gpu"
    assert two["model"]["constraints"][0] == "parameters: up.weight: [null, gpu]"
    assert len(two["model"]["constraints"]) == 2


def test_a_plan_on_other_axes_fixes_nothing_here(shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--pin", "x=[gpu]", "-o", "one.json")
    run = shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "machine=4", "--constraints", "one.json")
    assert run.code == 2
    assert "one.json: error[unknown-axis]: the mesh machine=4 has no axis 'gpu'" in run.err


def test_a_part_of_a_name_wants_stars(shardplan, mlp):
    run = shardplan(*SOLVE, "--pin", "wei=replicate")
    assert run.code == 2
    assert run.err.splitlines()[-1] == "hint: '*wei*' matches 'down.weight' and 1 more"
    assert shardplan(*SOLVE, "--pin", "*wei*=replicate").code == 0
