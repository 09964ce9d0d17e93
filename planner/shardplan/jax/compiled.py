"""The collectives that XLA emits for a function, compared with those of its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardplan.extras.xla.check import Check, check_text
from shardplan.model.types import FLOAT_DTYPES
from shardplan.plan.types import Phase, Plan
from shardplan.runtime.stages import one_mesh

_HALVES = frozenset({"bfloat16", "float16"})


def check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    plan: Plan,
    *,
    phases: Sequence[Phase] | None = None,
    widened: bool | None = None,
) -> Check:
    """Compile `fn` for `args` and compare the collectives in it with those of the plan. Nothing is run.

    `fn`: a function, or a function that `jax.jit` has wrapped (with its own in_shardings). `args`: arrays, or
    `ShapeDtypeStruct`s with shardings, on the devices of `shardplan.jax.mesh(plan)`. `phases`: the phases of the plan
    to compare with; by default the forward pass, and the backward pass too if `fn` contains one (`jax.grad`).

    `widened`: count 32-bit floats as 16-bit ones. XLA on CPU computes and sends bfloat16 and float16 as float32; by
    default they are counted so on a CPU if the matrices among the plan's weights have 16 bits.

    The plan's bytes are those of a whole step: of all microbatches, and of recomputed layers again. Raises
    `ShardplanError`: `pipeline-plan`, `bad-argument`.
    """
    one_mesh(plan)
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    if widened is None:
        weights = (tensor for tensor in plan.tensors if tensor.role == "parameter" and len(tensor.shape) > 1)
        floats = {tensor.dtype for tensor in weights if tensor.dtype in FLOAT_DTYPES}
        widened = _platform(args) == "cpu" and bool(floats) and floats <= _HALVES
    return check_text(jitted.lower(*args).compile().as_text(), plan, phases=phases, widened=widened)


def _platform(args: Sequence[Any]) -> str:
    """The platform of the devices on which `args` lie: `cpu`, `gpu`, `tpu`."""
    leaves = (getattr(leaf, "sharding", None) for leaf in jax.tree_util.tree_leaves(args))
    devices = (device for sharding in leaves if sharding is not None for device in sharding.device_set)
    return next((str(device.platform) for device in devices), jax.default_backend())
