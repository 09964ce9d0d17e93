"""What every choice of a node does on one mesh axis, and masks for edges from rules about these states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardplan.cost.moves import Index
from shardplan.graph.build import CostGraph, Join, Node
from shardplan.graph.operators import OperatorSpace
from shardplan.graph.strategies import AxisChoice
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import RP, P, Placement, R
from shardplan.planning.reduction import Mask
from shardplan.planning.runtimes.facts import Facts

PairRule = Callable[[Placement, Placement], bool]
"""Whether a value may go from one placement on the axis to another."""


def placements(space: TensorSpace) -> tuple[Placement, ...]:
    """The placement that each placement code of a tensor means."""
    return (*space.kind.shards, R, P(), RP)


def state(space: TensorSpace | None, code: int | None) -> Placement | None:
    """The placement of a code; `None` if the tensor is not planned."""
    return None if space is None or code is None else placements(space)[code]


@dataclass(frozen=True)
class AxisView:
    """One operator's choices on one mesh axis: placements of operands and results, by position."""

    choice: AxisChoice
    operands: tuple[Placement | None, ...]
    results: tuple[Placement | None, ...]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is split and no gradient is partial."""
        return self.choice.label == "-"

    def shards(self, positions: Sequence[int]) -> list[int]:
        """Which of these operands are sharded."""
        return [at for at in positions if (p := self.operands[at]) is not None and p.is_shard]

    @property
    def made(self) -> list[Placement]:
        """The placements of planned results."""
        return [each for each in self.results if each is not None]


class MaskCache:
    """Masks by what they depend on, each made once: equal ones are the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Mask] = {}

    def __call__(self, key: tuple[object, ...], make: Callable[[], Mask]) -> Mask:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


@dataclass
class AxisMasks:
    """Masks of nodes and edges from rules about one mesh axis; equal masks are the same object."""

    built: CostGraph
    facts: Facts
    axis: int
    _once: MaskCache = field(default_factory=MaskCache)

    def views(self, space: OperatorSpace) -> list[AxisView]:
        """All choices of an operator on this axis."""
        strategies = space.strategies
        return [
            AxisView(
                choice,
                tuple(map(state, strategies.operands, choice.operands)),
                tuple(map(state, strategies.results, choice.results)),
            )
            for choice in strategies.axis_choices
        ]

    def strategies(self, index: int, allows: Callable[[AxisView], bool], *key: object) -> Mask:
        """The mask of the operator's strategies whose part on this axis is allowed."""
        space = self.built.operators[index]

        def make() -> Mask:
            allowed = np.array([allows(view) for view in self.views(space)], dtype=np.bool_)
            return np.asarray(allowed[space.strategies.choices[:, self.axis]])

        return self._once(("operator", id(space), *key), make)

    def layouts(self, space: TensorSpace, allows: Callable[[Placement], bool], *key: object) -> Mask:
        """The mask of the tensor's layouts whose placement on this axis is allowed."""

        def make() -> Mask:
            return np.array([allows(p) for p in placements(space)], dtype=np.bool_)[space.codes[:, self.axis]]

        return self._once(("tensor", id(space), *key), make)

    def pairs(self, join: Join, position: int, rule: PairRule, *key: object) -> Mask:
        """The mask of allowed pairs of choices at the two ends of an edge; `position`: that of the operand or result,
        if one end is an operator."""
        (from_space, from_codes), (to_space, to_codes) = (
            self._side(join[0], position, "results"),
            self._side(join[1], position, "operands"),
        )

        def make() -> Mask:
            table = np.array(
                [[rule(one, other) for other in placements(to_space)] for one in placements(from_space)], dtype=np.bool_
            )
            return np.asarray(table[from_codes[:, None], to_codes[None, :]])

        ends = id(self._space(join[0])), id(self._space(join[1]))
        sides = join[0][0], join[1][0]
        return self._once(("pair", *ends, *sides, position, *key), make)

    def _side(self, node: Node, position: int, side: str) -> tuple[TensorSpace, Index]:
        """The tensor at one end of an edge, and its codes by choice."""
        if node[0] != "operator":
            space = self.built.places[node[0]][node[1]]
            return space, space.codes[:, self.axis]
        strategies = self._operator(node[1]).strategies
        found = getattr(strategies, side)[position]
        assert found is not None
        return found, strategies.layout_codes(side, position)[:, self.axis]

    def _space(self, node: Node) -> object:
        return self._operator(node[1]) if node[0] == "operator" else self.built.places[node[0]][node[1]]

    def _operator(self, name: str) -> OperatorSpace:
        return self.built.operators[self.built.number[name]]


def moved_positions(built: CostGraph) -> list[tuple[Join, int]]:
    """The edges along which values move, each with the position of the result or operand at its operator (-1: none)."""
    found = []
    for join in built.joins:
        (kind, name), (other, reader), number = join
        if (kind == "operator" and other == "operator") or other == "updated":
            continue
        position = -1
        if kind == "operator":
            outputs = built.model.operators[built.number[name]].outputs
            position = [at for at, each in enumerate(outputs) if each == reader][number]
        elif other == "operator":
            inputs = built.model.operators[built.number[reader]].inputs
            position = [at for at, each in enumerate(inputs) if each == name][number]
        found.append((join, position))
    return found


def same(one: Placement, other: Placement) -> bool:
    """Whether nothing is moved."""
    return one == other


def same_or_partial_gradient(source: Placement, target: Placement) -> bool:
    """Whether nothing is moved in forward; the gradient of a whole value may be partial."""
    return source == target or (source == R and target == RP)


def same_or_slice_of_whole(source: Placement, target: Placement) -> bool:
    """Whether nothing is moved, or a device takes its shard of a whole value."""
    return source == target or (source in (R, RP) and target.is_shard)


def from_whole(source: Placement, target: Placement) -> bool:
    """Whether nothing is moved, or the value was whole."""
    return source in (target, R)
