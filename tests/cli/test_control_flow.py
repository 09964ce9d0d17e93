"""Models with loops, from the command line: how often they turn, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from control_models import DECODE
from onnx import parser

SIZES = ("--dim", "batch=32", "--trip", "decode=12")
SOLVE = ("--mesh", "2x2", "--mode", "inference")


@pytest.fixture
def decode(folder):
    model = parser.parse_model(DECODE)
    model.graph.node[1].name = "decode"
    onnx.save(model, folder / "decode.onnx")
    return "decode.onnx"


@pytest.mark.parametrize("verb", ["solve", "inspect", "compare"])
def test_how_often_a_loop_turns_is_asked_for(shardplan, decode, verb):
    mesh = () if verb == "inspect" else SOLVE
    run = shardplan(verb, decode, "--dim", "batch=32", *mesh)
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "decode.onnx: error[unbound-trip]: the trip count of node 'decode' (Loop) depends on data, so its cost is"
        " not known\nhint: give the trip count: --trip decode=N\n"
    )
    assert shardplan(verb, decode, *SIZES, *mesh).code == 0


def test_a_trip_that_cannot_be_read(shardplan, decode):
    run = shardplan("inspect", decode, "--trip", "decode", "--dim", "batch=0")
    assert run.code == 2
    assert run.err == (
        "error[bad-dim]: --dim 'batch=0': a size is a whole number from 1 to 999,999,999,999,999,999\n"
        "error[bad-trip]: --trip 'decode' is not NAME=N\n"
        "hint: write the name of a loop and a positive number, such as --trip decode=8\n"
    )
    run = shardplan("inspect", decode, "--trip", "decode=8", "--trip", "decode=9")
    assert run.err == "error[bad-trip]: --trip gives 'decode' two numbers, 8 and 9\n"


def test_inspect_counts_every_turn(shardplan, decode):
    once = json.loads(shardplan("inspect", decode, "--dim", "batch=32", "--trip", "decode=1", "--json").out)["result"]
    run = json.loads(shardplan("inspect", decode, *SIZES, "--json").out)["result"]
    assert run["loops"] == {"decode": 12}
    assert run["flops"] == 12 * once["flops"]
    assert "loops     decode: 12 iterations, 8 operators\n" in shardplan("inspect", decode, *SIZES).out


def test_the_plan_lists_the_operators_of_the_body(shardplan, decode):
    assert shardplan("solve", decode, *SIZES, *SOLVE, "-o", "p.json").code == 0
    plan = json.loads(Path("p.json").read_text())
    assert plan["model"]["dims"] == {"batch": 32, "trip:decode": 12}
    assert plan["model"]["loops"] == {"decode": 12}
    assert [operator["op"] for operator in plan["operators"]] == [
        "shardplan.Enter", "MatMul", "Relu", "MatMul", "Add", "Tanh", "shardplan.Leave", "shardplan.Stack",
    ]  # fmt: skip
    assert "loops     decode: 12 iterations\n" in shardplan("show", "p.json").out


def test_verbs_that_read_the_model_again_take_the_turns_from_the_plan(shardplan, decode):
    shardplan("solve", decode, *SIZES, *SOLVE, "-o", "p.json")
    assert shardplan("verify", decode, "p.json").out.startswith("verified: 96 operators of 'decode' on 4 devices")
    assert shardplan("verify", decode, "p.json", "--shrink").code == 0
    assert shardplan("check", "p.json", "--model", decode).out == "p.json  fresh\n"
    run = shardplan("explain", "p.json", "up", "--model", decode)
    assert (run.code, run.err) == (0, "")
    assert "decode/u" in shardplan("explain", "p.json", "decode/u", "--model", decode).out


def test_more_turns_take_longer(shardplan, decode):
    steps = []
    for turns in ("6", "12"):
        run = shardplan(
            "solve", decode, "--dim", "batch=32", "--trip", f"decode={turns}", *SOLVE, "-o", "p.json", "--json"
        )
        steps.append(json.loads(run.out)["result"]["summary"]["compute_us"])
    assert steps[1] == pytest.approx(2 * steps[0], rel=1e-3)
