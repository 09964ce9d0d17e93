"""Arguments of planned functions: what they are called, and whether they are those that were planned."""

import functools

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

import shardplan
from shardplan.errors import ShardplanError

PARAMS = {"w": jnp.ones((32, 64)) / 32, "v": jnp.ones((64, 32)) / 64}
X, Y = jnp.ones((16, 32)), jnp.zeros((16, 32))


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


@functools.cache
def planned(microbatches=1):
    """The plan of `loss` on 2x4, and its mesh."""
    pins = ["x=[machine]", "y=[machine]", "w=[null, gpu]"]
    plan = shardplan.jax.plan(loss, PARAMS, X, Y, mesh="2x4", pins=pins, microbatches=microbatches)
    return plan, shardplan.jax.mesh(plan, devices=jax.devices()[:8])


@pytest.mark.parametrize(
    ("params", "batch", "code", "said"),
    [
        ({**PARAMS, "w": jnp.ones((32, 60))}, (X, Y), "wrong-shape", "'w' has shape [32, 60], the plan has [32, 64]"),
        (PARAMS, (X[:7], Y), "wrong-shape", "'x' has shape [7, 32], the plan has [16, 32]"),
        (PARAMS, (X[0], Y), "wrong-shape", "'x' has shape [32], the plan has [16, 32]"),
        (PARAMS, (X.astype("bfloat16"), Y), "wrong-dtype", "'x' holds bfloat16, the plan has float32"),
        (PARAMS, (X, Y.astype(int)), "wrong-dtype", "'y' holds int32, the plan has float32"),
        (PARAMS, (X,), "missing-input", "the plan has the input 'y', which is not among the arguments"),
        ({"w": PARAMS["w"]}, (X, Y), "missing-parameter", "the plan has the weight 'v', which is not among"),
    ],
)
def test_other_arguments_than_planned_are_refused(params, batch, code, said):
    plan, mesh = planned()
    calls = [lambda: shardplan.jax.parallelize(loss, plan, mesh)(params, *batch)]
    if params is PARAMS:
        calls.append(lambda: shardplan.jax.batch_shardings(plan, mesh, loss, *batch))
    for call in calls:
        with pytest.raises(ShardplanError) as problem:
            call()
        assert f"error[{code}]: {said}" in str(problem.value)
        assert "plan again: shardplan.jax.plan(fn, params, batch)" in str(problem.value)


def test_a_microbatch_of_the_planned_step_is_taken():
    plan, mesh = planned(microbatches=4)
    of_x, _ = shardplan.jax.batch_shardings(plan, mesh, loss, X[:4], Y[:4])
    assert of_x.spec == jax.sharding.PartitionSpec("machine")
    ours = shardplan.jax.parallelize(loss, plan, mesh)(PARAMS, X[:4], Y[:4])
    np.testing.assert_allclose(ours, loss(PARAMS, X[:4], Y[:4]), rtol=1e-5)
    with pytest.raises(ShardplanError, match=r"has shape \[8, 32\], the plan has \[16, 32\], or one of 4 parts"):
        shardplan.jax.batch_shardings(plan, mesh, loss, X[:8], Y[:4])


def test_arguments_by_name_have_the_places_of_the_function():
    plan, mesh = planned()
    parallel = shardplan.jax.parallelize(loss, plan, mesh)
    np.testing.assert_allclose(parallel(PARAMS, y=Y, x=X), loss(PARAMS, X, Y), rtol=1e-5)
    by_name = shardplan.jax.parallelize(lambda p, x, *, y: loss(p, x, y), plan, mesh)
    with pytest.raises(ShardplanError, match="'y' is given by name, and has no place after the other arguments"):
        by_name(PARAMS, X, y=Y)


@pytest.mark.parametrize(
    ("value", "said"), [("hi", "str 'hi'"), (np.asarray("hi"), r"ndarray array\('hi'"), (print, "builtin_function")]
)
def test_what_is_no_array_is_refused_by_its_path(value, said):
    for params, batch, name in (
        ({**PARAMS, "of": [{"name": value}]}, (X, Y), "of.0.name"),
        (PARAMS, (X, {"all": Y, "name": value}), "y.name"),
    ):
        with pytest.raises(ShardplanError, match=rf"error\[cannot-export\]: '{name}' is no array: {said}"):
            shardplan.jax.plan(loss, params, *batch, mesh="2x4")


