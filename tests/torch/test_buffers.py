"""Buffers that a program changes while it runs are those of one process, however the plan shards them."""

import pytest

pytest.importorskip("torch")

import onnx
from forced_plans import forced_plan
from small_models import proto_of
from torch_buffers import MODELS

from shardplan.model.read import read_model


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    def made(name, **options):
        path = tmp_path_factory.mktemp("model") / f"{name}.onnx"
        onnx.save(proto_of(MODELS[name][1]), path)
        return forced_plan(read_model(path), "2x2", **options)

    return made


OPTIONS = [{"recipe": "ZeRO-3"}, {"recipe": "data parallel"}, {"seed": 1}, {"seed": 2}, {"seed": 3}]


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["cnn", "averages"])
def test_buffers_are_written_back(four, plan_of, name, options, mode):
    plan = plan_of(name, **options)
    for steps in four.run("torch_buffers", "train", name, plan, mode):
        assert max(error for step in steps for error in step) < 1e-5


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_so_are_weights_that_are_changed_in_place(four, plan_of, options):
    for steps in four.run("torch_buffers", "train", "clamped", plan_of("clamped", **options)):
        assert max(error for step in steps for error in step) < 1e-5


def test_plans_shard_the_buffers(plan_of):
    names = {"norm_running_mean", "last_running_var"}
    sharded = [t for t in plan_of("cnn", recipe="ZeRO-3").tensors if t.name in names]
    assert len(sharded) == 2
    assert all(any(p.is_shard for p in tensor.layout.placements) for tensor in sharded)
