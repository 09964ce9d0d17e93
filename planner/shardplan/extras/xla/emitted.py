"""The collectives of an HLO module: payload, mesh axes, number of runs, phase and originating operation."""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardplan.extras.xla.hlo import Computation, Instruction, Module, Shape
from shardplan.extras.xla.readers import sent_on, times_cut
from shardplan.extras.xla.replica_groups import Groups, replica_groups, source_target_pairs
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
_FOLLOWED = frozenset({"all_reduce", "all_gather"})
"""Kinds that over two axes do the same, in as many bytes or more, as over one axis after the other."""
_BACKWARD = "transpose("
"""Part of an `op_name`: jax names what differentiation adds so."""
_COMBINED = re.compile(r"(.*/)?\((.*)\)")
"""`jit(f)/(jvp()/dot_general:transpose(jvp())/dot_general)`: several collectives that XLA made one."""


Place = tuple[str, int]
"""Name of an instruction, and which of its operands."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """One tensor of one collective. `count`: times per run (iterations of the loops around it). Bytes are of each time
    and of one device, as in `shardplan.runtime.predicted`.

    `axes`: the mesh axes over which it talks; empty where its groups are not those of any axes. `ways`: devices of a
    group. `parts`: into how many parts every device cuts the result of an all-reduce, to keep one of them.
    `op_name`: the jax operation it belongs to. `place`: instruction and which of its tensors. `then`: the place of the
    all-reduce that is the only reader of this one's result and sums it further; of an all-gather, the one that gathers
    it further.
    """

    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    ways: int
    count: int
    payload_bytes: int
    op_name: str
    parts: int = 1
    place: Place | None = None
    then: Place | None = None

    @property
    def sliced(self) -> bool:
        """Whether it is an all-reduce of which every device keeps its own part only, so a reduce-scatter would do."""
        return self.parts >= self.ways

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
    count, tensors = module.runs[computation.name], _tensors(module, computation, instruction, widened=widened)
    if kind == "all_to_all":  # its operands are the parts of one tensor
        tensors = [(sum(size_bytes for size_bytes, _ in tensors), tensors[0][1])]
    whole = len(tensors) == len(instruction.operands)
    for element, (size_bytes, op_name) in enumerate(tensors):
        phase: Phase = "backward" if _BACKWARD in op_name else "forward"
        payload = size_bytes * ways if kind == "all_gather" else size_bytes
        parts = times_cut(module, computation, instruction, element) if kind == "all_reduce" and whole else 1
        then = _sent_on(module, computation, instruction, element) if kind in _FOLLOWED and whole else None
        place = (instruction.name, element)
        yield Emitted(phase, kind, axes, ways, count, payload, op_name, parts, place, then)


def _sent_on(module: Module, computation: Computation, instruction: Instruction, element: int) -> Place | None:
    """Where one collective feeds another of the same kind (both sum, or both take the maximum), and nothing else."""
    then = sent_on(module, computation, instruction, element)
    if then is None:
        return None
    kinds = {
        inner.root.opcode if (inner := module.computations.get(name)) else name
        for reduction in (instruction, computation.instructions[then[0]])
        for name in reduction.calls
    }
    return then if len(kinds) <= 1 else None


def _tensors(
    module: Module, computation: Computation, instruction: Instruction, *, widened: bool
) -> list[tuple[int, str]]:
    """Bytes and operation of each tensor that is sent: of each operand, or, where XLA for GPU put several in a row to
    send them as one, of each of these."""
    operands = instruction.operands
    if not instruction.op_name and len(operands) == 1:
        operands = _in_a_row(module, computation, operands[0])

    def size(shape: Shape) -> int:
        return shape.size_bytes // (2 if widened and shape.dtype == "f32" else 1)

    sizes = [sum(map(size, computation.instructions[name].shapes)) for name in operands]
    return list(zip(sizes, _op_names(computation, instruction, operands), strict=True))


def _in_a_row(module: Module, computation: Computation, name: str) -> tuple[str, ...]:
    """What a value is the concatenation of; itself where it is none."""
    made = computation.instructions[name]
    root = module.computations[made.calls[0]].root if made.opcode == "fusion" else made
    return made.operands if root.opcode == "concatenate" and len(root.operands) == len(made.operands) else (name,)


def _op_names(computation: Computation, instruction: Instruction, operands: Sequence[str]) -> list[str]:
    """The operation of each of the tensors that are sent together, where XLA tells them apart. Where it tells none, as
    for what it made of other collectives, that of what each is made of."""
    if not instruction.op_name:
        return [_origin(computation, name) for name in operands]
    combined = _COMBINED.fullmatch(instruction.op_name)
    parts = combined[2].split(":") if combined else []
    if combined and len(parts) == len(operands):
        return [f"{combined[1] or ''}{part}" for part in parts]
    return [instruction.op_name] * len(operands)


def _origin(computation: Computation, name: str) -> str:
    """The operation of a value, or of the nearest of those that it is made of."""
    seen, waiting = {name}, deque([name])
    while waiting:
        instruction = computation.instructions.get(waiting.popleft())
        if instruction is None:
            continue
        if instruction.op_name:
            return instruction.op_name
        following = [operand for operand in instruction.operands if operand not in seen]
        seen.update(following)
        waiting.extend(following)
    return ""


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
