"""Models that draw random numbers: whatever the plan, they draw what the model run whole draws."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from forced_plans import INFERENCE, TRAINING, forced_plan
from small_models import proto_of

from shardplan.model.read import read_model
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import Machine
from shardplan.program.machine.values import random_values
from shardplan.program.machine.verify import verify_plan

NOISY = """
noisy (float[8,16] x) => (float[8,32] y, float[8,32] z) <float[16,32] w> {
  ratio = Constant <value = float {0.25}> ()
  train = Constant <value = bool {1}> ()
  h = MatMul (x, w)
  noise = RandomNormalLike <mean = 1.0, scale = 0.5> (h)
  s = Mul (h, noise)
  d, mask = Dropout <seed = 7> (s, ratio, train)
  half = Sigmoid (d)
  coin = Bernoulli (half)
  y = Add (d, coin)
  fresh = RandomUniform <shape = [8, 32], low = -1.0> ()
  z = Mul (y, fresh)
}"""


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "noisy.onnx"
    onnx.save(proto_of(NOISY, 21), path)
    return read_model(path)


@pytest.mark.parametrize("options", [TRAINING, INFERENCE], ids=["training", "inference"])
@pytest.mark.parametrize("seed", range(4))
def test_the_plan_does_not_change_what_is_drawn(noisy, options, seed):
    report = verify_plan(noisy, forced_plan(noisy, "2x2", options, seed=seed))
    assert report.verified, (report.mismatch, report.mispriced)


def test_random_operators_are_split(noisy):
    kinds = {"RandomNormalLike", "Dropout", "Bernoulli", "RandomUniform"}
    split = set()
    for seed in range(6):
        plan = forced_plan(noisy, "2x2", INFERENCE, seed=seed)
        split |= {o.op_type for o in plan.operators if any(label[0] not in "-~+" for label in o.split)}
    assert kinds <= split


def test_every_turn_of_a_loop_draws_anew(tmp_path):
    text = """
walk (float[8,16] x) => (float[8,16] y, float[4,8,16] steps) {
  n = Constant <value = int64 {4}> ()
  y, steps = Loop (n, , x) <body = turn (int64 i, bool c, float[8,16] h) => (bool c, float[8,16] h2, float[8,16] step) {
    step = RandomNormalLike (h)
    h2 = Add (h, step)
  }>
}"""
    onnx.save(proto_of(text, 21), tmp_path / "walk.onnx")
    model = read_model(tmp_path / "walk.onnx")

    class Keeping(Machine):
        def _forget(self, number, instruction):
            """Keep all."""

    machine = Keeping(lower_program(model, forced_plan(model, "2x2", INFERENCE, seed=1)), random_values(model))
    assert machine.run().verified
    turns = machine.whole["steps"]
    assert len({turn.tobytes() for turn in turns}) == 4
    assert np.allclose(machine.whole["y"], machine.whole["x"] + turns.sum(0))
