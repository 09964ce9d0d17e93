"""Buffers that a program changes while it runs are those of one process, however the plan shards them."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import onnx
from forced_plans import forced_plan
from small_models import proto_of
from torch_buffers import MODELS, Assigning, Joined, Shared

from shardplan.layout.layout import Layout
from shardplan.layout.placement import S
from shardplan.model.read import read_model
from shardplan.torch.parameters.naming import name_parameters


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    def made(name, **options):
        path = tmp_path_factory.mktemp("model") / f"{name}.onnx"
        onnx.save(proto_of(MODELS[name][1]), path)
        return forced_plan(read_model(path), "2x2", **options)

    return made


RECIPES = [{"recipe": "ZeRO-3"}, {"recipe": "data parallel"}]
CASES = [(options, mode) for options in RECIPES for mode in ("eager", "exported")]
CASES += [({"seed": 1}, "eager"), ({"seed": 2}, "exported"), ({"seed": 3}, "eager")]
"""Plans drawn at random are the dearest to run, so each form of a program gets its own."""


@pytest.mark.parametrize(("options", "mode"), CASES, ids=str)
@pytest.mark.parametrize("name", ["cnn", "averages"])
def test_buffers_are_written_back(four, plan_of, name, options, mode):
    plan = plan_of(name, **options)
    for steps in four.run("torch_buffers", "train", name, plan, mode):
        assert max(error for step in steps for error in step) < 1e-5


@pytest.mark.parametrize(("mode", "kind"), [("eager", Joined), ("exported", Joined), ("eager", Assigning)])
def test_so_are_buffers_that_are_kept_in_parts(four, plan_of, mode, kind):
    plan = plan_of("joined", recipe="ZeRO-3")
    both = Layout.of(S(0, (8, 8)), S(0, (8, 8)))
    tensors = [replace(t, layout=both, served=both) if t.name == "norm_running_mean" else t for t in plan.tensors]
    plan = replace(plan, tensors=tuple(tensors))
    for error, in_parts, parameters in four.run("torch_buffers", "train_in_parts", plan, mode, kind):
        assert error < 1e-5
        assert in_parts
        assert not parameters


@pytest.mark.parametrize("options", [*RECIPES, {"seed": 1}], ids=str)
def test_so_are_weights_that_are_changed_in_place(four, plan_of, options):
    for steps in four.run("torch_buffers", "train", "clamped", plan_of("clamped", **options)):
        assert max(error for step in steps for error in step) < 1e-5


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize(("recipe", "strict"), [("ZeRO-3", False), ("data parallel", True)])
def test_so_is_a_buffer_whose_rows_functions_write_into(four, plan_of, mode, recipe, strict):
    for steps in four.run("torch_buffers", "train", "rows", plan_of("rows", recipe=recipe), mode, strict):
        assert max(error for step in steps for error in step) < 1e-5


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_so_is_a_buffer_that_several_modules_have(four, plan_of, mode):
    plan = plan_of("shared", recipe="ZeRO-3")
    named = name_parameters(Shared(), plan, rename=lambda name: name.replace(".", "_"), ignore=(), strict=True)
    assert set(named) == {"weight", "second.level", "first.level"}
    for steps in four.run("torch_buffers", "train", "shared", plan, mode):
        assert max(error for step in steps for error in step) < 1e-5


def test_they_stay_one(four, plan_of):
    for said in four.run("torch_buffers", "refused", plan_of("shared", recipe="ZeRO-3")):
        assert "error[shared-buffer]: the model sets 'first.level', a buffer that several of its modules have" in said
        assert "hint: change it in place (buffer.copy_(...))" in said


def test_plans_shard_the_buffers(plan_of):
    names = {"norm_running_mean", "last_running_var"}
    sharded = [t for t in plan_of("cnn", recipe="ZeRO-3").tensors if t.name in names]
    assert len(sharded) == 2
    assert all(any(p.is_shard for p in tensor.layout.placements) for tensor in sharded)
