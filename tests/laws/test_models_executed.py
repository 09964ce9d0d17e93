"""Plans proved by carrying them out: every value of every small model equals that of the model run whole, and
collectives move exactly the bytes that the plan was priced with.

Plans are forced to be different ones: by the net (free or dear), by memory, by the recipes people write by hand, and at
random, where every operator, tensor and move may come out in any way that is legal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from forced_plans import INFERENCE, TRAINING, forced_plan
from small_models import MODELS, small_model

from shardplan.program.machine.verify import verify_plan


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: small_model(name, folder))


def assert_verified(model, plan):
    report = verify_plan(model, plan)
    assert report.mismatch is None, report.mismatch
    assert report.mispriced == []
    assert report.operators == len(model.operators)
    assert report.values >= sum(bool(name) for operator in model.operators for name in operator.outputs)
    assert set(report.moved_bytes) == set(report.priced_bytes)
    return report


@pytest.mark.parametrize("options", [TRAINING, INFERENCE])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_fastest_plan(name, options, model_of):
    model = model_of(name)
    assert_verified(model, forced_plan(model, "2x2", options))


@pytest.mark.parametrize("name", ["gpt", "llama", "mlp"])
def test_plans_that_people_write(name, model_of):
    model = model_of(name)
    recipes = ("data parallel", "ZeRO-3", "Megatron", "Megatron + sequence")
    reports = [assert_verified(model, forced_plan(model, "2x2", recipe=recipe)) for recipe in recipes]
    assert len({tuple(sorted(report.moved_bytes.items())) for report in reports}) > 2
    assert "all_gather" in reports[1].moved_bytes


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_plans_at_random(name, seed, model_of):
    model = model_of(name)
    report = assert_verified(model, forced_plan(model, "2x2", seed=seed))
    assert report.moved_bytes, "a random plan moves something"


AT_RANDOM = frozenset(("conv", "lstm", "mlp", "moe", "views"))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_plans_on_three_axes(name, model_of):
    """One for each model: at random, or the fastest."""
    model = model_of(name)
    assert_verified(model, forced_plan(model, "2x2x2", INFERENCE, seed=7 if name in AT_RANDOM else None))


def test_microbatches_move_parts_of_what_one_run_moves(model_of):
    model = model_of("mlp")
    assert_verified(model, forced_plan(model, "2x2", replace(TRAINING, microbatches=2), seed=3))
