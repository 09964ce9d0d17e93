"""The plan's mesh as a `jax.sharding.Mesh`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardplan.errors import ShardplanError, error
from shardplan.plan.padding import unpadded
from shardplan.plan.types import Plan
from shardplan.runtime.stages import one_mesh
from shardplan.units import counted


def mesh(plan: Plan, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `plan` over `devices`, in the given order; the last axis varies fastest.

    By default all devices are used, ordered by process and then by number, so that neighbours on the last axis are in
    one host. The axes are `Auto`: XLA chooses the sharding of every value without a constraint.

    Raises `ShardplanError`: `wrong-device-count` when there are more or fewer devices than the plan is for, or one is
    given more than once; `pipeline-plan` for a plan with pipeline stages, each of which has a mesh of its own.
    """
    unpadded(one_mesh(plan))
    given = devices is not None
    chosen = (
        list(np.ravel(np.asarray(devices, dtype=object)))
        if devices is not None
        else sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    )
    wanted = plan.mesh.size
    if len(chosen) != wanted:
        have = f"{'there are' if not given else 'given are'} {len(chosen)}"
        hint = f"pass devices=jax.devices()[:{wanted}], or solve for the devices there are"
        if len(chosen) < wanted:
            simulated = f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
            hint = f"to try the plan on a CPU, set {simulated} before jax starts"
        summary = f"the plan is for {counted(wanted, 'device')} ({plan.mesh}), {have}"
        raise ShardplanError(error("wrong-device-count", summary, hint=hint))
    if twice := [device for device, times in Counter(chosen).items() if times > 1]:
        summary = f"{twice[0]} is given more than once, and a device has one place in a mesh"
        raise ShardplanError(error("wrong-device-count", summary, hint="pass different devices"))
    names = plan.mesh.names
    return Mesh(
        np.array(chosen, dtype=object).reshape(plan.mesh.shape), names, axis_types=(AxisType.Auto,) * len(names)
    )


def check_mesh(plan: Plan, given: Mesh) -> None:
    """Raise `ShardplanError` unless `given` has the axes of the plan, in their order: `wrong-mesh`, `pipeline-plan`;
    `bad-argument` where it is no mesh."""
    unpadded(one_mesh(plan))
    if not isinstance(given, Mesh):
        summary = f"a jax.sharding.Mesh is needed, and {given!r:.80} is not one"
        raise ShardplanError(error("bad-argument", summary, hint="shardplan.jax.mesh(plan) makes that of the plan"))
    wanted = tuple((axis.name, axis.size) for axis in plan.mesh.axes)
    found = tuple(zip(given.axis_names, given.devices.shape, strict=True))
    if wanted != found:
        shown = " x ".join(f"{name}={size}" for name, size in found)
        summary = f"the plan is for the mesh {plan.mesh}, this mesh is {shown}"
        raise ShardplanError(error("wrong-mesh", summary, hint="make the mesh with shardplan.jax.mesh(plan)"))


def check_automatic(plan: Plan, given: Mesh) -> None:
    """Raise `ShardplanError` unless values can be constrained on `given` where this is called: `wrong-mesh`,
    `pipeline-plan`; `explicit-mesh` where axes of it, or of a mesh that is set, are not `Auto`; `inside-shard-map`
    where a device sees only its own shard."""
    check_mesh(plan, given)
    around = jax.sharding.get_abstract_mesh()
    named = dict(zip(around.axis_names, around.axis_types, strict=True))
    manual = [name for name, kind in named.items() if kind == AxisType.Manual]
    if manual:
        summary = (
            f"inside shard_map over {', '.join(manual)} a device has its own part of a value, which has no sharding"
        )
        hint = "call it outside of shard_map, with the function as it is for one device"
        raise ShardplanError(error("inside-shard-map", summary, hint=hint))
    types = {**dict(zip(given.axis_names, given.axis_types, strict=True)), **named}
    other = [name for name, kind in types.items() if kind != AxisType.Auto]
    if other:
        summary = f"{', '.join(other)} {'is an axis' if len(other) == 1 else 'are axes'} of another type than Auto: "
        summary += "there shardings are part of types, and nothing is left to constrain"
        hint = "take shardplan.jax.mesh(plan), and call it outside of jax.set_mesh with explicit axes"
        raise ShardplanError(error("explicit-mesh", summary, hint=hint))
