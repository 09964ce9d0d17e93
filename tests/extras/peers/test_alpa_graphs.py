"""Alpa's pure-solver table beyond plain networks: transposes, reshapes, summed products, attention, biases.

Source: alpa-projects/alpa, playground/auto_sharding_solver (tests, run with CBC); fp32, alpha 1, tolerance 0.1 %. An
all-gather is given a prohibitive cost there, so that a replicated result is one that was all-reduced.
"""

from pathlib import Path

import onnx
import pytest
from onnx import parser
from peer_chain import mlp

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_constraints, parse_pin
from shardplan.cost.named import parse_cost_model
from shardplan.model.read import read_model
from shardplan.model.types import Model
from shardplan.planning import PlanOptions, plan_model

ONE_AXIS = ["4x1", "1x4"]
FORBIDDEN = "beta=1,gather=1e8"


def plan_of(model: Model, mesh: str, settings: str, *pins: str, constraints: str = "", mode: str = "inference"):
    written = parse_constraints(constraints, "fixed.yaml") if constraints else ()
    options = PlanOptions(
        effort="quick",
        mode=mode,
        optimizer="none",
        cost_model=parse_cost_model(f"alpa:{settings}"),
        constraints=(*written, *map(parse_pin, pins)),
    )
    return plan_model(model, make_cluster(load_profile("generic"), mesh), options)


def units(plan) -> float:
    assert plan.summary.outcome == "optimal"
    return plan.summary.step_ns / 1000


def all_reduce(payload_bytes: float, ways: int = 4, beta: float = 1.0) -> float:
    return int(1 + 2 * beta * (ways - 1) / ways * payload_bytes) + 0.01


