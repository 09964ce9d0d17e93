"""Loops and branches that depend on data: one layout around a loop, and the plan's layouts inside of both."""

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import onnx

import shardplan
from shardplan.jax.planning.plan import onnx_program

WEIGHTS = {name: jnp.sin(jnp.arange(1024.0).reshape(32, 32) + place) / 8 for place, name in enumerate("ab")}
X = jnp.cos(jnp.arange(512.0)).reshape(16, 32)


def planned(fn, *batch, params=WEIGHTS, mode="inference", pins=()):
    """The plan of a function on 2x4, its mesh, and the function under it with its placed arguments."""
    plan = shardplan.jax.plan(fn, params, *batch, mesh="2x4", cluster="generic", mode=mode, pins=list(pins))
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    given = jax.device_put(batch, shardplan.jax.batch_shardings(plan, mesh, fn, *batch))
    return plan, shardplan.jax.parallelize(fn, plan, mesh), (placed, *given)


def repeated(params, x, most):
    """A fixed point, or as many steps as are allowed."""

    def goes_on(state):
        return (state[0] < most) & (jnp.abs(state[1] - state[2]).max() > 1e-3)

    def step(state):
        return state[0] + 1, jnp.tanh(state[1] @ params["a"] @ params["b"]), state[1]

    return jax.lax.while_loop(goes_on, step, (0, x, x + 1))[1]


@pytest.mark.filterwarnings("ignore:how often a while loop turns")
@pytest.mark.parametrize(
    "pins",
    [
        ["x=[]", "a=[null, [machine, gpu]]", "b=[]", "loop_*/tanh_*=[null, [machine, gpu]]"],
        ["x=[machine]", "a=[]", "b=[]", "loop_*/tanh_*=[machine, gpu]"],
    ],
)
def test_a_carried_value_begins_a_turn_in_the_layout_in_which_the_one_before_ended(pins):
    """The moves of one turn are planned, and nothing else is sent in it."""
    plan, fn, given = planned(repeated, X, jnp.int32(3), pins=pins)
    _, begins = (each.makes[0] for each in plan.operators if each.op_type == "shardplan.Enter")
    _, ends = (each.reads[0] for each in plan.operators if each.op_type == "shardplan.Leave")
    assert begins == ends
    check = shardplan.jax.check(fn, given, plan)
    assert check.predicted_bytes("forward") > 700
    assert check.agrees, str(check)
    np.testing.assert_allclose(jax.jit(fn)(*given), repeated(WEIGHTS, X, 3), rtol=1e-4, atol=1e-6)


def chosen(params, x, which):
    """One of three branches of the same matrices."""
    branches = [
        lambda z: jnp.tanh(z @ params["a"]) @ params["b"],
        lambda z: jnp.sin(z @ params["b"]) @ params["a"],
        lambda z: 2 * z,
    ]
    return jax.lax.switch(which, branches, x)


INSIDE = ["if_*/then_branch/tanh_*=[null, [machine, gpu]]", "if_*/else_branch/if_*/then_branch/sin_*=[]"]


def test_values_inside_of_branches_are_constrained():
    plan, fn, given = planned(chosen, X, jnp.int32(1), pins=["x=[machine, gpu]", "a=[]", "b=[]", *INSIDE])
    check = shardplan.jax.check(fn, given, plan)
    assert check.agrees, str(check)
    for which in range(3):
        ours, theirs = jax.jit(fn)(*given[:2], which), chosen(WEIGHTS, X, which)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_branches_that_lay_out_their_values_differently_have_gradients():
    """XLA refuses branches whose results have other shardings: those of the choice, and the gradients of operands."""

    def fn(params, which):
        return jax.lax.cond(which > 0, lambda z: jnp.sin(z) * 2, lambda z: jnp.cos(z) * 3, params["x"]).sum()

    pins = ["x=[machine]", "if_*/then_branch/*=[machine, gpu]", "if_*/else_branch/*=[gpu, machine]"]
    _, ours, given = planned(fn, jnp.int32(1), params={"x": X}, mode="training", pins=pins)
    for which in range(2):
        found = jax.jit(jax.value_and_grad(ours))(given[0], which)
        wanted = jax.value_and_grad(fn)({"x": X}, which)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)
        np.testing.assert_allclose(found[1]["x"], wanted[1]["x"], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:how often a while loop turns")
def test_loops_and_branches_inside_of_loops():
    def fn(params, x):
        def turn(state):
            step, h = state
            h = jax.lax.cond(h.sum() > 0, lambda z: z @ params["a"], lambda z: jnp.tanh(z @ params["b"]), h)
            h = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), h, jnp.stack([params["a"], params["b"]]))[0]
            return step + 1, h

        def row(c, _):
            return jax.lax.while_loop(lambda state: state[0] < 3, turn, (0, c))[1], None

        return jax.lax.scan(row, x, None, length=2)[0]

    pins = ["x=[machine]", "a=[null, gpu]", "b=[gpu]"]
    plan, ours, given = planned(fn, X, pins=pins)
    assert sum("/" in each.name and each.op_type == "MatMul" for each in plan.operators) == 3
    np.testing.assert_allclose(jax.jit(ours)(*given), fn(WEIGHTS, X), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:how often a while loop turns")
def test_the_graph_has_one_turn_of_a_loop_and_its_condition():
    proto = onnx_program(lambda _, a, b, x, most: repeated({"a": a, "b": b}, x, most), {}, *WEIGHTS.values(), X, 3)
    onnx.checker.check_model(proto, full_check=True)
    (loop,) = [node for node in proto.graph.node if node.op_type == "Loop"]
    inside = [node.op_type for node in loop.attribute[0].g.node]
    assert inside.count("MatMul") == 2
    assert "ReduceMax" in inside
