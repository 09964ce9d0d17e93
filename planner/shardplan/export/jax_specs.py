"""A plan as a Python module of `jax.sharding.PartitionSpec`s, to read, to copy from, or to import."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardplan.errors import warning
from shardplan.escapes import quoted
from shardplan.export.specs import Spec, cannot_say, plain, segmented, solve_for, specs
from shardplan.export.types import Exported
from shardplan.plan.types import Plan

_HEAD = '''"""Shardings of {model} on {mesh}, made by shardplan from a plan.

Names are those of the checkpoint, and dims are as the checkpoint stores them. Values in between are not here:
`shardplan.jax` pins them from the plan itself.
"""

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = {sizes}
"""Axis -> size, outermost first; devices are numbered row-major."""
'''
_TAIL = '''

def make_mesh(devices=None):
    """The mesh over `devices`, by default all of them in the order of their numbers."""
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id)) if devices is None else devices
    return jax.make_mesh(
        tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * len(MESH), devices=devices
    )


def shardings(mesh, specs=PARAMETERS):
    """Name -> sharding on `mesh`."""
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
'''


def export_jax(plan: Plan) -> Exported:
    """The module. Refused where a fused dim is cut by segments: a PartitionSpec would cut it elsewhere, and XLA would
    move what the plan does not."""
    hint = f"shardplan.jax loads and pins such a plan; {solve_for('jax')}"
    refused = cannot_say("jax", "that a dim is cut by segments", segmented(plan), hint)
    outputs = specs(plan, "output")
    partial = [spec.name for spec in outputs if spec.partial]
    if partial:
        summary = f"{', '.join(partial)}: left as partial sums by the plan; a PartitionSpec asks for the sum"
        refused.append(warning("not-said", summary))
    sizes = "{" + ", ".join(f"{quoted(axis.name)}: {axis.size}" for axis in plan.mesh.axes) + "}"
    head = _HEAD.format(model=plain(plan.model.get("name", "a model")), mesh=plain(plan.mesh), sizes=sizes)
    aliases = {alias: tensor.checkpoint for tensor in plan.tensors for alias in tensor.aliases}
    states = _states(plan)
    sections = [
        _section("PARAMETERS", [f"{quoted(spec.name)}: {_partition_spec(spec)}" for spec in specs(plan, "parameter")]),
        *([_section("OPTIMIZER", states)] if states else []),
        _section("ALIASES", [f"{quoted(name)}: {quoted(owner)}" for name, owner in aliases.items()]),
        _section("INPUTS", [f"{quoted(spec.name)}: {_partition_spec(spec)}" for spec in specs(plan, "input")]),
        _section("OUTPUTS", [f"{quoted(spec.name)}: {_partition_spec(spec)}" for spec in outputs]),
    ]
    return Exported(head + "".join(sections) + _TAIL, tuple(refused))


def _states(plan: Plan) -> list[str]:
    """Specs of optimizer state, of the parameters whose state is sharded apart from them."""
    apart = [replace(tensor, layout=tensor.optimizer) for tensor in plan.tensors if tensor.optimizer is not None]
    found = specs(replace(plan, tensors=tuple(apart)), "parameter")
    return [f"{quoted(spec.name)}: {_partition_spec(spec)}" for spec in found]


def _section(name: str, rows: Iterable[str]) -> str:
    lines = "".join(f"    {row},\n" for row in rows)
    return f"\n{name} = {{\n{lines}}}\n" if lines else f"\n{name} = {{}}\n"


def _partition_spec(spec: Spec) -> str:
    """`P(None, ("machine", "gpu"))`; dims at the end that no axis shards are left out."""
    entries = [_entry(axes) for axes in spec.axes]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def _entry(axes: tuple[str, ...]) -> str:
    if len(axes) < 2:
        return quoted(axes[0]) if axes else "None"
    return f"({', '.join(quoted(name) for name in axes)})"
