"""Values of a program under a plan, local parts with their layouts, and calls: operations over factors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.mesh import Mesh
from shardplan.torch.propagation.lineage import Lineage
from shardplan.torch.propagation.plan_graph import Key

Factors = tuple[str, ...]
"""The factors of one dim, major first: `("h", "d")`, `()` for a dim that is broadcast."""
Dims = tuple[Factors, ...]


def broadcast_dims(shape: tuple[int, ...], batch: tuple[int, ...]) -> Dims:
    """The dims of an operand's leading `shape` among those of the `batch` to which all operands are broadcast."""
    offset = len(batch) - len(shape)
    return tuple((f"b{dim + offset}",) if size == batch[dim + offset] else () for dim, size in enumerate(shape))


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of global `shape`. `local`: the part of this process (or a node of a graph under construction);
    `layout`: dual pairs if `grad` (a gradient comes back), else plain. `forms`: other layouts to which it has been
    moved, `reads`: how often it has been read there; `lineage`: its identity, if requested."""

    local: Any
    layout: Layout
    shape: tuple[int, ...]
    dtype: torch.dtype
    grad: bool
    key: Key
    forms: dict[str, Value] = field(default_factory=dict)
    reads: int = 0
    lineage: Lineage | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of a call: layouts of operands and results, axes by factor, coordinates of this process."""

    mesh: Mesh
    coordinates: tuple[int, ...]
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    result_shapes: tuple[tuple[int, ...], ...]
    splits: Mapping[str, tuple[int, ...]]

    def ways(self, *factors: str) -> int:
        """Into how many parts `factors` are cut together."""
        return self.mesh.ways([axis for factor in factors for axis in self.splits.get(factor, ())])

    def number(self, factor: str) -> int:
        """Which of the parts of `factor` this process has."""
        return self.mesh.number(self.splits.get(factor, ()), self.coordinates)

    def local_result(self, position: int = 0) -> tuple[int, ...]:
        return local_shape(self.results[position].forward, self.mesh, self.result_shapes[position])


Run = Callable[[list[Any], Site], Any]


@dataclass(slots=True)
class Call:
    """An operation over factors, in the language of `shardplan.rules`.

    `dims`, `results`: factors of every dim of operands and results; `keys`: what the results are. A factor in `whole`
    may not be split; one that is in no result is summed, unless in `whole`. Of a factor in `ordered` a process must
    have indices that follow one another: segments are not split on their own. `linear`: sets of operands in which the
    operation is linear, taken jointly. `pieces`: (factor, sizes by result or operand): a dim that is cut into, or
    joined from, pieces; every piece must then be split on its own. `guide`: the plan's layout of the first result; it
    says how factors are split that no operand has. `run`: the operation on local tensors.
    """

    operands: Sequence[Value]
    dims: Sequence[Dims]
    results: Sequence[Dims]
    shapes: Sequence[tuple[int, ...]]
    keys: Sequence[Key]
    sizes: Mapping[str, int]
    run: Run
    whole: frozenset[str] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    pieces: Pieces | None = None
    guide: Layout | None = None
    integer: bool = False
    reduction: str = "sum"
    chains: bool = True
    ready: bool = False
    ordered: frozenset[str] = frozenset()

    @property
    def question(self) -> Hashable:
        """Everything that the split of a call follows from: calls with equal values are split alike."""
        return (
            tuple((value.layout, tuple(value.shape), value.grad) for value in self.operands), tuple(self.dims),
            tuple(self.results), tuple(map(tuple, self.shapes)), tuple(self.sizes.items()), self.whole, self.linear,
            self.pieces, self.guide, self.integer, self.reduction, self.ordered,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pieces:
    """A dim of factor `factor` that consists of pieces of `sizes`; `joins`: the operands are the pieces and the result
    is the whole (else the other way round). `taken`: the positions of the existing pieces."""

    factor: str
    sizes: tuple[int, ...]
    taken: tuple[int, ...]
    joins: bool = False