@pytest.fixture
def read(tmp_path: Path):
    """Read a model from ONNX text; every graph input is one that may lie in pieces."""

    def read_text(text: str) -> Model:
        onnx.save(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'), tmp_path / "model.onnx")
        return read_model(tmp_path / "model.onnx")

    return read_text


TRANSPOSED = """
t (float[2048,128] x, float[128,2048] y) => (float[128,128] out) {
  xt = Transpose <perm = [1, 0]> (x)
  yt = Transpose <perm = [1, 0]> (y)
  out = MatMul (xt, yt)
}"""
TURNED_THREE_TIMES = """
t (float[2048,128] x, float[128,2048] y) => (float[128,128] out) {
  x1 = Transpose <perm = [1, 0]> (x)
  y1 = Transpose <perm = [1, 0]> (y)
  x2 = Transpose <perm = [1, 0]> (x1)
  y2 = Transpose <perm = [1, 0]> (y1)
  x3 = Transpose <perm = [1, 0]> (x2)
  y3 = Transpose <perm = [1, 0]> (y2)
  out = MatMul (x3, y3)
}"""
RESHAPED = """
t (float[128,1024,2] x, float[1024,2,128] y) => (float[128,128] out) {
  flat = Constant <value = int64[2] {128, 2048}> ()
  tall = Constant <value = int64[2] {2048, 128}> ()
  xr = Reshape (x, flat)
  yr = Reshape (y, tall)
  out = MatMul (xr, yr)
}"""
RESHAPED_THREE_TIMES = """
t (float[128,1024,2] x, float[1024,2,128] y) => (float[128,128] out) {
  flat = Constant <value = int64[2] {128, 2048}> ()
  tall = Constant <value = int64[2] {2048, 128}> ()
  deep = Constant <value = int64[3] {32, 4, 2048}> ()
  thick = Constant <value = int64[3] {512, 4, 128}> ()
  x1 = Reshape (x, flat)
  y1 = Reshape (y, tall)
  x2 = Reshape (x1, deep)
  y2 = Reshape (y1, thick)
  x3 = Reshape (x2, flat)
  y3 = Reshape (y2, tall)
  out = MatMul (x3, y3)
}"""


@pytest.mark.parametrize("mesh", ONE_AXIS)
@pytest.mark.parametrize("text", [TRANSPOSED, TURNED_THREE_TIMES, RESHAPED, RESHAPED_THREE_TIMES])
def test_views_keep_the_contraction_in_pieces(text, mesh, read):
    plan = plan_of(read(text), mesh, FORBIDDEN, "out=replicate")
    assert units(plan) == 98305.01 == all_reduce(128 * 128 * 4)


SUMMED = """
t (float[128,2048] x, float[2048,128] y) => (float[128,128] out) {
  h1 = MatMul (x, y)
  h2 = MatMul (x, y)
  out = Add (h1, h2)
}"""
REUSED = """
t (float[128,2048] x, float[2048,128] y, float[32,4,128] z) => (float[32,4,128] b1, float[32,4,128] b2) {
  shape = Constant <value = int64[3] {32, 4, 128}> ()
  h1 = MatMul (x, y)
  h2 = MatMul (x, y)
  h3 = MatMul (x, y)
  r1 = Reshape (h1, shape)
  r2 = Reshape (h2, shape)
  r3 = Reshape (h3, shape)
  s1 = Add (z, r1)
  s2 = Add (s1, r2)
  s3 = Add (s2, r3)
  b1 = Exp (s3)
  b2 = Exp (s3)
}"""


@pytest.mark.parametrize(
    ("text", "outputs", "published"), [(SUMMED, ("out",), 196610.02), (REUSED, ("b1", "b2"), 294915.03)]
)
def test_sums_of_products_are_reduced_once(text, outputs, published, read):
    """Alpa reduces every product by itself: that is what its optimum costs, and what ours costs when each product is to
    be whole. Partial sums may be added first, and then one all-reduce is enough."""
    whole = [f"{name}=replicate" for name in outputs]
    products = [f"h{number}=replicate" for number in (1, 2, 3) if f"h{number} " in text]
    model = read(text)
    assert units(plan_of(model, "1x4", FORBIDDEN, *whole, *products)) == pytest.approx(published, rel=1e-3)
    assert units(plan_of(model, "1x4", FORBIDDEN, *whole)) == pytest.approx(all_reduce(128 * 128 * 4), rel=1e-3)


def attention(batch: int, sequence: int, hidden: int, heads: int) -> str:
    """Projections with bias, scores, softmax, context and output projection; all of it computed, nothing fused."""
    rows, each = batch * sequence, hidden // heads
    size, split = f"float[{hidden},{hidden}]", f"float[{heads},{each}]"
    weights = ", ".join(f"{size} w{name}" for name in "qkvo") + ", " + ", ".join(f"{split} b{name}" for name in "qkv")

    def projection(name: str, perm: str) -> str:
        return f"""
  {name}0 = MatMul (flat, w{name})
  {name}1 = Reshape ({name}0, heads)
  {name}2 = Add ({name}1, b{name})
  {name} = Transpose <perm = [{perm}]> ({name}2)"""

    return f"""
att (float[{batch},{sequence},{hidden}] x, {weights}, float[{hidden}] bo) => (float[{batch},{sequence},{hidden}] out) {{
  rows = Constant <value = int64[2] {{{rows}, {hidden}}}> ()
  heads = Constant <value = int64[4] {{{batch}, {sequence}, {heads}, {each}}}> ()
  whole = Constant <value = int64[3] {{{batch}, {sequence}, {hidden}}}> ()
  flat = Reshape (x, rows)
  {projection("q", "0, 2, 1, 3")}
  {projection("k", "0, 2, 3, 1")}
  {projection("v", "0, 2, 1, 3")}
  scores = MatMul (q, k)
  weights = Softmax <axis = -1> (scores)
  context = MatMul (weights, v)
  back = Transpose <perm = [0, 2, 1, 3]> (context)
  merged = Reshape (back, rows)
  o0 = MatMul (merged, wo)
  o1 = Reshape (o0, whole)
  o2 = Add (o1, bo)
  out = Exp (o2)
}}"""


@pytest.mark.parametrize("mesh", ONE_AXIS)
def test_attention_costs_one_all_reduce(mesh, read):
    """Four devices, the result replicated. Alpa splits the heads and reduces the output projection; splitting the batch
    and summing results that are zero elsewhere costs the same."""
    plan = plan_of(read(attention(4, 128, 512, 16)), mesh, FORBIDDEN, "out=replicate")
    assert units(plan) == pytest.approx(1572871, rel=1e-3)
    assert units(plan) == all_reduce(4 * 128 * 512 * 4)
    axis = "machine" if mesh == "4x1" else "gpu"
    by_heads = plan_of(read(attention(4, 128, 512, 16)), mesh, FORBIDDEN, "out=replicate", f"q2=[null, null, {axis}]")
    assert units(by_heads) == units(plan)


def test_attention_by_batch_and_heads(read):
    plan = plan_of(read(attention(4, 128, 2048, 16)), "4x4", FORBIDDEN, "out=[machine]")
    assert units(plan) == pytest.approx(1572869, rel=1e-3)
    assert units(plan) == all_reduce(4 * 128 * 2048 * 4 / 4)


def test_forced_data_parallelism():
    """Inputs by batch and weights whole: two all-reduces of weights, where column then row would cost a sixteenth."""
    model = mlp(2, 128, 1024)
    forced = "axes: {machine: {inputs: 0, parameters: replicate}}"
    plan = plan_of(model, "4x1", "gather=1e10", constraints=forced, mode="training")
    assert units(plan) == pytest.approx(12582918, rel=1e-3)
    assert units(plan) == 2 * all_reduce(1024 * 1024 * 4)
    assert units(plan_of(model, "4x1", "gather=1e10", mode="training")) == pytest.approx(786437, rel=1e-3)


@pytest.mark.parametrize("mesh", ONE_AXIS)
def test_biases_beside_large_weights(mesh):
    plan = plan_of(mlp(2, 128, 1024, bias=True), mesh, "beta=1x1", mode="training")
    assert units(plan) == pytest.approx(786439.0, rel=1e-3)


@pytest.mark.parametrize(("mesh", "sizes", "published"), [("4x8", (4, 8), 27740.05), ("8x4", (8, 4), 59454.05)])
def test_biases_on_two_axes(mesh, sizes, published):
    """Alpa reduces the whole gradient of the second bias. Ours is added to partial sums, so that it is sharded, or its
    gradient is sliced, reduced and gathered again: the difference is that of these two all-reduces.

    The published mesh (3, 4) is left out: 3 divides none of these dims, and our shards are even.
    """
    m0, m1 = sizes
    shared = all_reduce(1024 * 128 * 4 / m0, m1, 0.01) + 2 * all_reduce(128 * 128 * 4 / m1, m0)
    whole, piece = all_reduce(128 * 4, m0), all_reduce(128 * 4 / m1, m0)
    assert published == pytest.approx(shared + whole + piece, abs=2.1)
    plan = plan_of(mlp(2, 1024, 128, bias=True), mesh, "beta=1x0.01", mode="training")
    assert units(plan) == pytest.approx(shared + 2 * piece, abs=2.1)
