"""Weights that are first read with gradients off have the gradients of one process."""

import pytest

pytest.importorskip("torch")

import onnx
from forced_plans import forced_plan
from small_models import proto_of
from torch_grad_modes import TEXT

from shardplan.model.read import read_model


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(proto_of(TEXT), path)
    return lambda **options: forced_plan(read_model(path), "2x2", **options)


@pytest.mark.parametrize("options", [{"recipe": "ZeRO-3"}, {"seed": 1}, {"seed": 2}], ids=str)
@pytest.mark.parametrize("form", ["own function", "looks first", "nested"])
def test_gradients_come_back(four, plan_of, form, options):
    for error, without in four.run("torch_grad_modes", "train", form, plan_of(**options)):
        assert without == []
        assert error < 1e-5
