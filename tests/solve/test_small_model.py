"""A network of two layers under tiny limits: HiGHS once crashed on its program, and once forgot its bound."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.planning import Planner
from shardplan.solve import Problem, evaluate, solve

MLP = """
<ir_version: 10, opset_import: ["" : 21]>
mlp (float[64,6] x, float[64,10] y) => (float loss) <float[6,8] w1, float[8] b1, float[8,10] w2, float[10] b2> {
  m = MatMul (x, w1)
  h = Add (m, b1)
  a = Relu (h)
  n = MatMul (a, w2)
  o = Add (n, b2)
  d = Sub (o, y)
  s = Mul (d, d)
  loss = ReduceMean <keepdims = 0> (s)
}"""


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    path: Path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    model = onnx.parser.parse_model(MLP)
    for weight in model.graph.value_info:
        tensor = onnx.TensorProto(name=weight.name, data_type=onnx.TensorProto.FLOAT)
        tensor.dims.extend(dim.dim_value for dim in weight.type.tensor_type.shape.dim)
        tensor.raw_data = bytes(4 * math.prod(tensor.dims))
        model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    options = PlanOptions(mode="inference", memory_limit_bytes=1 << 40)
    cluster = make_cluster(load_profile("h100-dgx"), "2x2")
    return Planner(read_model(path), cluster, options, reasons=False).solve_at(()).layouts.problem


@pytest.mark.parametrize("limit", [5000, 6000, 8000, 12000, 50000])
def test_tiny_limits_are_solved_to_the_optimum(problem: Problem, limit: int) -> None:
    bounded = replace(problem, limit=limit)
    solution = solve(bounded)
    assert solution.outcome == "optimal"
    assert solution.cost == solution.bound
    assert evaluate(bounded, solution.choices or ()).feasible
    if limit in (5000, 8000, 50000):  # the others take the whole program long
        assert solve(bounded, presolve=False).cost == solution.cost


def test_the_least_memory_is_enough_and_a_byte_less_is_not(problem: Problem) -> None:
    shortfall = solve(replace(problem, limit=0)).shortfall_bytes
    assert shortfall > 0
    least = solve(replace(problem, limit=shortfall))
    assert least.outcome == "optimal"
    assert evaluate(replace(problem, limit=shortfall), least.choices or ()).peak_bytes == shortfall
    below = solve(replace(problem, limit=shortfall - 1))
    assert (below.outcome, below.shortfall_bytes, below.choices) == ("infeasible", 1, None)
