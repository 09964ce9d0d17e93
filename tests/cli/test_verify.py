"""`shardplan verify`: what it says, what it finds, how it exits."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from small_models import proto_of

from shardplan.plan.file import read_plan, write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
CONV = """conv (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[2,2,3,3] w> {
  y = Conv <pads = [1, 1, 1, 1]> (x, w)
}"""
PLAN = "plans/mlp.2x2.plan.json"


@pytest.fixture
def plan(shardplan, mlp: Path) -> Path:
    """A plan of the small model for serving, which moves something."""
    run = shardplan(
        "solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--mode", "inference", "--memory-limit", "110 KiB"
    )
    assert run.code == 0, run.err
    return Path(PLAN)


def test_a_plan_is_verified(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN)
    assert (run.code, run.err) == (0, "")
    lines = run.out.splitlines()
    assert lines[0].startswith("verified: 3 operators of 'mlp' on 4 devices, ")
    assert lines[1].startswith("largest relative difference ")
    assert lines[2].startswith("moved, as the plan says: ")
    assert lines[2].endswith(" B")


def test_the_model_is_by_default_the_one_that_the_plan_records(shardplan, plan):
    assert shardplan("verify", PLAN).out == shardplan("verify", "mlp.onnx", PLAN).out
    Path("mlp.onnx").rename("moved.onnx")
    absent = f"{PLAN}: error[no-model]: its model 'mlp.onnx' is neither here, nor beside the plan or above it"
    hint = f"hint: give it: shardplan verify MODEL {PLAN}"
    run = shardplan("verify", PLAN)
    assert (run.code, run.err.splitlines()) == (2, [absent, hint])
    Path("mlp.onnx").write_bytes(onnx.shape_inference.infer_shapes(proto_of(CONV)).SerializeToString())
    run = shardplan("verify", PLAN)
    assert run.code == 2
    assert "error[" in run.err


def test_verify_takes_a_model_and_a_plan_and_no_more(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN, PLAN)
    assert run.code == 2
    assert "there are 3 files; shardplan verify takes a model and its plan" in run.err


def test_the_scaled_down_model_is_verified(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN, "--shrink", "--seed", "5")
    assert run.code == 0
    assert run.out.startswith("verified: 3 operators of scaled-down 'mlp' on 4 devices")


def test_the_document(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN, "--json")
    document = json.loads(run.out)
    VALIDATOR.validate(document)
    result = document["result"]
    assert run.code == 0
    assert result["verified"] is True
    assert result["moved_bytes"] == result["priced_bytes"] != {}
    assert result["first_difference"] is None
    assert not VALIDATOR.is_valid({**document, "result": {**result, "verified": "yes"}})


def test_a_plan_without_its_moves_is_not(shardplan, plan):
    whole = read_plan(plan)
    write_plan(replace(whole, moves=()), plan)
    run = shardplan("verify", "mlp.onnx", PLAN)
    assert (run.code, run.err) == (1, "")
    lines = run.out.splitlines()
    assert lines[0].startswith("not verified: ")
    assert lines[1].startswith("first difference: '")
    assert lines[2].startswith("  the plan has no move from ")
    document = json.loads(shardplan("verify", "mlp.onnx", PLAN, "--json").out)
    VALIDATOR.validate(document)
    assert document["result"]["verified"] is False
    assert document["result"]["first_difference"]["why"].startswith("the plan has no move from ")


def test_the_tolerance_is_asked_for(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN, "--rtol", "0")
    assert run.code == 2
    assert "--rtol" in run.err


def test_another_model_is_refused(shardplan, plan):
    run = shardplan("verify", "mlp.onnx", PLAN, "--dim", "batch=32")
    assert run.code == 2
    assert run.err == (
        "error[stale-plan]: the plan was made for another model than 'mlp': operators or shapes differ\n"
        "hint: solve again, or give the model and dims of the plan\n"
    )


def test_all_that_is_wrong_is_said_at_once(shardplan, folder):
    run = shardplan("verify", "absent.onnx", "absent.plan.json", "--dim", "batch")
    assert run.code == 2
    assert [line.partition("]")[0] for line in run.err.splitlines() if "error[" in line] == [
        "error[bad-dim",
        "absent.plan.json: error[unreadable-plan",
    ]


def test_what_operators_move_inside_is_told(shardplan, folder):
    """One row of two channels of eight numbers goes each way."""
    onnx.save(proto_of(CONV), "conv.onnx")
    pins = ("--pin", "Conv={gpu: y0}")
    run = shardplan("solve", "conv.onnx", "--mesh", "gpu=2", "--mode", "inference", *pins, "-o", "conv.json")
    assert run.code == 0, run.err
    run = shardplan("verify", "conv.onnx", "conv.json")
    assert run.out.splitlines()[2:] == [
        "nothing was moved between operators",
        "moved inside operators, in double precision: permute 256 B",
    ]
    document = json.loads(shardplan("verify", "conv.onnx", "conv.json", "--json").out)
    VALIDATOR.validate(document)
    assert document["result"]["inner_bytes"] == {"permute": 256}


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("../../etc/passwd", "error[unreadable-weight]: the data of weight 'w' in '../../etc/passwd' cannot be read\n"),
        ("/etc/passwd", "error[unreadable-weight]: the data of weight 'w' in '/etc/passwd' cannot be read\n"),
        ("short.bin", "error[unreadable-weight]: the data of weight 'w' in 'short.bin' cannot be read\n"),
    ],
)
def test_weights_that_lie_elsewhere_or_end_too_soon(shardplan, folder, location, said):
    model = proto_of("m (float[8,64] x) => (float[8,64] y) { y = MatMul (x, w) }")
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[64, 64])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    model.graph.initializer.append(weight)
    inside = folder / "inside"
    (folder / "etc").mkdir()
    (folder / "etc" / "passwd").touch()
    inside.joinpath("deep").mkdir(parents=True)
    inside.joinpath("deep", "short.bin").write_bytes(bytes(12))
    inside.joinpath("deep", "m.onnx").write_bytes(model.SerializeToString())
    assert shardplan("solve", "inside/deep/m.onnx", "--mesh", "2x2").code == 0
    for command in ("verify", "inside/deep/m.onnx", "plans/m.2x2.plan.json"), (
        "export", "plans/m.2x2.plan.json", "inside/deep/m.onnx", "--to", "onnx-spmd", "-o", "ranks"
    ):  # fmt: skip
        run = shardplan(*command)
        assert (run.code, run.out) == (2, "")
        assert run.err.startswith(said)


def products(**weights: list[float]) -> None:
    """`m.onnx`: products of `x` with one weight after the other."""
    names = ["x", *(f"h{number}" for number in range(1, len(weights))), "y"]
    lines = [
        f"{made} = MatMul ({read}, {weight})" for read, made, weight in zip(names[:-1], names[1:], weights, strict=True)
    ]
    model = proto_of(f"m (float[8,8] x) => (float[8,8] y) {{ {' '.join(lines)} }}")
    for name, values in weights.items():
        array = np.resize(np.array(values, np.float32), (8, 8))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, "m.onnx")


@pytest.mark.parametrize("hiding", [[np.nan, 1.0], [np.inf, 1.0], [0.0]])
def test_weights_that_hide_what_is_computed_are_drawn(hiding, shardplan, folder):
    """With them, every value is the same on all devices and in the whole model, right or wrong; else partial sums
    differ by rounding."""
    products(a=hiding, b=[0.1, -0.2, 0.3], c=hiding)
    pins = ("--pin", "MatMul={gpu: k}")
    assert shardplan("solve", "m.onnx", "--mesh", "gpu=2", "--mode", "inference", *pins, "-o", "m.json").code == 0
    run = shardplan("verify", "m.onnx", "m.json")
    assert run.code == 0
    assert run.err == (
        "note[weights-drawn]: random values take the place of 2 weights that are zero throughout or not finite and "
        "would hide what is computed ('a', 'c')\n"
    )
    document = json.loads(shardplan("verify", "m.onnx", "m.json", "--json").out)
    assert document["result"]["largest_difference"] > 0
    products(a=hiding, b=[0.1, -0.2, 0.3], c=[0.1])
    assert "the place of 'a', which is zero throughout or" in shardplan("verify", "m.onnx", "m.json").err


def test_a_result_without_a_number_proves_nothing(shardplan, folder):
    model = proto_of("m (float[8,8] x) => (float[8,8] y) { a = MatMul (x, w)  b = Abs (a)  c = Neg (b)  y = Log (c) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    onnx.save(model, "m.onnx")
    assert shardplan("solve", "m.onnx", "--mesh", "2x1", "--mode", "inference", "-o", "m.json").code == 0
    run = shardplan("verify", "m.onnx", "m.json")
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "error[nothing-to-compare]: no element of the result 'y' is a finite number, so that comparing it proves "
        "nothing\n"
        "hint: --seed draws other inputs, and the weights that the model lacks\n"
    )
