"""Scaled-down forms of large models: the same operators and strategies, dims that fit together, and plans that run."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import pytest
from forced_plans import INFERENCE, TRAINING, forced_plan
from small_models import small_model

from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.program.machine.verify import verify_plan
from shardplan.program.shrink.shrink import shrink
from shardplan.program.shrink.sizes import smaller_sizes
from shardplan.rules import model_rules

MODELS = Path(__file__).parents[1] / "models"
KEPT_COPIES = 3


@cache
def large(name):
    return read_model(MODELS / f"{name}.onnx")


@pytest.fixture(scope="module")
def gpt2():
    model = large("gpt2_small")
    plan = forced_plan(model, "2x4", TRAINING, seed=4)
    return model, plan, *shrink(model, plan)


def test_the_twin_of_gpt2(gpt2):
    model, plan, scaled, small = gpt2
    (block,) = model.blocks
    assert len(scaled.operators) == len(model.operators) - (len(block.copies) - KEPT_COPIES) * len(block.copies[0])
    elements = sum(tensor.elements for tensor in scaled.tensors.values())
    assert elements < 1e-3 * sum(tensor.elements for tensor in model.tensors.values())
    assert {o.name for o in small.operators} == {o.name for o in scaled.operators}
    assert small.model["digest"] != plan.model["digest"]


def test_strategies_are_those_of_the_model(gpt2):
    _, plan, _, small = gpt2
    before = {o.name: o for o in plan.operators}
    assert any(";" in label for o in plan.operators for label in o.split), "segmented shards are among them"
    for operator in small.operators:
        ours, theirs = operator.split, before[operator.name].split
        assert [label.partition(";")[0] for label in ours] == [label.partition(";")[0] for label in theirs]
    kept = {d.name: d for d in plan.tensors}
    for tensor in small.tensors:
        kinds = [(p.kind, p.dim) for p in tensor.layout.placements]
        assert kinds == [(p.kind, p.dim) for p in kept[tensor.name].layout.placements]


def test_no_dim_that_matters_vanishes(gpt2):
    model, _, scaled, _ = gpt2
    for name, tensor in scaled.tensors.items():
        if name in model.tensors:
            whole = model.tensors[name].shape
            assert all(size >= min(2, old) for size, old in zip(tensor.shape, whole, strict=True)), name
    rules, theirs = model_rules(scaled), dict(zip((o.name for o in model.operators), model_rules(model), strict=True))
    for operator, rule in zip(scaled.operators, rules, strict=True):
        labels = [option.factor for option in rule.options]
        assert labels == [option.factor for option in theirs[operator.name].options]


def test_the_plan_of_the_twin_runs(gpt2):
    *_, scaled, small = gpt2
    report = verify_plan(scaled, small)
    assert report.verified, (report.mismatch, report.mispriced)
    assert report.moved_bytes


def test_a_wrong_plan_is_found_in_the_scaled_down_model(gpt2):
    *_, scaled, small = gpt2
    for place, move in list(enumerate(small.moves))[::40]:
        moves = (*small.moves[:place], *small.moves[place + 1 :])
        assert verify_plan(scaled, replace(small, moves=moves)).mismatch.tensor == move.tensor


@pytest.mark.parametrize(
    ("name", "mesh", "options", "recipe"),
    [
        ("gpt2_small", "2x2", TRAINING, "ZeRO-3"),
        ("llama3_8b", "4x4", TRAINING, ""),
        ("llama3_8b", "2x2x2", INFERENCE, "Megatron"),
        ("lstm_lm", "2x2", TRAINING, ""),
        ("gshard_moe", "2x2", TRAINING, ""),
    ],
)
def test_large_models(name, mesh, options, recipe):
    model = large(name)
    plan = forced_plan(model, mesh, options, recipe=recipe)
    started = time.perf_counter()
    scaled, small = shrink(model, plan)
    report = verify_plan(scaled, small)
    assert report.verified, (report.mismatch, report.mispriced)
    assert report.operators == len(scaled.operators)
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize("name", ["light_bvlc_alexnet", "light_resnet50", "light_squeezenet"])
def test_networks_of_the_onnx_package(name):
    """Old exports (opset 9) whose weights are made by nodes; convolutions, batch and local response norms, pools."""
    model = read_model(Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx")
    plan = forced_plan(model, "2x2", INFERENCE, recipe="Megatron")
    scaled, small = shrink(model, plan)
    report = verify_plan(scaled, small)
    assert report.verified, (report.mismatch, report.mispriced)


def test_sizes_fit_together(gpt2):
    """Rules say the same of the scaled-down model: every operator takes the shapes its neighbours make."""
    model, plan, *_ = gpt2
    rules = model_rules(model)
    sizes = smaller_sizes(model, plan, rules)
    for (name, dim), size in sizes.places.items():
        assert model.tensors[name].shape[dim] >= size >= 1
    residual = {sizes.places[o.inputs[0], 2] for o in model.operators if o.op_type == "LayerNormalization"}
    assert len(residual) == 1


@pytest.mark.parametrize("name", ["gpt", "llama", "moe", "lstm", "views"])
def test_a_small_model_is_its_own_twin_or_smaller(name, tmp_path):
    model = small_model(name, tmp_path)
    plan = forced_plan(model, "2x2", INFERENCE, seed=2)
    scaled, small = shrink(model, plan)
    assert verify_plan(scaled, small).verified


def test_a_plan_of_another_model_is_refused(gpt2, tmp_path):
    _, plan, *_ = gpt2
    with pytest.raises(ShardplanError, match="the plan was made for another model than 'mlp'"):
        shrink(small_model("mlp", tmp_path), plan)
