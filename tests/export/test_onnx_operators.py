"""Operators that are told something else on a device, or in which devices talk, as ONNX: every
strategy on one axis and a sample of those on two, run."""

from __future__ import annotations

import pytest
from exported import assert_program_right
from operator_cases import CASES as OF_THE_MACHINE
from operator_cases import values_of
from rule_cases import Case, f, index
from strategies import strategy_plans

from shardplan.errors import ShardplanError
from shardplan.export.onnx.folder import write_folder
from shardplan.layout.mesh import Mesh
from shardplan.program.lower import lower_program
from shardplan.program.operators import registry
from shardplan.program.reference.random import DRAWING as DRAWING_KINDS
from shardplan.rules import rule_for
from shardplan.rules.composed import composed
from shardplan.rules.signature import sign

MESHES = (Mesh.of(a=2), Mesh.of(a=2, b=2))
MOST = 8
"""Strategies on the second mesh, about."""


CASES = {
    **OF_THE_MACHINE,
    "gru": Case("GRU", (f(3, 4, 4), f(1, 12, 4), f(1, 12, 4), f(1, 24)), {"hidden_size": 4}, outputs=2),
    "gru, reset later": Case(
        "GRU", (f(3, 4, 4), f(1, 12, 4), f(1, 12, 4)), {"hidden_size": 4, "linear_before_reset": 1}, outputs=2
    ),
    "mean of a window with padding": Case("AveragePool", (f(4, 4, 8),), {"kernel_shape": [3], "pads": [1, 1]}),
    "mean of a window and padding": Case(
        "AveragePool", (f(4, 4, 8),), {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}
    ),
    "cross entropy": Case("SoftmaxCrossEntropyLoss", (f(4, 8), index(8, 4)), outputs=2),
    "cross entropy of each": Case("SoftmaxCrossEntropyLoss", (f(4, 8), index(8, 4)), {"reduction": "none"}),
}
UNCHECKED = frozenset({"old group norm", "mean and variance"})
"""ONNX's own checker refuses the operator alone: it is deprecated, or its body trips up shape inference."""


DRAWING = frozenset(name for name, case in CASES.items() if case.kind in DRAWING_KINDS or name.startswith("dropout in"))


@pytest.mark.parametrize("name", sorted(set(CASES) - DRAWING))
def test_every_strategy_gives_the_result_of_the_whole(name, tmp_path):
    case = CASES[name]
    model, rule = case.model(), case.rule()
    plans = [list(strategy_plans(model, rule, mesh)) for mesh in MESHES]
    sampled = [*plans[0], *plans[1][:: 1 + len(plans[1]) // MOST]]
    for number, plan in enumerate(sampled):
        assert_program_right(
            model, plan, tmp_path / str(number), given=values_of(case), rules=[rule], check=name not in UNCHECKED
        )


@pytest.mark.parametrize("name", sorted(DRAWING))
def test_what_draws_is_refused(name, tmp_path):
    case = CASES[name]
    model, rule = case.model(), case.rule()
    plan = next(strategy_plans(model, rule, MESHES[0]))
    with pytest.raises(ShardplanError) as raised:
        write_folder(lower_program(model, plan, [rule]), plan, None, tmp_path / "out")
    summary = f"operator 'node' ({case.kind}) cannot be exported: devices would draw other numbers"
    assert [diagnostic.summary for diagnostic in raised.value.diagnostics] == [summary]
    assert list(tmp_path.iterdir()) == []


def test_only_spread_experts_have_no_form_in_onnx():
    """They look up in the numbers of others."""
    assert set(registry.KERNELS) == {"com.microsoft.MoE", "com.microsoft.QMoE"}


@pytest.mark.parametrize(
    "case",
    [
        Case("Softmax", (f(4, 8),)),
        Case("LayerNormalization", (f(4, 8), f(8), f(8)), {"axis": 1}),
        Case("RMSNormalization", (f(4, 8), f(8))),
    ],
    ids=lambda case: case.kind,
)
def test_operators_without_a_form_of_their_own_are_written_as_their_bodies(case, tmp_path, monkeypatch):
    model = case.model()
    rule = composed(sign(model.operators[0], model, ()), rule_for)
    others = {kind: found for kind, found in registry.OPERATORS.items() if kind != case.kind}
    monkeypatch.setattr(registry, "OPERATORS", others)
    plans = [plan for plan in strategy_plans(model, rule, MESHES[0]) if plan.operators[0].split != ("+0",)]
    talking = 0
    for number, plan in enumerate(plans):
        programs = assert_program_right(model, plan, tmp_path / str(number), given=values_of(case), rules=[rule])
        talking += any(node.domain for node in programs[0].graph.node)
        kinds = {node.op_type for node in programs[0].graph.node}
        assert (case.kind in kinds) != any(node.domain for node in programs[0].graph.node)
    assert talking
