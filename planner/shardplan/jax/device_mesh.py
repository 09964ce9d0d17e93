"""The plan's mesh as a `jax.sharding.Mesh`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan
from shardplan.runtime.stages import one_mesh


def mesh(plan: Plan, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `plan` over `devices`, which are taken in the order given; the last axis varies fastest.

    By default all devices there are, ordered by process and then by number, so that neighbours on the last axis are in
    one host. Axes are `Auto`: XLA fills in what is not constrained.

    Raises `ShardplanError`: `wrong-device-count` when there are more or fewer devices than the plan is for,
    `pipeline-plan` for a plan of stages, of which each has a mesh of its own.
    """
    one_mesh(plan)
    given = devices is not None
    chosen = list(devices) if devices is not None else sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    wanted = plan.mesh.size
    if len(chosen) != wanted:
        have = f"{'there are' if not given else 'given are'} {len(chosen)}"
        hint = f"pass devices=jax.devices()[:{wanted}], or solve for the devices there are"
        if len(chosen) < wanted:
            simulated = f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
            hint = f"to try the plan on a CPU, set {simulated} before jax starts"
        summary = f"the plan is for {wanted} devices ({plan.mesh}), {have}"
        raise ShardplanError(error("wrong-device-count", summary, hint=hint))
    names = plan.mesh.names
    return Mesh(
        np.array(chosen, dtype=object).reshape(plan.mesh.shape), names, axis_types=(AxisType.Auto,) * len(names)
    )


def check_mesh(plan: Plan, given: Mesh) -> None:
    """Raise `ShardplanError` unless `given` has the axes of the plan, in their order: `wrong-mesh`, `pipeline-plan`."""
    one_mesh(plan)
    wanted = tuple((axis.name, axis.size) for axis in plan.mesh.axes)
    found = tuple(zip(given.axis_names, given.devices.shape, strict=True))
    if wanted != found:
        shown = " x ".join(f"{name}={size}" for name, size in found)
        summary = f"the plan is for the mesh {plan.mesh}, this mesh is {shown}"
        raise ShardplanError(error("wrong-mesh", summary, hint="make the mesh with shardplan.jax.mesh(plan)"))
