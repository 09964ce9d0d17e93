"""Every strategy of operators that are told something else on a device, or communicate, executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from operator_cases import CASES, values_of
from rule_cases import Case, f
from strategies import strategy_plans

from shardplan.errors import ShardplanError
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Operator
from shardplan.program.localise import LOCALISERS
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import Machine
from shardplan.program.operators import registry
from shardplan.program.operators.registry import KERNELS, OPERATORS
from shardplan.program.reference.evaluate import evaluate
from shardplan.rules.catalogue import example_rule
from shardplan.rules.table import TABLES

MESHES = (Mesh.of(a=2), Mesh.of(a=2, b=2))


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_gives_the_result_of_the_whole(name):
    case = CASES[name]
    model, rule = case.model(), case.rule()
    kind = model.operators[0].op_type
    found = 0
    for mesh in MESHES:
        for plan in strategy_plans(model, rule, mesh):
            program = lower_program(model, plan, [rule])
            report = Machine(program, values_of(case)).run()
            assert report.mismatch is None, (plan.operators[0].split, report.mismatch)
            found += 1
    assert found or kind == "AffineGrid", "nothing was split"


def test_all_localisers_and_operators_that_communicate_have_a_case():
    tested = {case.kind for case in CASES.values()}
    unusual = {"ConstantOfShape", "LinearAttention", "QLinearConv", "DeformConv", "GlobalLpPool"}
    unusual |= {"SimplifiedLayerNormalization"}  # as in com.microsoft, where it has a case
    standard = {kind for kind in (*LOCALISERS, *OPERATORS) if "." not in kind}
    assert standard <= tested | unusual


UNDESCRIBED = frozenset({"com.microsoft.EmbedLayerNormalization"})
"""Lookups and a normalisation at once: planned, and refused by name where it is run or exported."""


@pytest.mark.parametrize(
    "entry", [entry for table in TABLES.values() for entry in table if not entry.why], ids=lambda entry: entry.kinds[0]
)
def test_whatever_communicates_is_described(entry):
    """A rule whose options communicate inside has nodes for them, or a function of ONNX to be split as."""
    for kind in entry.kinds:
        rule = example_rule(entry, kind)
        if any(option.inner or option.ordered for option in (*rule.options, *rule.latent)):
            assert kind in OPERATORS or kind in KERNELS or kind in UNDESCRIBED, kind


def test_a_split_that_nothing_describes_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "OPERATORS", {})
    (program,) = strategies_of(CASES["gather"], "v")
    with pytest.raises(ShardplanError) as caught:
        Machine(program, values_of(CASES["gather"])).run()
    assert str(caught.value) == (
        "error[cannot-execute]: cannot run operator 'node' (Gather) on shards: this split needs communication inside"
        " the operator, which is not described for this kind\n  a splits v"
    )


def strategies_of(case: Case, factor: str):
    model, rule = case.model(), case.rule()
    for plan in strategy_plans(model, rule, MESHES[0]):
        if plan.operators[0].split[0] == factor:
            yield lower_program(model, plan, [rule])


def test_a_gru_with_other_activations_is_refused():
    case = Case(
        "GRU",
        (f(3, 4, 4), f(1, 12, 4), f(1, 12, 4)),
        {"hidden_size": 4, "activations": ["Sigmoid", "Relu"]},
        outputs=2,
    )
    programs = list(strategies_of(case, "h"))
    assert programs
    for program in programs:
        with pytest.raises(ShardplanError) as caught:
            Machine(program, values_of(case)).run()
        assert str(caught.value) == (
            "error[cannot-execute]: cannot run operator 'node' (GRU) on shards: its activations are not those of every"
            " GRU\n  a splits h"
        )


@pytest.mark.parametrize("name", ["normal", "uniform", "bernoulli", "multinomial", "dropout in training"])
def test_devices_draw_different_parts_of_the_same_numbers(name):
    """No device draws what another one draws, and an operator of another name draws other numbers."""
    case = CASES[name]
    model = case.model()
    (whole, *_) = evaluate(model.operators[0], model.operators[0].attributes, case.operands)
    halves = np.split(np.asarray(whole), 2)
    assert not np.array_equal(halves[0], halves[1])
    other = replace(model.operators[0], name="other")
    assert not np.array_equal(evaluate(other, other.attributes, case.operands)[0], whole)
    assert np.array_equal(evaluate(model.operators[0], other.attributes, case.operands)[0], whole)


def test_what_is_drawn_is_distributed_as_asked():
    normal = Operator("n", "RandomNormal", (), ("y",), {"shape": (20000,), "mean": 3.0, "scale": 2.0})
    (drawn,) = evaluate(normal, normal.attributes, [])
    assert (abs(drawn.mean() - 3) < 0.05, abs(drawn.std() - 2) < 0.05) == (True, True)
    uniform = Operator("u", "RandomUniform", (), ("y",), {"shape": (20000,), "low": -1.0, "high": 3.0})
    (drawn,) = evaluate(uniform, uniform.attributes, [])
    assert (drawn.min() >= -1, drawn.max() <= 3, abs(drawn.mean() - 1) < 0.05) == (True, True, True)
    picks = Operator("m", "Multinomial", ("x",), ("y",), {"sample_size": 20000})
    (drawn,) = evaluate(picks, picks.attributes, [np.log([[0.5, 0.3, 0.2]])])
    assert np.allclose(np.bincount(drawn[0]) / 20000, [0.5, 0.3, 0.2], atol=0.02)
    drop = Operator("d", "Dropout", ("x", "r", "t"), ("y", "m"), {}, version=13)
    made, kept = evaluate(drop, {}, [np.ones(20000), np.array(0.25), np.array(True)])
    assert (abs(kept.mean() - 0.75) < 0.02, np.allclose(made, kept / 0.75)) == (True, True)


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "gru that resets after"])
def test_states_are_gathered_as_often_as_priced(name):
    """A GRU that resets first gathers the gated state as well."""
    case = CASES[name]
    rule = case.rule()
    option = next(option for option in rule.options if option.factor == "h")
    (gather,) = (collective for collective in option.inner if collective.phase == "forward")
    steps, directions = case.operands[0].shape[0], case.operands[1].shape[0]
    assert gather.count == steps * directions * (2 if name == "gru" else 1)
    for program in strategies_of(case, "h"):
        report = Machine(program, values_of(case)).run()
        in_double = 2 * gather.payload_bytes * gather.count
        assert report.inner_bytes["all_gather"] == in_double


def test_bytes_inside_operators_are_those_priced():
    """Statistics travel in single precision where the machine computes in double: half of what it moves."""
    for name in ("softmax", "layer norm", "length", "where largest"):
        case = CASES[name]
        model, rule = case.model(), case.rule()
        for plan in strategy_plans(model, rule, MESHES[0]):
            option = next((o for o in rule.options if o.label == plan.operators[0].split[0]), None)
            priced = sum(c.payload_bytes * c.count for c in option.inner if c.phase == "forward") if option else 0
            report = Machine(lower_program(model, plan, [rule]), values_of(case)).run()
            on_the_wire = 2 * priced * (2 - 1) // 2 * 2  # an all-reduce over two devices, received by both
            scale = 1 if name == "where largest" else 2
            assert report.inner_bytes.total() == scale * on_the_wire, (name, option)
