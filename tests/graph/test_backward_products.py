"""The backward of a matrix product costs what its two products would cost as operators of their own."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.planning import Planner

CLUSTER = make_cluster(load_profile("h100-dgx"), "1")
ROWS, SUMMED, COLUMNS = 4096, 128, 1024


def product(a: tuple[str, tuple[int, int]], b: tuple[str, tuple[int, int]]) -> Model:
    """C = A @ B of two named operands; those whose name begins with `weight` are trained."""
    shapes = dict([a, b, ("c", (a[1][0], b[1][1]))])
    weights = sorted(name for name in shapes if name.startswith("weight"))
    inputs = tuple(name for name in (a[0], b[0]) if name not in weights)
    roles = dict.fromkeys(weights, "parameter") | dict.fromkeys(inputs, "input")
    return Model(
        name="product",
        operators=(Operator("product", "MatMul", (a[0], b[0]), ("c",), {}, "", 21),),
        tensors={
            name: Tensor(name, shape, "bfloat16", roles.get(name, "activation")) for name, shape in shapes.items()
        },
        parameters=tuple(Parameter(name, name, name) for name in weights),
        inputs=inputs,
        outputs=("c",),
        constants={},
    )


def seconds(model: Model, mode: str) -> tuple[float, float]:
    """Forward and backward of the only strategy on one device."""
    (space,) = Planner(model, CLUSTER, PlanOptions(effort="quick", mode=mode)).built_at()[0].operators
    assert len(space) == 1
    return float(space.compute_s[0] - space.backward_s[0]), float(space.backward_s[0])


def forward_s(rows: int, summed: int, columns: int) -> float:
    return seconds(product(("x", (rows, summed)), ("y", (summed, columns))), "inference")[0]


def test_both_gradients_have_their_own_shapes():
    """dA = dC B' sums over the columns of C, dB = A' dC over its rows."""
    model = product(("weight_a", (ROWS, SUMMED)), ("weight_b", (SUMMED, COLUMNS)))
    forward, backward = seconds(model, "training")
    assert forward == pytest.approx(forward_s(ROWS, SUMMED, COLUMNS))
    assert backward == pytest.approx(forward_s(ROWS, COLUMNS, SUMMED) + forward_s(SUMMED, ROWS, COLUMNS))
    assert backward != pytest.approx(2 * forward, rel=0.02)


def test_a_gradient_that_nobody_wants_is_not_made():
    to_b = product(("x", (ROWS, SUMMED)), ("weight", (SUMMED, COLUMNS)))
    assert seconds(to_b, "training")[1] == pytest.approx(forward_s(SUMMED, ROWS, COLUMNS))
    to_a = product(("weight", (ROWS, SUMMED)), ("x", (SUMMED, COLUMNS)))
    assert seconds(to_a, "training")[1] == pytest.approx(forward_s(ROWS, COLUMNS, SUMMED))
