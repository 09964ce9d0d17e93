"""Loops and branches carried out: bodies are planned once, run turn by turn, and every value equals ONNX's own."""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import onnx
import pytest
from control_models import CONTROL_MODELS, TRIPS
from forced_plans import INFERENCE, TRAINING, forced_plan
from onnx.reference import ReferenceEvaluator
from small_models import proto_of

from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.program.lower import lower_program
from shardplan.program.machine import run
from shardplan.program.machine.run import Machine
from shardplan.program.machine.values import random_values
from shardplan.program.machine.verify import verify_plan
from shardplan.program.types import Repeat, Transfer, executed, flat
from shardplan.rules import model_rules


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @cache
    def reader(name):
        proto = proto_of(CONTROL_MODELS[name], 21)
        onnx.save(proto, folder / f"{name}.onnx")
        return read_model(folder / f"{name}.onnx", TRIPS.get(name, {})), proto

    return reader


class Keeping(Machine):
    def _forget(self, number, instruction):
        """Nothing is forgotten: the test looks at the whole values."""


def swapped(given):
    p, q = given["x"], given["z"]
    for _ in range(3):
        p, q = q, p @ given["w"]
    return [p, q]


def rnn(given):
    h, made = given["h0"], []
    for turn in reversed(range(6)):
        h = np.tanh(given["xs"][:, turn] @ given["w"] + h @ given["r"] + given["b"])
        made.append(h)
    return [h, -np.stack(made, axis=-1), np.abs(np.stack(made[::-1]))]


def until(given):
    h = given["x"]
    for _ in range(4):
        h = np.tanh(h @ given["w"])
    return [h]


BY_HAND = {"swapped": swapped, "rnn": rnn, "until": until}
"""What ONNX's evaluator cannot run: values handed on under another name, scans backwards, turns counted from outside.

It also joins what a loop collects along its first dim where the standard stacks it."""


