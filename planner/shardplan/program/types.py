"""The program that every device of a mesh runs: one list of instructions, the same for all (SPMD).

A tensor takes up to four forms on its way: `made` as its operator leaves it, `kept`, `served` to its readers and `read`
by one of them. Every form is a value with a layout of its own; a `Transfer` turns one into another with collectives, a
`Compute` runs an operator on what the device holds. Devices differ only in the slices that layouts give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.lower import Step
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R
from shardplan.model.types import AttributeValue, Model, Operator, Tensor
from shardplan.rules.types import Option, Rule

Array = NDArray[Any]
Form = Literal["loaded", "made", "kept", "served", "read"]
Shapes = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One form of a tensor, in a plain layout. `reader`: operand of an operator it is read as, `""` for other forms."""

    tensor: str
    form: Form
    layout: Layout
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A move of the plan. `payload_bytes`: what the plan says that one device puts into each collective of `steps`.

    `problem`: why the collectives of the plan do not lead from source to target, `""` when they do."""

    source: Value
    target: Value
    steps: tuple[Step, ...]
    payload_bytes: tuple[int, ...]
    size_bytes: int
    problem: str = ""


@dataclass
class Local:
    """What a device runs in place of an operator: `attributes`, `operands` that are local constants by position, and
    how the results of a mean over a split dim are weighted (`shares`: into how many parts the mean is cut)."""

    attributes: dict[str, AttributeValue]
    operands: dict[int, Array] = field(default_factory=dict)
    shares: int = 1


@dataclass(frozen=True)
class Site:
    """An operator where it stands: how each mesh axis splits it, and the whole and local shapes around it.

    `options[axis]`: what the axis splits, None when it splits nothing. `known`: whole values of constant operands by
    position.
    """

    operator: Operator
    rule: Rule
    mesh: Mesh
    options: tuple[Option | None, ...]
    operand_layouts: tuple[Layout | None, ...]
    result_layouts: tuple[Layout | None, ...]
    operand_shapes: Shapes
    result_shapes: Shapes
    known: Mapping[int, Array]
    dtypes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Element types of operands and results in the model, `""` for absent ones."""

    @property
    def kind(self) -> str:
        return self.operator.kind

    @property
    def communicates(self) -> tuple[int, ...]:
        """Axes whose option needs more than the plain operator on shards: statistics, halos, index offsets."""
        return tuple(axis for axis, option in enumerate(self.options) if option and (option.inner or option.ordered))

    def axes(self, *factors: str) -> tuple[int, ...]:
        """Axes that split one of `factors`, major first."""
        return tuple(axis for axis, option in enumerate(self.options) if option and option.factor in factors)

    def ways(self, *factors: str) -> int:
        """Into how many parts `factors` are cut together."""
        return self.mesh.ways(self.axes(*factors))

    def operand(self, position: int) -> tuple[int, ...]:
        """Whole shape of an operand that is there."""
        shape = self.operand_shapes[position]
        assert shape is not None
        return shape

    def result(self, position: int = 0) -> tuple[int, ...]:
        """Whole shape of a result that is there."""
        shape = self.result_shapes[position]
        assert shape is not None
        return shape

    def local_operand(self, position: int) -> tuple[int, ...]:
        """Shape of what one device holds of an operand."""
        layout = self.operand_layouts[position]
        assert layout is not None
        return local_shape(layout, self.mesh, self.operand(position))

    def local_result(self, position: int = 0) -> tuple[int, ...]:
        """Shape of what one device makes of a result."""
        layout = self.result_layouts[position]
        assert layout is not None
        return local_shape(layout, self.mesh, self.result(position))

    def has(self, position: int) -> bool:
        """Whether the operand is there."""
        return position < len(self.operand_shapes) and self.operand_shapes[position] is not None


@dataclass(frozen=True, slots=True)
class Compute:
    """An operator on what a device holds; `reads[i]` is None for an absent operand, `makes[i]` for an absent result."""

    site: Site
    local: Local
    reads: tuple[Value | None, ...]
    makes: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop of the model, called `loop`: `instructions` are run `iterations` times."""

    loop: str
    iterations: int
    instructions: tuple[Instruction, ...]


Instruction = Transfer | Compute | Repeat


@dataclass(frozen=True)
class Program:
    """`loads`: values that are there before the first instruction: parameters, inputs, constants."""

    model: Model
    mesh: Mesh
    loads: tuple[Value, ...]
    instructions: tuple[Instruction, ...]

    def tensor(self, value: Value) -> Tensor:
        return self.model.tensors[value.tensor]


def executed(instructions: Iterable[Instruction]) -> int:
    """The number of instructions that are carried out, those of loops once per iteration."""
    return sum(one.iterations * executed(one.instructions) if isinstance(one, Repeat) else 1 for one in instructions)


def flat(instructions: Iterable[Instruction]) -> Iterator[Transfer | Compute]:
    """The instructions once each, those of loops in the place of the loop."""
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from flat(instruction.instructions)
        else:
            yield instruction


def values_read(instruction: Instruction) -> Iterator[Value]:
    """The values that an instruction, or what a loop repeats, reads."""
    for entry in flat([instruction]):
        if isinstance(entry, Transfer):
            yield entry.source
        else:
            yield from (value for value in entry.reads if value is not None)


def placements_of(option: Option | str, side: Literal["operands", "results"], count: int) -> tuple[Placement, ...]:
    """What one axis does to the operands (results): an option, or a label that splits nothing (`-`, `~`, `+0,1`)."""
    if isinstance(option, Option):
        return getattr(option, side)  # type: ignore[no-any-return]
    if not option.startswith("+"):
        return (RP if option == "~" else R,) * count
    if side == "results":
        return (P(),) * count
    passed = {int(position) for position in option[1:].split(",")}
    return tuple(P() if position in passed else RP for position in range(count))
