"""Plans in JAX: mesh, shardings of pytrees, sharding constraints, sharded loading, and a check of XLA's collectives.

plan = shardplan.load("model.plan.json")
mesh = shardplan.jax.mesh(plan)
params = shardplan.jax.load(plan, mesh, shapes, "model.safetensors", names=shardplan.jax.flax_names)
h = shardplan.jax.constrain(plan, mesh, "model.layers.0.mlp", h)         # inside the function
sent = shardplan.jax.check(step, (params, batch), plan)                 # bytes that XLA sends, against the plan
"""

from shardplan.extras.xla.check import Check
from shardplan.jax.checkpoint_loading import load
from shardplan.jax.compiled import check
from shardplan.jax.device_mesh import mesh
from shardplan.jax.flax import flax_names
from shardplan.jax.fused_weights import Part
from shardplan.jax.named_shardings import sharding, shardings, state_shardings
from shardplan.jax.planning.batches import batch_shardings
from shardplan.jax.planning.parallelize import parallelize
from shardplan.jax.planning.plan import plan
from shardplan.jax.sharding_constraints import constrain, constrain_tree

__all__ = [
    "Check",
    "Part",
    "batch_shardings",
    "check",
    "constrain",
    "constrain_tree",
    "flax_names",
    "load",
    "mesh",
    "parallelize",
    "plan",
    "sharding",
    "shardings",
    "state_shardings",
]