@pytest.mark.parametrize("name", sorted(CONTROL_MODELS))
def test_the_body_in_the_graph_computes_what_onnx_computes(name, read):
    model, proto = read(name)
    values = random_values(model, 3)
    machine = Keeping(lower_program(model, forced_plan(model, "2x2", INFERENCE)), values)
    assert machine.run().verified
    given = {key: array.astype(np.float32) if array.dtype.kind == "f" else array for key, array in values.items()}
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.graph.initializer[:]
    whole.graph.initializer.extend(onnx.numpy_helper.from_array(given[p.tensor], p.tensor) for p in model.parameters)
    if name in BY_HAND:
        expected = BY_HAND[name](given)
    else:
        expected = ReferenceEvaluator(whole).run(None, {info.name: given[info.name] for info in whole.graph.input})
    for output, array in zip(model.outputs, expected, strict=True):
        found = machine.whole[output]
        assert found.shape == model.tensors[output].shape
        np.testing.assert_allclose(found, array.reshape(found.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [TRAINING, INFERENCE], ids=["training", "inference"])
@pytest.mark.parametrize("name", sorted(CONTROL_MODELS))
def test_plans_at_random_are_carried_out(name, options, read):
    model, _ = read(name)
    moved = set()
    for seed in range(3):
        report = verify_plan(model, forced_plan(model, "2x2", options, seed=seed))
        assert report.verified, (report.mismatch, report.mispriced)
        moved |= set(report.moved_bytes)
    assert moved


def test_what_comes_from_outside_is_gathered_once(read):
    model, _ = read("counted")
    found = False
    for seed in range(8):
        plan = forced_plan(model, "2x2", INFERENCE, seed=seed)
        program = lower_program(model, plan, model_rules(model))
        repeats = [entry for entry in program.instructions if isinstance(entry, Repeat)]
        assert [entry.iterations for entry in repeats] == [5]
        inside = {e.target.form for e in flat(repeats) if isinstance(e, Transfer) and e.source.tensor in {"up", "down"}}
        assert inside <= {"read"}
        outside = [e for e in program.instructions if isinstance(e, Transfer) and e.target.form == "served"]
        found = found or any(e.steps for e in outside if e.source.tensor in {"up", "down"})
    assert found


def test_moves_inside_are_counted_once_per_turn(read):
    model, _ = read("nested")
    assert dict(model.trips) == {"Loop_2": 3, "Loop_2/Loop_2": 2}
    plan = forced_plan(model, "2x2", INFERENCE, seed=1)
    counts = {move.tensor: move.count for move in plan.moves if move.steps}
    inner = [count for tensor, count in counts.items() if tensor.startswith("Loop_2/Loop_2/")]
    outer = [count for tensor, count in counts.items() if tensor.startswith("Loop_2/If")]
    assert set(inner) <= {6, 3}
    assert set(outer) <= {3}


def test_a_carried_value_has_one_layout_around_the_loop(read):
    model, _ = read("rnn")
    for seed in range(6):
        plan = forced_plan(model, "2x2", INFERENCE, seed=seed)
        by_name = {operator.name: operator for operator in plan.operators}
        (enter,) = (operator for name, operator in by_name.items() if "Enter" in name)
        (leave,) = (operator for name, operator in by_name.items() if "Leave" in name)
        assert enter.makes[0] == leave.reads[0]


def test_a_carried_value_in_two_layouts_is_noticed(read):
    """A test of the test above: without the tie, plans come out that the machine cannot run."""
    from shardplan.graph import build

    model, _ = read("rnn")
    tied, build._tie_carried = build._tie_carried, lambda *_: None
    try:
        reports = [verify_plan(model, forced_plan(model, "2x2", INFERENCE, seed=seed)) for seed in range(4)]
    finally:
        build._tie_carried = tied
    assert not all(report.verified for report in reports)


@pytest.mark.parametrize("name", ["test_scan9_sum", "test_scan9_multi_state", "test_scan9_scalar"])
def test_what_the_onnx_package_expects_comes_out(name, tmp_path):
    from onnx.backend.test.case import node

    importlib.import_module(f"{node.__name__}.scan")
    case = next(case for case in node._NodeTestCases if case.name == name)
    onnx.save(case.model, tmp_path / "case.onnx")
    model = read_model(tmp_path / "case.onnx")
    inputs, expected = case.data_sets[0]
    values = random_values(model, given=dict(zip(model.inputs, map(np.asarray, inputs), strict=True)))
    for seed in range(3):
        machine = Keeping(lower_program(model, forced_plan(model, "2", INFERENCE, seed=seed)), dict(values))
        assert machine.run().verified
        for output, array in zip(model.outputs, expected, strict=True):
            np.testing.assert_allclose(machine.whole[output], array, rtol=1e-5)


def test_loops_that_would_run_for_hours_are_refused(read, monkeypatch):
    model, _ = read("nested")
    plan = forced_plan(model, "2x2", INFERENCE, seed=1)
    program = lower_program(model, plan, model_rules(model))
    (loop,) = (one for one in program.instructions if isinstance(one, Repeat))
    (inner,) = (one for one in loop.instructions if isinstance(one, Repeat))
    outside, between = len(program.instructions) - 1, len(loop.instructions) - 1
    count = outside + 3 * (between + 2 * len(inner.instructions))
    assert executed(program.instructions) == count
    monkeypatch.setattr(run, "MOST_INSTRUCTIONS", count)
    assert verify_plan(model, plan).verified
    monkeypatch.setattr(run, "MOST_INSTRUCTIONS", count - 1)
    with pytest.raises(ShardplanError) as caught:
        verify_plan(model, plan)
    assert str(caught.value) == (
        f"error[too-long]: '{model.name}' runs {count} instructions, those of its loops once per iteration; at most "
        f"{count - 1} are simulated\nhint: verify a form of the model with fewer iterations"
    )
