"""XLA sends in the forward pass of a planned function what the plan says, and values are those of one device."""

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

import shardplan


def waves(*shape):
    return jnp.sin(jnp.arange(float(np.prod(shape))) ** 1.5).reshape(shape)


def checked(fn, params, *batch, pins):
    """The collectives of a planned function on 2x4 beside those of its plan; its value and gradients are right."""
    plan = shardplan.jax.plan(fn, params, *batch, mesh="2x4", cluster="generic", pins=pins)
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:8])
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    given = placed, *jax.device_put(batch, shardplan.jax.batch_shardings(plan, mesh, fn, *batch))
    ours = shardplan.jax.parallelize(fn, plan, mesh)
    (value, gradients), (wanted, right) = (
        jax.jit(jax.value_and_grad(each))(*over) for each, over in ((ours, given), (fn, (params, *batch)))
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    return shardplan.jax.check(ours, given, plan)


def _transposed(params, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ params["w"].T) @ params["v"].T))


def _convolved(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jnp.mean(jnp.tanh(jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=numbers)))


@pytest.mark.parametrize(
    ("fn", "params", "x", "pins"),
    [
        (
            _transposed,
            {"w": waves(64, 32), "v": waves(32, 64)},
            waves(16, 32),
            ["w=[gpu]", "v=[null, gpu]", "x=[machine]", "tanh_*=[machine, gpu]"],
        ),
        (
            _convolved,
            {"w": waves(3, 3, 4, 16)},
            waves(16, 4, 4, 4),
            ["w=[null, null, null, [gpu, machine]]", "x=[machine]", "conv_*=[machine, gpu]"],
        ),
    ],
)
def test_a_weight_that_a_plan_has_transposed_is_constrained_as_it_is_stored(fn, params, x, pins):
    check = checked(fn, params, x, pins=pins)
    assert check.predicted_bytes("forward") > 100
    assert check.agrees, str(check)


@pytest.mark.parametrize(
    "kept", [lambda table, rows, columns: table[rows, columns], lambda table, rows, columns: table[rows, columns % 4]]
)
def test_numbers_of_the_rows_are_no_reason_to_gather(kept):
    """`logits[arange(n), labels]`: each device reads its own rows."""

    def fn(params, x, labels):
        scores = jax.nn.log_softmax((x @ params["w"]).reshape(32, 16, -1)[:, :, 0])
        return -kept(scores, jnp.arange(32), labels).mean()

    pins = ["x=[[machine, gpu]]", "w=[]", "labels=[[machine, gpu]]"]
    check = checked(fn, {"w": waves(16, 16)}, waves(32, 16), jnp.arange(32) % 16, pins=pins)
    assert check.agrees, str(check)


def test_partial_sums_that_the_plan_sends_to_other_devices_are_summed_first():
    """The plan turns and sums them in one move, for which there is no sharding; no whole operand is gathered."""

    def fn(params, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]) ** 2)

    pins = ["x=[]", "tanh_2=[gpu, machine]", "matmul_3={gpu: m}", "tanh_4=[[machine, gpu]]"]
    check = checked(fn, {"a": waves(32, 64), "b": waves(64, 64)}, waves(16, 32), pins=pins)
    assert check.emitted_bytes("forward") <= check.predicted_bytes("forward")


def test_what_is_split_is_not_read_as_partial_sums():
    """The target of a loss was to be split and read as partial sums, beside the partial sums of a product, for free:
    XLA gathered a value in the backward pass that the plan sends nowhere."""

    def loss(params, x, y):
        return jnp.mean((jax.nn.gelu(x @ params["up"]) @ params["down"] - y) ** 2)

    params = {"up": jnp.full((64, 256), 0.01), "down": jnp.full((256, 64), 0.01)}
    batch = waves(16, 64), waves(16, 64)
    plan = shardplan.jax.plan(loss, params, *batch, mesh="1x4", pins=["up=[null, gpu]", "down=[gpu]"])
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[:4])
    placed = jax.device_put(params, shardplan.jax.shardings(plan, mesh, params))
    given = placed, *jax.device_put(batch, shardplan.jax.batch_shardings(plan, mesh, loss, *batch))
    step = jax.value_and_grad(shardplan.jax.parallelize(loss, plan, mesh))
    found = shardplan.jax.check(step, given, plan)
    assert found.agrees
    assert {row.kind for row in found.rows if row.emitted_bytes} == {"all_reduce"}
