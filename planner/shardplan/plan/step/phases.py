"""The phases of a step as programs of one device: what is computed, sent, issued and awaited, in order.

Moves are of three kinds (`shardplan.plan.types.Move.kind`). Blocking moves (activations and their gradients) run where
their value is made or read, and nothing is computed meanwhile. Prefetched moves (weights gathered for use) are issued
`Policy.distance` blocks before the first reader's block, or earlier, and awaited by that reader. Deferred moves
(gradients reduced to where they are kept) are issued when their bucket is full and awaited at the end of the phase, by
the optimizer. What moves once per step moves in the last microbatch's backward. Operators that read only weights delay
nothing but their readers: views take no time, and others are postponed in backward while they would wait.

With M microbatches a step is: M forwards, M - 1 backwards, the last backward, the update. `forward_phase` and
`backward_phase` write the programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from shardplan.schedule.links import Levels
from shardplan.schedule.streams import Item

PhaseName = Literal["first forward", "forward", "backward", "last backward", "update"]
_SECOND = 1e-9
Numbers: TypeAlias = tuple[int, ...]
"""Numbers of collectives of a phase; a tensor has arrived when all of them have ended."""
AT_ITS_READER: int | None = None
"""As `Policy.distance`: a weight is gathered right before it is read."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How early weights are gathered: `distance` blocks before the block that reads them, `None`: right before they are
    read, without overlap. `deferred`: gradients are reduced beside backward; otherwise where they are made.
    `just_in_time`: a gather that this distance does not overlap begins earlier (`shardplan.plan.step.just_in_time`)."""

    distance: int | None = 1
    deferred: bool = True
    just_in_time: bool = False

    @property
    def holds_back(self) -> bool:
        """Whether less is overlapped than possible, so that less memory is in flight."""
        return self.distance is None or self.distance < 1 or not self.deferred


EAGER = Policy()
HOLDING_LESS = (Policy(0), Policy(AT_ITS_READER), Policy(AT_ITS_READER, deferred=False))
"""From the fastest to the one that needs the least memory, for plans that are too large with `EAGER`."""


@dataclass(frozen=True, slots=True)
class Phase:
    """`count`: how often a step runs it. `program`: items of `shardplan.schedule.streams`; `moves[i]`: numbers of the
    moves that item i belongs to, `steps[i]`: the place of its collective in these; `operators[i]`: number of the
    operator that item i belongs to, or -1."""

    name: PhaseName
    count: int
    program: tuple[Item, ...]
    moves: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    operators: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """One collective of a move or of a bucket, once: `moves` are those that it carries, `step` its place in each."""

    name: str
    seconds: float
    levels: Levels
    moves: tuple[int, ...]
    step: int = 0


class PhaseWriter:
    """Collects the items of one phase."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.moves: list[tuple[int, ...]] = []
        self.steps: list[int] = []
        self.operators: list[int] = []
        self.waited: set[int] = set()
        self._issued = 0

    def add(self, item: Item, operator: int, moves: tuple[int, ...] = (), step: int = 0) -> None:
        self.items.append(item)
        self.moves.append(moves)
        self.steps.append(step)
        self.operators.append(operator)

    def compute(self, name: str, nanoseconds: float, operator: int) -> None:
        if nanoseconds > 0:
            self.add(Item("compute", name, nanoseconds * _SECOND), operator)

    def block(self, units: Sequence[Unit], operator: int) -> None:
        for unit in units:
            if unit.seconds > 0.0:
                self.add(Item("blocking", unit.name, unit.seconds, unit.levels), operator, unit.moves, unit.step)

    def issue(self, units: Sequence[Unit], operator: int, after: Numbers = (), *, deferred: bool = False) -> Numbers:
        """Issues collectives one after the other; returns the number of the last one, or `after`."""
        for unit in units:
            if unit.seconds > 0.0:
                item = Item("issue", unit.name, unit.seconds, unit.levels, self._issued, after, deferred)
                self.add(item, operator, unit.moves, unit.step)
                after = (self._issued,)
                self._issued += 1
        return after

    def wait(self, numbers: Sequence[int], name: str, operator: int) -> None:
        for number in numbers:
            if number not in self.waited:
                self.waited.add(number)
                self.add(Item("wait", name, number=number), operator)

    def phase(self, name: PhaseName, count: int) -> Phase:
        return Phase(name, count, tuple(self.items), tuple(self.moves), tuple(self.steps), tuple(self.operators))
