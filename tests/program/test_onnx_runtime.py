"""Operators of ONNX Runtime: refused where it is not installed, else sharded and compared like all others."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from rule_cases import Case, f, i, index
from strategies import strategy_plans

from shardplan.errors import ShardplanError
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Operator
from shardplan.program.lower import lower_program
from shardplan.program.machine.run import SINGLE_RTOL, Machine
from shardplan.program.reference import onnx_runtime as runtime
from shardplan.program.reference.evaluate import evaluate

MS = "com.microsoft."
installed = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
CASES = {
    "skip layer norm": (MS + "SkipLayerNormalization", (f(2, 4, 8), f(2, 4, 8), f(8), f(8), f(8)), {}, 4),
    "skip rms norm": (MS + "SkipSimplifiedLayerNormalization", (f(2, 4, 8), f(2, 4, 8), f(8)), {}, 1),
    "fast gelu": (MS + "FastGelu", (f(4, 8), f(8)), {}, 1),
    "attention": (MS + "MultiHeadAttention", (f(2, 4, 16), f(2, 4, 16), f(2, 4, 16)), {"num_heads": 4}, 1),
    "packed attention": (MS + "Attention", (f(2, 4, 8), f(8, 48), f(48)), {"num_heads": 4}, 1),
    "rotary": (
        MS + "RotaryEmbedding", (f(2, 4, 16), index(8, 2, 4), f(8, 2), f(8, 2)), {"num_heads": 4}, 1,
    ),
    "four bits": (
        MS + "MatMulNBits",
        (f(4, 64), index(255, 8, 4, 8).astype(np.uint8), f(8 * 4)),
        {"N": 8, "K": 64, "block_size": 16, "bits": 4},
        1,
    ),
}  # fmt: skip


@installed
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_gives_the_result_of_the_whole(name):
    kind, operands, attributes, outputs = CASES[name]
    operator = Operator("node", kind.removeprefix(MS), ("",), tuple("uvwxyz"[:outputs]), attributes, MS[:-1], 1)

    def whole(*given, **changed):
        return evaluate(operator, {**attributes, **changed}, given)

    case = Case(kind, operands, attributes, outputs=outputs, opset=1, oracle=whole)
    model, rule = case.model(), case.rule()
    values = {f"i{position}": array for position, array in enumerate(operands)}
    split = 0
    for mesh in (Mesh.of(a=2), Mesh.of(a=2, b=2)):
        for plan in strategy_plans(model, rule, mesh):
            report = Machine(lower_program(model, plan, [rule]), values, SINGLE_RTOL).run()
            assert report.mismatch is None, (plan.operators[0].split, report.mismatch)
            split += 1
    assert split


def test_without_it_the_operator_is_refused(monkeypatch):
    def missing(serialized):
        raise runtime.NoRuntimeError("it takes onnxruntime, which is not installed")

    monkeypatch.setattr(runtime, "_session", missing)
    operator = Operator("gelu", "BiasSplitGelu", ("x",), ("y",), {}, "com.microsoft", 1)
    with pytest.raises(ShardplanError) as caught:
        evaluate(operator, {}, [f(2, 2)])
    assert str(caught.value) == (
        "error[cannot-execute]: cannot run operator 'gelu' (com.microsoft.BiasSplitGelu): it is unknown to the"
        " reference evaluator, and it takes onnxruntime, which is not installed"
    )


def test_an_unknown_operator_is_refused():
    operator = Operator("odd", "NotThere", ("x",), ("y",), {}, "", 21)
    with pytest.raises(ShardplanError, match="operator 'odd' \\(NotThere\\): it is unknown to the reference"):
        evaluate(operator, {}, [i(1)])


def test_nested_graphs_are_refused():
    operator = Operator("loop", "Loop", ("n",), ("y",), {"body": "sha256:00", "captured": 0}, "", 21)
    with pytest.raises(ShardplanError, match="cannot run operator 'loop' \\(Loop\\): it has a nested graph"):
        evaluate(operator, operator.attributes, [i(1)])
