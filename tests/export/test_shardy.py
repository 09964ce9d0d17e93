"""`--to shardy`: the text, and that MLIR reads it where jax brings one."""

import dataclasses
from pathlib import Path

import pytest
from example_plans import example_plan
from small_plans import plan_of

from shardplan.export.shardy import export_shardy
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.plan.file import read_plan
from shardplan.plan.types import TensorDecision

PLANS = Path(__file__).parents[2] / "plans"
MESH = Mesh.of(machine=2, gpu=2)


def small(reduction="sum"):
    plan = plan_of(
        MESH, {"w": ((8, 4), Layout.of(S(0), S(0), order=(1, 0))), "q": ((4, 8), Layout.of(R, S(1)), (1, 0))}
    )
    x = TensorDecision("x", "input", (2, 4), "int64", Layout.of(S(0), R), Layout.of(S(0), R), 0)
    partial = Layout.of(R, P(reduction))
    y = TensorDecision("y", "output", (), "bfloat16", partial, partial, 0)
    return dataclasses.replace(plan, tensors=(*plan.tensors, x, y), model={**plan.model, "name": "two-layer"})


def test_the_text():
    assert export_shardy(small()).text == (
        'module @"two-layer" {\n'
        '  sdy.mesh @mesh = <["machine"=2, "gpu"=2]>\n'
        "  func.func private @main(\n"
        '      tensor<2x4xi64> {shardplan.name = "x", sdy.sharding = #sdy.sharding<@mesh, [{"machine"}, {}]>},\n'
        '      tensor<8x4xf32> {shardplan.name = "w", sdy.sharding = #sdy.sharding<@mesh, [{"gpu", "machine"}, {}]>},\n'
        '      tensor<4x8xf32> {shardplan.name = "q", sdy.sharding = #sdy.sharding<@mesh, [{}, {"gpu"}]>}\n'
        "  ) -> (\n"
        '      tensor<bf16> {shardplan.name = "y", sdy.sharding = #sdy.sharding<@mesh, [], unreduced={"gpu"}>}\n'
        "  )\n"
        "}\n"
    )


@pytest.mark.parametrize("plan", [small(), read_plan(PLANS / "llama3_8b.4x8.plan.json")], ids=["small", "llama"])
def test_mlir_reads_it(plan):
    pytest.importorskip("jax")
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(export_shardy(plan).text)
        assert module.operation.verify()
        assert '@mesh = <["machine"=' in str(module)


def test_any_name_is_a_string():
    """Of MLIR, which has no escapes but bytes."""
    name = 'a"b\\c\nd é'
    plan = small()
    tensors = (dataclasses.replace(plan.tensors[0], checkpoint=name), *plan.tensors[1:])
    text = export_shardy(dataclasses.replace(plan, tensors=tensors, model={**plan.model, "name": name})).text
    assert text.startswith('module @"a\\22b\\5Cc\\0Ad é" {\n')
    pytest.importorskip("jax")
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        assert ir.Module.parse(text).operation.verify()


def test_what_cannot_be_said():
    assert "error[cannot-say]: shardy cannot express that a dim is cut by segments" in str(
        export_shardy(example_plan()).refused[0]
    )
    refused = export_shardy(small("max")).refused
    assert str(refused[0]) == "error[cannot-say]: shardy cannot express that partial values are not sums\n  y: max"
    odd = dataclasses.replace(small(), tensors=(dataclasses.replace(small().tensors[0], dtype="string"),))
    assert str(export_shardy(odd).refused[0]) == "error[cannot-say]: shardy cannot express these types\n  w: string"
