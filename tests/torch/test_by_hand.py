"""Weights that a program changes by hand between steps, and optimizers that torch has not for tensors in parts."""

import pytest

pytest.importorskip("torch")

import onnx
from forced_plans import forced_plan
from small_models import proto_of
from torch_by_hand import LOOPS, NET

from shardplan.model.read import read_model


@pytest.mark.parametrize("options", [{"recipe": "ZeRO-3"}, {"seed": 1}], ids=str)
def test_they_are_those_of_one_process(four, tmp_path, options):
    onnx.save(proto_of(NET), tmp_path / "net.onnx")
    plan = forced_plan(read_model(tmp_path / "net.onnx"), "2x2", **options)
    for found in four.run("torch_by_hand", "compared", plan):
        assert found.keys() == LOOPS.keys()
        assert not {name: error for name, error in found.items() if not error < 1e-9}
