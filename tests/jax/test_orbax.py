"""orbax restores a train state straight into a plan's shardings."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shardplan

checkpoint = pytest.importorskip("orbax.checkpoint")


def loss(params, batch):
    return jnp.mean((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)


def test_a_train_state_is_restored_into_the_shardings_of_its_plan(tmp_path):
    if len(jax.devices()) < 4:
        pytest.skip("four devices are needed")
    params = {"up": jnp.arange(1024.0).reshape(16, 64), "down": jnp.arange(1024.0).reshape(64, 16)}
    batch = {"x": jnp.ones((8, 16)), "y": jnp.zeros((8, 16))}
    plan = shardplan.jax.plan(loss, params, batch, mesh="2x2", pins=["up=[null, gpu]"])
    mesh = shardplan.jax.mesh(plan, jax.devices()[:4])
    saved = {"params": params, "state": optax.adamw(1e-3).init(params)}
    wanted = {
        "params": shardplan.jax.shardings(plan, mesh, params),
        "state": shardplan.jax.state_shardings(plan, mesh, saved["state"]),
    }
    shapes = jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), saved, wanted)
    with checkpoint.StandardCheckpointer() as writer:
        writer.save(tmp_path / "step", saved)
        writer.wait_until_finished()
        found = writer.restore(tmp_path / "step", shapes)
    assert jax.tree.all(jax.tree.map(lambda x, on: x.sharding == on, found, wanted))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((np.asarray(x) == np.asarray(y)).all()), found, saved))
    assert found["state"][0].mu["up"].sharding.spec == jax.P(None, "gpu")
