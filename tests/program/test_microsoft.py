"""ONNX Runtime's operators on the simulated mesh where it is not installed: by our definitions, split in every way."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from microsoft_cases import CASES, MS
from rule_cases import Case, f
from strategies import strategy_plans

from shardplan.errors import ShardplanError
from shardplan.layout.mesh import Mesh
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import SINGLE_RTOL, Machine
from shardplan.program.machine.values import random_values
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.reference.microsoft import DEFINITIONS

WRITTEN = {name: case for name, (case, _) in CASES.items() if case.kind.removeprefix(MS) in DEFINITIONS}


def values_of(case: Case) -> dict[str, np.ndarray]:
    return {f"i{position}": array for position, array in enumerate(case.operands) if array is not None}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_definition_agrees_with_the_one_of_the_tests(name):
    case = WRITTEN[name]
    operator = case.model().operators[0]
    for found, expected in zip(evaluate(operator, operator.attributes, case.operands), case.whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_strategy_gives_the_result_of_the_whole(name):
    case = WRITTEN[name]
    model, rule = case.model(), case.rule()
    found = 0
    for mesh in (Mesh.of(a=2), Mesh.of(a=3)):
        for plan in strategy_plans(model, rule, mesh):
            report = Machine(lower_program(model, plan, [rule]), values_of(case), SINGLE_RTOL).run()
            assert report.mismatch is None, (plan.operators[0].split, report.mismatch)
            found += 1
    assert found


@pytest.mark.parametrize(
    ("kind", "operands"),
    [("Gelu", 1), ("BiasGelu", 2), ("FastGelu", 2), ("QuickGelu", 1), ("SkipLayerNormalization", 5)],
)
def test_pointwise_ones_are_near_their_meaning(kind, operands):
    shapes = [(4, 8), (4, 8), (8,), (8,), (8,)] if operands == 5 else [(4, 8), (8,)]
    given = [f(*shape) for shape in shapes[:operands]]
    case = Case(MS + kind, tuple(given), oracle=lambda *arrays, **_: [arrays[0]])
    operator = case.model().operators[0]
    (made,) = evaluate(operator, {}, given)
    data = given[0].astype(np.float64)
    if operands == 5:
        total = data + given[1] + given[4]
        expected = (total - total.mean(1, keepdims=True)) / total.std(1, keepdims=True) * given[2] + given[3]
    else:
        data = data + (given[1] if operands == 2 else 0)
        expected = data / (1 + np.exp(-1.702 * data))
    np.testing.assert_allclose(made, expected, atol=0.03 if operands < 3 else 1e-5)


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is not None, reason="it runs them")
def test_what_is_not_written_takes_onnx_runtime():
    packed = Case(MS + "MultiHeadAttention", (f(2, 4, 4, 3, 8),), {"num_heads": 4}, oracle=lambda x, **_: [x])
    operator = packed.model().operators[0]
    with pytest.raises(ShardplanError) as caught:
        evaluate(operator, operator.attributes, packed.operands)
    assert str(caught.value) == (
        "error[cannot-execute]: cannot run operator 'node' (com.microsoft.MultiHeadAttention): it is unknown to the"
        " reference evaluator, and it takes onnxruntime, which is not installed"
    )


def test_a_sparse_mixer_is_refused():
    case = CASES["MoE"][0]
    operator = case.model().operators[0]
    with pytest.raises(ShardplanError) as caught:
        evaluate(operator, {**operator.attributes, "use_sparse_mixer": 1}, case.operands)
    assert str(caught.value) == (
        "error[cannot-execute]: cannot run operator 'node' (com.microsoft.MoE): its sparse mixer is not known"
    )


def test_sequences_are_drawn_as_long_as_there_is_room():
    case = CASES["GroupQueryAttention"][0]
    values = random_values(case.model())
    assert (values["i5"].tolist(), int(values["i6"])) == ([5, 5], 6)
    assert values["i5"].dtype == values["i6"].dtype == np.int32
