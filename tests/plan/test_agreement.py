"""A plan is used with a model only where it speaks of all that the model has, whatever digest it bears."""

import dataclasses
import json
from pathlib import Path

import onnx
import pytest
from small_models import MODELS, proto_of

from shardplan.cli import main
from shardplan.model.read import read_model
from shardplan.plan.agreement import disagreements
from shardplan.plan.file import dumps, loads, read_plan


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    opset, text = MODELS["mlp"]
    onnx.save(proto_of(text, opset), folder / "mlp.onnx")
    asked = ("solve", str(folder / "mlp.onnx"), "--mesh", "2x2", "-c", "generic", "-q", "-o", str(folder / "p.json"))
    assert main(asked) == 0
    return read_model(folder / "mlp.onnx"), read_plan(folder / "p.json"), folder


def edits(plan):
    """By name: plans that differ in one thing from what the model has."""
    first, *tensors = plan.tensors
    operator, *operators = plan.operators
    weight = next(tensor for tensor in plan.tensors if tensor.role == "parameter")
    others = tuple(tensor for tensor in plan.tensors if tensor is not weight)
    change = dataclasses.replace
    return {
        "a tensor is missing": change(plan, tensors=tuple(tensors)),
        "a tensor is another's": change(plan, tensors=(change(first, name="other"), *tensors)),
        "a shape": change(plan, tensors=(change(weight, shape=(*weight.shape[:-1], 8 * weight.shape[-1])), *others)),
        "a type": change(plan, tensors=(change(weight, dtype="float16"), *others)),
        "a checkpoint name": change(plan, tensors=(change(weight, checkpoint="other"), *others)),
        "a weight that is none": change(plan, tensors=(change(weight, role="activation"), *others)),
        "an operator is missing": change(plan, operators=tuple(operators)),
        "operators in another order": change(plan, operators=(*operators, operator)),
        "a kind": change(plan, operators=(change(operator, op_type="Relu6"), *operators)),
        "an operand": change(plan, operators=(change(operator, inputs=operator.inputs[::-1]), *operators)),
    }


def test_a_plan_agrees_with_its_model(made):
    model, plan, _ = made
    assert list(disagreements(plan, model)) == []


def test_every_edit_is_told(made):
    model, plan, _ = made
    for name, edited in edits(plan).items():
        assert list(disagreements(edited, model)), name


@pytest.mark.parametrize("verb", ["verify", "evaluate", "export"])
def test_nobody_uses_a_plan_with_a_row_missing(made, verb, capsys):
    """The file is sound in itself, and its digest is the model's."""
    _, plan, folder = made
    kept = tuple(tensor for tensor in plan.tensors if tensor.role != "parameter" or tensor.checkpoint != "w1")
    moves = tuple(move for move in plan.moves if any(move.tensor == tensor.name for tensor in kept))
    text = dumps(dataclasses.replace(plan, tensors=kept, moves=moves))
    assert loads(text)
    file, model = folder / "edited.json", str(folder / "mlp.onnx")
    file.write_text(text)
    words = {
        "verify": ("verify", model, str(file)),
        "evaluate": ("evaluate", model, "--fix", str(file)),
        "export": ("export", str(file), model, "--to", "onnx", "-o", str(folder / "out.onnx")),
    }[verb]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "error[inconsistent-plan]: the plan does not speak of what the model 'mlp' has" in said
    assert "w1" in said
    assert not Path(folder / "out.onnx").exists()
    assert json.loads(text)["model"]["digest"] == plan.model["digest"]
