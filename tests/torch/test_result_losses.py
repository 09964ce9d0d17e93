"""Losses of results in parts, outside of a model: they and their gradients are those of one process."""

import re

import pytest

pytest.importorskip("torch")

import onnx
from forced_plans import forced_plan
from small_models import proto_of
from torch.nn import functional
from torch_by_hand import NET
from torch_losses import cases

from shardplan.model.read import read_model


def test_every_loss_is_tried():
    known = {name for name in dir(functional) if re.search(r"_loss$|entropy|^kl_div$", name)}
    assert known == {name.split()[0] for name in cases()}


@pytest.mark.parametrize("whole", [False, True])
def test_losses_and_gradients_are_those_of_one_process(four, tmp_path, whole):
    onnx.save(proto_of(NET), tmp_path / "net.onnx")
    plan = forced_plan(read_model(tmp_path / "net.onnx"), "2x2", recipe="ZeRO-3")
    assert four.run("torch_losses", "outside", plan, whole) == [[]] * 4


@pytest.mark.parametrize("options", [{"recipe": "ZeRO-3"}, {"seed": 1}], ids=str)
def test_results_take_plain_tensors_beside_them(four, tmp_path, options):
    onnx.save(proto_of(NET), tmp_path / "net.onnx")
    plan = forced_plan(read_model(tmp_path / "net.onnx"), "2x2", **options)
    for errors in four.run("torch_losses", "beside", plan):
        assert max(errors) < 1e-5
