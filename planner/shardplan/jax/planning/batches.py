"""`shardplan.jax.batch_shardings`: shardings of a planned function's batch, for `jax.device_put` and `in_shardings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardplan.errors import ShardplanError
from shardplan.jax.device_mesh import check_mesh
from shardplan.jax.named_shardings import sharding
from shardplan.jax.planning.arguments import leaves_of, mismatches
from shardplan.plan.types import Plan


def batch_shardings(plan: Plan, mesh: Mesh, fn: Callable[..., Any], *batch: Any) -> tuple[Any, ...]:
    """Pytrees like `batch`, of `NamedSharding`s, for `fn(params, *batch)`; `plan` is the result of `shardplan.jax.plan`
    for `fn`. An input that `fn` does not use is replicated.

    >>> of_batch = shardplan.jax.batch_shardings(plan, mesh, loss, batch)
    >>> jax.jit(step, in_shardings=(of_params, of_state, *of_batch))

    Raises `ShardplanError`: `wrong-mesh`, `missing-input`, `wrong-shape`, `wrong-dtype`.
    """
    check_mesh(plan, mesh)
    known = {tensor.name for tensor in plan.tensors if tensor.role == "input"}
    whole = NamedSharding(mesh, PartitionSpec())
    named = [(short if short in known else full, leaf) for short, full, leaf in leaves_of(fn, batch)]
    if faults := mismatches(plan, "input", dict(named)):
        raise ShardplanError(*faults)
    found = [sharding(plan, mesh, name) if name in known else whole for name, _ in named]
    return tuple(jax.tree.unflatten(jax.tree.structure(batch), found))
