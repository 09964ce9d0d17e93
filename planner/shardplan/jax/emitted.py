"""The collectives of a compiled program: what every device sends, over which mesh axes, how often, and why."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardplan.jax.flow import reaches_only_slices
from shardplan.jax.groups import Groups, replica_groups, source_target_pairs
from shardplan.jax.hlo import Computation, Instruction, Module, Shape
from shardplan.layout.collective import CollectiveKind
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Phase

_KINDS: dict[str, CollectiveKind] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
}
_BACKWARD = "transpose("
"""Part of an `op_name`: jax names what differentiation adds so."""
_COMBINED = re.compile(r"(.*/)?\((.*)\)")
"""`jit(f)/(jvp()/dot_general:transpose(jvp())/dot_general)`: several collectives that XLA made one."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """One tensor of one collective. `count`: times per run (turns of the loops around it). Bytes are of each time and
    of one device, as in `shardplan.runtime.predicted`.

    `axes`: the mesh axes over which it talks; empty where its groups are not those of any axes. `ways`: devices of a
    group. `sliced`: an all-reduce of which every device then keeps its own part only, so a reduce-scatter would do.
    `op_name`: the jax operation it belongs to.
    """

    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    ways: int
    count: int
    payload_bytes: int
    op_name: str
    sliced: bool = False

    @property
    def wire_bytes(self) -> int:
        """What one device sends in a bandwidth-optimal algorithm (see `layout.lower.wire_share`)."""
        return wire_bytes(self.kind, self.ways, self.payload_bytes)


def wire_bytes(kind: CollectiveKind, ways: int, payload_bytes: int) -> int:
    """Bytes that one of `ways` devices sends for a payload, in a bandwidth-optimal algorithm."""
    if kind == "permute":
        return payload_bytes
    return math.ceil(payload_bytes * (2 if kind == "all_reduce" else 1) * (ways - 1) / ways)


def emitted_collectives(module: Module, mesh: Mesh, *, widened: bool = False) -> tuple[Emitted, ...]:
    """All collectives of `module`, compiled for the devices of `mesh` in row-major order, in the order of the text.

    Those in groups of one device send nothing and are left out. `widened`: 32-bit floats stand for 16-bit ones, which
    XLA on CPU computes and sends so; their bytes are halved.
    """
    return tuple(
        row
        for computation, instruction in module.instructions()
        if _kind(instruction) is not None
        for row in _rows(module, computation, instruction, mesh, widened=widened)
    )


def _kind(instruction: Instruction) -> CollectiveKind | None:
    """What an instruction is; an asynchronous one counts where it starts."""
    return _KINDS.get(instruction.opcode.removesuffix("-start"))


def _rows(
    module: Module, computation: Computation, instruction: Instruction, mesh: Mesh, *, widened: bool
) -> Iterator[Emitted]:
    kind = _kind(instruction)
    assert kind is not None
    if kind == "permute":
        pairs = tuple(pair for pair in source_target_pairs(instruction.attributes) if pair[0] != pair[1])
        axes, ways = _axes_of_groups(pairs, mesh), 2 if pairs else 1
    else:
        groups = replica_groups(instruction.attributes, mesh.size)
        axes, ways = _axes_of_groups(groups, mesh), len(groups[0])
    if ways == 1:
        return
    count, sizes = module.runs[computation.name], _operand_bytes(computation, instruction, widened=widened)
    if kind == "all_to_all":  # its operands are the parts of one tensor
        sizes = [sum(sizes)]
    for element, (size_bytes, op_name) in enumerate(
        zip(sizes, _op_names(instruction.op_name, len(sizes)), strict=True)
    ):
        phase: Phase = "backward" if _BACKWARD in op_name else "forward"
        payload = size_bytes * ways if kind == "all_gather" else size_bytes
        sliced = kind == "all_reduce" and reaches_only_slices(module, computation, instruction, element, ways)
        yield Emitted(phase, kind, axes, ways, count, payload, op_name, sliced)


def _op_names(op_name: str, number: int) -> list[str]:
    """The operation of each of the tensors that are sent together, where XLA tells them apart."""
    combined = _COMBINED.fullmatch(op_name)
    parts = combined[2].split(":") if combined else []
    return [f"{combined[1] or ''}{part}" for part in parts] if combined and len(parts) == number else [op_name] * number


def _operand_bytes(computation: Computation, instruction: Instruction, *, widened: bool) -> list[int]:
    def size(shape: Shape) -> int:
        return shape.size_bytes // (2 if widened and shape.dtype == "f32" else 1)

    return [sum(map(size, computation.instructions[name].shapes)) for name in instruction.operands]


def _axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    """Names of the axes whose coordinates differ within groups, if the groups are then all devices that differ there.

    Pairs of a permute are groups whose devices differ in the axes at all.
    """
    places = list(mesh.coordinates())
    differ = sorted(
        {
            axis
            for group in groups
            for one, other in itertools.pairwise(group)
            for axis in range(len(mesh))
            if places[one][axis] != places[other][axis]
        }
    )
    whole = {frozenset(group) for group in mesh.groups(differ)}
    if all(len(group) == 2 for group in groups) and not {frozenset(group) for group in groups} <= whole:
        inside = all(any(set(group) <= block for block in whole) for group in groups)
        return tuple(mesh.names[axis] for axis in differ) if inside else ()
    return tuple(mesh.names[axis] for axis in differ) if {frozenset(group) for group in groups} == whole else ()
