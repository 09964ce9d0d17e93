"""What loops mean for gradients, for what is a weight, for memory and for prices."""

from __future__ import annotations

from functools import cache

import onnx
import pytest
from control_models import CONTROL_MODELS, STACKED, TRIPS
from forced_plans import INFERENCE, TRAINING, cluster_of, forced_plan
from small_models import proto_of

from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import carried_pairs, trace
from shardplan.graph.memory import MemoryRows
from shardplan.model.read import read_model
from shardplan.rules import model_rules


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @cache
    def reader(name, turns=0):
        text = (
            CONTROL_MODELS[name].replace("int64 {5}", f"int64 {{{turns}}}").replace("[5,", f"[{turns},")
            if turns
            else ""
        )
        onnx.save(proto_of(text or CONTROL_MODELS[name], 21), folder / f"{name}.onnx")
        return read_model(folder / f"{name}.onnx", TRIPS.get(name, {}))

    return reader


@pytest.mark.parametrize("name", sorted(CONTROL_MODELS))
def test_what_a_turn_begins_with_has_a_gradient_if_what_it_ends_with_has(name, read):
    model = read(name)
    flow = trace(model, model_rules(model), training=True)
    for entering, leaving in carried_pairs(model):
        begins, ends = model.operators[entering].outputs[0], model.operators[leaving].inputs[0]
        assert (begins in flow.needs_grad) == (ends in flow.needs_grad)


def test_gradients_go_through_turns(read):
    flow = trace(read("swapped"), model_rules(read("swapped")), training=True)
    assert {"Loop_1/p", "Loop_1/q", "Loop_1/r", "w"} <= flow.needs_grad


def test_a_state_that_begins_as_a_constant_is_no_weight(read):
    model = read("rnn")
    flow = trace(model, model_rules(model), training=False)
    assert "w" in flow.weightlike
    assert not any(name.startswith("Scan") for name in flow.weightlike)


def test_what_a_body_reads_from_outside_is_held_until_the_loop_ends(read):
    model = read("nested")
    flow = trace(model, model_rules(model), training=False)
    names = [operator.name for operator in model.operators]
    last = max(index for index, operator in enumerate(model.operators) if operator.loops)
    assert flow.last_reader("w") == last
    inner = max(index for index, operator in enumerate(model.operators) if len(operator.loops) == 2)
    assert flow.last_reader("Loop_2/h") == inner, names
    assert flow.last_reader("x") == 0, "it is handed over as the first turn begins"


def test_activations_are_saved_for_every_turn(read):
    """In training the loop's values are there for the backward of each turn; in inference for one at a time."""
    sizes = {}
    for turns in (4, 8):
        model = read("counted", turns)
        for options in (TRAINING, INFERENCE):
            memory = MemoryRows(build_cost_graph(model, model_rules(model), cluster_of("1"), options))
            held = [h for h in memory.holdings if h.node == ("kept", "Loop_2/s") and h.category == "activations"]
            sizes[turns, options.mode] = max(int(holding.amount.max()) for holding in held)
    assert sizes[8, "training"] == 2 * sizes[4, "training"]
    assert sizes[8, "inference"] == sizes[4, "inference"]


def test_what_is_scanned_and_stacked_is_held_for_the_whole_loop(read):
    model = read("rnn")
    memory = MemoryRows(build_cost_graph(model, model_rules(model), cluster_of("1"), INFERENCE))
    loop = [index for index, operator in enumerate(model.operators) if operator.loops]
    for kind in ("Each", "Stack"):
        name = next(operator.name for operator in model.operators if operator.op_type == kind)
        (held,) = (holding for holding in memory.holdings if holding.node == ("operator", name))
        assert (held.start, held.end) == (loop[0], loop[-1] + 1)


def test_an_entry_of_a_scanned_weight_is_not_saved_again(tmp_path):
    """A stack of layers: what a turn takes of the weights are views, and the weights are there all the time."""
    onnx.save(proto_of(STACKED, 23), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    flow = trace(model, model_rules(model), training=True)
    assert {"Scan_0/one"} <= flow.needs_grad
    assert "Scan_0/one" not in flow.saved
    assert "Scan_0/s" in flow.saved


@pytest.mark.parametrize("options", [TRAINING, INFERENCE], ids=["training", "inference"])
def test_a_loop_costs_its_turns(read, options):
    """What happens inside happens in every turn, what goes in and out once."""
    inside, compute = [], []
    for turns in (4, 8):
        plan = forced_plan(
            read("counted", turns), "2x2", options, recipe="data parallel" if options is TRAINING else ""
        )
        compute.append(sum(operator.compute_ns for operator in plan.operators))
        inside.append(sum(m.count for m in plan.moves if m.tensor.startswith("Loop") and m.steps))
    assert compute[1] == pytest.approx(2 * compute[0], abs=2 * 11)  # roundings to nanoseconds
    assert inside[1] == 2 * inside[0]
