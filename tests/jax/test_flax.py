"""A flax module runs on shards of torch's checkpoint: kernels are the transposed weights."""

from __future__ import annotations

import pytest

pytest.importorskip("flax")
pytest.importorskip("safetensors")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from forced_plans import forced_plan
from jax.sharding import PartitionSpec
from safetensors.numpy import save_file
from tiny_models import tiny_llama

import shardplan

TINY = tiny_llama()
HIDDEN, FFN = TINY.sizes.hidden, TINY.sizes.ffn


class Linen(linen.Module):
    """The MLP of Llama, its parts called as in the checkpoint."""

    @linen.compact
    def __call__(self, x):
        gate = linen.Dense(FFN, use_bias=False, name="gate_proj")(x)
        up = linen.Dense(FFN, use_bias=False, name="up_proj")(x)
        return linen.Dense(HIDDEN, use_bias=False, name="down_proj")(linen.silu(gate) * up)


class Nnx(nnx.Module):
    """The same, as a module that holds its weights."""

    def __init__(self, rngs):
        self.gate_proj = nnx.Linear(HIDDEN, FFN, use_bias=False, rngs=rngs)
        self.up_proj = nnx.Linear(HIDDEN, FFN, use_bias=False, rngs=rngs)
        self.down_proj = nnx.Linear(FFN, HIDDEN, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


def names(path):
    """Leaves of the MLP as those of the second layer."""
    name, perm = shardplan.jax.flax_names(path)
    return f"model.layers.1.mlp.{name}", perm


@pytest.fixture(scope="module")
def placed(tmp_path_factory, devices):
    folder = tmp_path_factory.mktemp("flax")
    save_file(dict(TINY.weights), folder / "model.safetensors")
    plan = forced_plan(TINY.model(folder), "4x4", recipe="ZeRO-3")
    return plan, shardplan.jax.mesh(plan), folder


def expected(x):
    w = {part: TINY.weights[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")}
    gate = x @ w["gate"].T
    return (gate * jax.nn.sigmoid(gate) * (x @ w["up"].T)) @ w["down"].T


X = np.random.default_rng(0).standard_normal((2, HIDDEN)).astype(np.float32)


def test_linen(placed):
    plan, mesh, folder = placed
    module = Linen()
    shapes = jax.eval_shape(module.init, jax.random.key(0), X)
    params = shardplan.jax.load(plan, mesh, shapes, folder, names=names, strict=False)
    kernel = params["params"]["up_proj"]["kernel"]
    assert kernel.shape == (HIDDEN, FFN)
    assert kernel.sharding.spec == PartitionSpec(("machine", "gpu"))
    np.testing.assert_allclose(jax.jit(module.apply)(params, X), expected(X), atol=1e-5)


def test_nnx(placed):
    plan, mesh, folder = placed
    abstract = nnx.eval_shape(lambda: Nnx(nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    loaded = shardplan.jax.load(plan, mesh, nnx.to_pure_dict(state), folder, names=names, strict=False)
    nnx.replace_by_pure_dict(state, loaded)
    module = nnx.merge(graph, state)
    assert module.down_proj.kernel[...].sharding.spec == PartitionSpec(("machine", "gpu"))
    np.testing.assert_allclose(jnp.asarray(module(X)), expected(X), atol=1e-5)
