"""`shardplan compare`: recipes and the best plan, side by side."""

import json
from importlib.resources import files

import onnx
import pytest
from jsonschema import Draft202012Validator
from small_models import proto_of

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
COMPARE = ("compare", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")
NAMES = ["data parallel", "ZeRO-3", "Megatron", "Megatron + sequence", "best"]


def test_the_table(shardplan, mlp):
    run = shardplan(*COMPARE)
    lines = run.out.splitlines()
    assert (run.code, run.err) == (0, "")
    assert [line.split()[0] for line in lines[:3]] == ["model", "mode", "cluster"]
    assert lines[4].split() == ["plan", "step", "compute", "exposed", "memory", "slower", "than", "best"]
    assert [next(name for name in reversed(NAMES) if line.startswith(name)) for line in lines[5:-1]] == NAMES
    assert lines[-1] == "a device may use 67.1 GiB"


def rows(run) -> dict[str, dict]:
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    return {row["name"]: row for row in document["result"]["plans"]}


def test_nothing_is_faster_than_the_best(shardplan, mlp):
    run = shardplan(*COMPARE, "--json")
    assert run.code == 0
    found = rows(run)
    assert list(found) == NAMES
    assert all(row["step_us"] >= found["best"]["step_us"] for row in found.values() if row["fits"])


@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
def test_in_a_row_of_data_parallelism_every_device_has_its_part_of_the_batch(mesh, shardplan, folder):
    """At little batch it is faster to gather the inputs and compute all of it on every device: that is no row."""
    model = "transformer:layers=1,hidden=192,heads=6,vocab=600,seq=96,batch=16"
    asked = ("compare", model, "--cluster", "l4-g6-48xl", "--json", "--mesh")
    alone, split = rows(shardplan(*asked, "1x1")), rows(shardplan(*asked, mesh))
    for name in ("data parallel", "ZeRO-3"):
        assert split[name]["compute_us"] < 0.6 * alone["best"]["compute_us"]
        assert split[name]["memory_bytes"] < 0.6 * alone["best"]["memory_bytes"]
    assert all(row["step_us"] >= split["best"]["step_us"] for row in split.values())


def test_what_does_not_fit_says_by_how_much(shardplan, mlp):
    used = {name: row["memory_bytes"] for name, row in rows(shardplan(*COMPARE, "--json")).items()}
    limit = f"{used['data parallel'] - 1}B"
    run = shardplan(*COMPARE, "--memory-limit", limit)
    row = next(line for line in run.out.splitlines() if line.startswith("data parallel"))
    assert row.endswith("does not fit: 1 B too much") or "+" in row


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nothing_fits(form, shardplan, mlp):
    run = shardplan(*COMPARE, "--memory-limit", "1 KiB", *form)
    assert run.code == 3
    assert run.err == (
        "error[infeasible]: not even the best plan fits in memory\n"
        "hint: shardplan solve says how much is missing, and what would help\n"
    )
    if form:
        assert not any(row["fits"] for row in rows(run).values())
    else:
        assert run.out.count("does not fit: ") == len(NAMES)


def test_faults_are_said_together(shardplan, mlp):
    run = shardplan("compare", "mlp.onnx", "--mesh", "2x", "--memory-limit", "lots")
    assert run.code == 2
    assert run.err.count("error[") == 3


def test_a_model_that_takes_no_time(shardplan, folder):
    onnx.save(proto_of("same (float[4,4] x) => (float[4,4] y) { y = Identity (x) }"), "same.onnx")
    run = shardplan("compare", "same.onnx", "--mesh", "2x2", "--mode", "inference")
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines()[5].split() == ["data", "parallel", *["0", "ns"] * 3, "64", "B", "as", "fast"]


def test_a_recipe_that_a_format_cannot_say_is_told_so(shardplan, mlp):
    run = shardplan(*COMPARE, "--for", "tp-plan")
    row = next(line for line in run.out.splitlines() if line.startswith("ZeRO-3"))
    assert row.endswith("not possible for this model on this mesh, or nothing that tp-plan can express")
