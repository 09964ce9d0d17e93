"""The mesh axes of a plan as axes of torchtitan: data, context and tensor parallelism, in this order of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, R
from shardplan.plan.types import Plan

TITAN_AXES = ("dp", "cp", "tp")


@dataclass(frozen=True, slots=True)
class TitanAxes:
    """`members`: per axis of torchtitan, the axes of the plan that form it, major first; often one or none. An axis of
    one device belongs to none."""

    mesh: Mesh
    members: Mapping[str, tuple[int, ...]]

    def size(self, axis: str) -> int:
        """How many parts torchtitan's axis has."""
        return self.mesh.ways(self.members[axis])

    def unlike(self, name: str, layout: Layout) -> Iterator[str]:
        """Why a layout cannot be expressed: segments, reductions other than sums, an order other than the mesh's, or
        axes that are one in torchtitan but treat a tensor differently."""
        if any(placement.segments for placement in layout.placements):
            yield f"'{name}' is cut by segments (a fused dim)"
        if layout.order != tuple(range(len(self.mesh))):
            yield f"'{name}' is sharded by axes in another order than the mesh's"
        for reduction in sorted({placement.reduction for placement in layout.placements} - {"sum"}):
            yield f"'{name}' is partial by {reduction}, and partial values are sums in torchtitan"
        for axis, members in self.members.items():
            placements = [layout.placements[member] for member in members]
            if len(set(placements)) > 1:
                axes = " and ".join(self.mesh.names[member] for member in members)
                yield f"{axes} are both {axis} in torchtitan, which has one such axis, and differ in '{name}'"

    def text(self, layout: Layout, rank: int, *, gradients: bool) -> str:
        """`SpmdLayout({DP: S(0), CP: R, TP: P})`. Where several axes shard one dim, with a partition_spec. Without
        gradients `R` and `I` are the same, and `R` is written."""
        types, dims = {}, dict[int, list[str]]()
        for axis, members in self.members.items():
            placement = layout.placements[members[0]] if members else RP
            types[axis] = "I" if placement == R and gradients else placement.kind[0]
            if placement.is_shard:
                types[axis] = f"S({placement.dim})"
                dims.setdefault(placement.dim, []).append(axis.upper())
        if all(len(axes) == 1 for axes in dims.values()):
            return f"SpmdLayout({{{_items(types)}}})"
        types = {axis: "V" if text.startswith("S") else text for axis, text in types.items()}
        entries = [dims.get(dim, ["None"]) for dim in range(rank)]
        spec = ", ".join(axes[0] if len(axes) == 1 else f"({', '.join(axes)})" for axes in entries)
        return f"SpmdLayout({{{_items(types)}}}, ({spec}{',' * (rank == 1)}))"

    def disordered(self) -> Iterator[str]:
        """Why the mesh cannot be expressed: torchtitan counts ranks in the order of its axes."""
        order = [member for axis in TITAN_AXES for member in self.members[axis]]
        if order != sorted(order):
            names = ", ".join(self.mesh.names[member] for member in order)
            yield f"torchtitan's ranks are counted by {', '.join(TITAN_AXES)}, here {names}: the mesh has another order"


def _items(types: Mapping[str, str]) -> str:
    return ", ".join(f"{axis.upper()}: {text}" for axis, text in types.items())


def titan_axes(plan: Plan) -> TitanAxes:
    """Which axis of torchtitan each axis of several devices is: by its name where it has one of torchtitan's, else by
    the inputs of the model: `dp` cuts the batch (dim 0 of all inputs), `cp` the sequence, and `tp` is any other."""
    members: dict[str, list[int]] = {axis: [] for axis in TITAN_AXES}
    for number, axis in enumerate(plan.mesh.axes):
        if axis.size == 1:
            continue
        members[axis.name if axis.name in members else _by_inputs(plan, number)].append(number)
    return TitanAxes(plan.mesh, {axis: tuple(found) for axis, found in members.items()})


def _by_inputs(plan: Plan, axis: int) -> str:
    cut = {
        placement.dim
        for tensor in plan.tensors
        if tensor.role == "input" and (placement := tensor.layout.placements[axis]).is_shard
    }
    return "tp" if not cut else "dp" if cut == {0} else "cp"
