"""The moves of a step, indexed by tensor and reader, as collectives; for the modules that write its phases."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardplan.plan.step.phases import Unit
from shardplan.plan.types import Move, OperatorDecision
from shardplan.schedule.links import WHOLE, Levels, LinkLevels

_SECOND = 1e-9


@dataclass(frozen=True)
class StepParts:
    """The parts of a step. `links[axis]`: level of a mesh axis; `optimizer_ns`: of the update; `blocks`: first
    operators of the blocks in which weights are prefetched, ascending; `levels`: the shares of links that collectives
    take; `inputs`: names of values that are neither weights nor results of operators; `stored`: checkpoint
    names of weights by their names in the graph."""

    operators: Sequence[OperatorDecision]
    moves: Sequence[Move]
    links: Sequence[str]
    training: bool
    microbatches: int
    optimizer_ns: int
    blocks: Sequence[int]
    levels: LinkLevels = WHOLE
    inputs: frozenset[str] = frozenset()
    stored: Mapping[str, str] = field(default_factory=dict)


def block_starts(operators: int, copies: Collection[Sequence[int]]) -> tuple[int, ...]:
    """The first operators of blocks: each copy of a repeated block is one, and so is each stretch before, between and
    behind."""
    starts = {0}
    for one in copies:
        if one:
            starts |= {min(one), max(one) + 1}
    return tuple(sorted(start for start in starts if start < max(operators, 1)))


def _of_weights(parts: StepParts) -> frozenset[int]:
    changing = {move.tensor for move in parts.moves if move.kind == "blocking"} | parts.inputs
    found: set[int] = set()
    for index, operator in enumerate(parts.operators):
        if changing.isdisjoint((*operator.inputs, *operator.outputs)):
            found.add(index)
        else:
            changing |= set(operator.outputs) - {""}
    return frozenset(found)


def _by_bucket(moves: Sequence[Move]) -> Mapping[int, Sequence[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number, move in enumerate(moves):
        if move.bucket is not None:
            found[move.bucket].append(number)
    return found


def _is_free(operator: OperatorDecision) -> bool:
    return not (operator.compute_ns or operator.inner_ns or operator.recomputed_before)


@dataclass
class Moves:
    """Numbers of moves by tensor (for all readers, or as it is stored) and by tensor and reader, in plan order."""

    shared: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    own: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))

    def put(self, number: int, move: Move) -> None:
        (self.own[move.tensor, move.reader] if move.reader else self.shared[move.tensor]).append(number)

    @property
    def tensors(self) -> set[str]:
        """The tensors that move."""
        return {*self.shared, *(tensor for tensor, _ in self.own)}


class StepMoves:
    """The moves of a step by tensor and reader: values moved to their readers, re-gathered in backward, and moves of
    gradients; `updates`: of new weights to where they are kept."""

    def __init__(self, parts: StepParts) -> None:
        self.parts = parts
        self.updates = {move.tensor: number for number, move in enumerate(parts.moves) if move.phase == "update"}
        self.bring, self.regather, self.back = Moves(), Moves(), Moves()
        for number, move in enumerate(parts.moves):
            kind = self.back if move.phase == "backward" else self.bring
            (self.regather if move.regather else kind).put(number, move)
        self.makers = {name: i for i, one in enumerate(parts.operators) for name in filter(None, one.outputs)}
        self.readers: dict[str, list[str]] = defaultdict(list)
        for operator in parts.operators:
            for name in dict.fromkeys(filter(None, operator.inputs)):
                self.readers[name].append(operator.name)
        self.of_weights = _of_weights(parts)
        """Operators that read only weights, or values made from weights by such operators."""
        self.views = frozenset(index for index in self.of_weights if _is_free(parts.operators[index]))
        """Those of them that compute nothing, such as the transpose of a tied embedding: they take no time in the
        program, as their result is available as soon as their operand is."""
        self.order = [index for index in range(len(parts.operators)) if index not in self.views]
        self.block = [bisect_right(parts.blocks, index) - 1 for index in range(len(parts.operators))]
        """By operator, in which block it is."""
        moved = {move.tensor for move in parts.moves}
        self.reads: list[tuple[str, ...]] = []
        """By operator, what it reads that moves, or is a view of a weight that does."""
        for index, operator in enumerate(parts.operators):
            self.reads.append(tuple(name for name in dict.fromkeys(operator.inputs) if name in moved))
            if index in self.views and self.reads[-1]:
                moved |= set(filter(None, operator.outputs))
        self.recomputed: dict[str, list[int]] = defaultdict(list)
        for index, operator in enumerate(parts.operators):
            if operator.recomputed_before:
                self.recomputed[operator.recomputed_before].append(index)
        self.buckets = _by_bucket(parts.moves)
        self.unsent: frozenset[int] = frozenset()
        """Buckets that are not sent."""
        self.made: dict[tuple[int, float], list[Unit]] = {}
        """By move and times, its collectives, made once."""
        self._levels: dict[tuple[int, ...], Levels] = {}

    def having(self, moves: Sequence[Move]) -> StepMoves:
        """The same moves with other times and in other buckets."""
        found = copy.copy(self)
        found.parts, found.buckets = replace(self.parts, moves=moves), _by_bucket(moves)
        found.made = {key: units for key, units in self.made.items() if moves[key[0]] is self.parts.moves[key[0]]}
        return found

    def without(self, buckets: Collection[int]) -> StepMoves:
        """The same step without sending these buckets."""
        found = copy.copy(self)
        moves, found.unsent = self.parts.moves, frozenset(buckets)
        found.updates = {name: number for name, number in self.updates.items() if moves[number].bucket not in buckets}
        return found

    def is_at_hand(self, tensor: str) -> bool:
        """Whether a value is available when a phase begins: no operator makes it, or it is a view of such a value."""
        return tensor not in self.makers or self.makers[tensor] in self.views

    def units(self, number: int, times: float = 1.0) -> list[Unit]:
        """The collectives of a move, repeated `times` times."""
        if (number, times) not in self.made:
            move = self.parts.moves[number]
            self.made[number, times] = [self._unit(move, step, (number,), times) for step in range(len(move.steps))]
        return self.made[number, times]

    def _unit(self, move: Move, step: int, numbers: tuple[int, ...], times: float = 1.0) -> Unit:
        one = move.steps[step]
        nanoseconds = sum([self.parts.moves[number].steps[step].time_ns for number in numbers])
        axes = one.collective.axes
        if axes not in self._levels:
            self._levels[axes] = frozenset(self.parts.links[axis] for axis in axes)
        name = f"{one.collective.kind.replace('_', '-')} {self.parts.stored.get(move.tensor, move.tensor)}"
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        return Unit(name + more, nanoseconds * _SECOND * times, self._levels[axes], numbers, step)

    def bucket(self, number: int) -> list[Unit]:
        numbers = tuple(self.buckets[number])
        move = self.parts.moves[numbers[0]]
        return [self._unit(move, step, numbers) for step in range(len(move.steps))]

    def times(self, number: int, operator: OperatorDecision | None = None) -> float:
        """How often a forward move runs in one forward (1 except for loops, or if its maker also runs in backward)."""
        move = self.parts.moves[number]
        micro = 1 if move.phase == "update" else self.parts.microbatches
        each = move.count / micro
        return each / 2 if operator is not None and self.runs_twice(operator, each) else each

    @staticmethod
    def runs_twice(operator: OperatorDecision, each: float) -> bool:
        return each == 2 and bool(operator.recomputed_before)

    def ahead(self, order: Sequence[int], distance: int | None) -> Mapping[int, Sequence[int]]:
        """For each operator that issues prefetches, the operators whose operands it issues, in the order of need.
        `order`: that of the operators' execution; `distance`: as in `Policy`."""
        block = self.block
        if distance is None:
            return {index: (index,) for index in order}
        found: dict[int, list[int]] = defaultdict(list)
        first: dict[int, int] = {}
        for index in order:
            first.setdefault(block[index], index)
        run = list(first)
        place = {number: at for at, number in enumerate(run)}
        for index in order:
            if self.reads[index] or self.parts.operators[index].name in self.recomputed:
                found[first[run[max(0, place[block[index]] - distance)]]].append(index)
        return found

    def inner(self, operator: OperatorDecision, by_axis_ns: Sequence[int]) -> list[Unit]:
        """The collectives inside an operator in one microbatch."""
        if not by_axis_ns:
            return []
        name, micro = f"inside {operator.name}", self.parts.microbatches
        return [
            Unit(name, nanoseconds * _SECOND / micro, frozenset({self.parts.links[axis]}), ())
            for axis, nanoseconds in enumerate(by_axis_ns)
        ]