def test_integers_of_numpy_are_those_of_the_function():
    """They have 64 bits, and in a function 32."""
    ids = np.arange(16)
    assert ids.dtype == np.int64
    plan = shardplan.jax.plan(lambda p, ids: p["w"][ids].sum(), PARAMS, ids, mesh="2x4")
    assert {tensor.dtype for tensor in plan.tensors if tensor.role == "input"} == {"int32"}


def test_parameters_may_be_one_array():
    """It is called `params`, and its state in an optimizer has a path of its own."""

    def alone(w, x):
        return jnp.mean((x @ w) ** 2)

    w = PARAMS["w"]
    plan = shardplan.jax.plan(alone, w, X, mesh="2x4", pins=["params=[null, gpu]"])
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    wanted = jax.sharding.PartitionSpec(None, "gpu")
    assert shardplan.jax.shardings(plan, mesh, w).spec == wanted
    state = shardplan.jax.state_shardings(plan, mesh, {"mu": w, "nu": (w,), "count": jnp.zeros(()), "other": X})
    found = {name: jax.tree.leaves(each)[0].spec for name, each in state.items()}
    whole = jax.sharding.PartitionSpec()
    assert found == {"mu": wanted, "nu": wanted, "count": whole, "other": whole}
    kept = shardplan.jax.constrain_tree(plan, mesh, w)
    np.testing.assert_allclose(shardplan.jax.parallelize(alone, plan, mesh)(kept, X), alone(w, X), rtol=1e-5)


def test_weights_may_be_called_as_new_values_would_be():
    """Names of the graph's own values, such as `matmul_1`, were refused as values that are made twice."""
    params = {"matmul_1": PARAMS["w"], "tanh_2": PARAMS["v"]}

    def named(params, x, y):
        return loss({"w": params["matmul_1"], "v": params["tanh_2"]}, x, y)

    plan = shardplan.jax.plan(named, params, X, Y, mesh="2x4")
    assert {tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"} == set(params)
    ours = shardplan.jax.parallelize(named, plan, shardplan.jax.mesh(plan, devices=jax.devices()[:8]))
    assert jnp.allclose(jax.jit(ours)(params, X, Y), loss(PARAMS, X, Y))


def test_a_function_of_its_parameters_alone_is_trained():
    """Without a batch no value depended on an input, and there were "no float weights to train"."""

    def alone(params):
        return jnp.mean(jnp.tanh(params["w"] @ params["v"]) ** 2)

    plan = shardplan.jax.plan(alone, PARAMS, mesh="2x4")
    ours = shardplan.jax.parallelize(alone, plan, shardplan.jax.mesh(plan, devices=jax.devices()[:8]))
    found, wanted = jax.jit(jax.grad(ours))(PARAMS), jax.grad(alone)(PARAMS)
    assert all(jnp.allclose(found[name], wanted[name], atol=1e-7) for name in PARAMS)


def test_what_is_no_plan_and_no_mesh_is_refused():
    plan, mesh = planned()
    devices = [jax.devices()[0]] * 8
    needed = "error[bad-argument]: a plan is needed, and 'a.plan.json' is not one"
    for call, said in (
        (lambda: shardplan.jax.mesh("a.plan.json"), needed),
        (lambda: shardplan.jax.parallelize(loss, "a.plan.json", mesh), needed),
        (lambda: shardplan.jax.check(loss, (PARAMS, X, Y), "a.plan.json"), needed),
        (
            lambda: shardplan.jax.parallelize(loss, plan, None),
            "error[bad-argument]: a jax.sharding.Mesh is needed, and None is not one",
        ),
        (lambda: shardplan.jax.mesh(plan, devices), "is given more than once, and a device has one place in a mesh"),
    ):
        with pytest.raises(ShardplanError) as problem:
            call()
        assert said in str(problem.value)
