"""The phases of a step as programs of one device: what is computed, sent, issued and awaited, in order.

Moves are of three kinds (`shardplan.plan.types.Move.kind`). Blocking ones (activations and their gradients) run where
their value is made or read, and nothing is computed meanwhile. Prefetched ones (weights gathered for use) are issued
`Policy.distance` blocks before the first reader's block begins and awaited by that reader. Deferred ones (gradients on
their way to where they are kept) are issued when their bucket is full and awaited at the end of the phase, that is by
the optimizer. What moves once a step moves in the last microbatch's backward.

With M microbatches a step is: M forwards, M - 1 backwards, the last backward, the update.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardplan.plan.types import Move, OperatorDecision
from shardplan.schedule.streams import Item, Levels

PhaseName = Literal["first forward", "forward", "backward", "last backward", "update"]
_SECOND = 1e-9
AT_ITS_READER: int | None = None
"""As `Policy.distance`: a weight is gathered right before it is read."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How early weights are gathered: `distance` blocks before the block that reads them, `None`: right before they are
    read, and nothing runs beside that. `deferred`: gradients are reduced beside backward; else where they are made."""

    distance: int | None = 1
    deferred: bool = True


EAGER = Policy()
POLICIES = (EAGER, Policy(0), Policy(AT_ITS_READER), Policy(AT_ITS_READER, deferred=False))
"""From the fastest to the one that holds least."""


@dataclass(frozen=True, slots=True)
class Phase:
    """`count`: how often a step has it. `program`: items of `shardplan.schedule.streams`; `moves[i]`: numbers of the
    moves of which item i carries out a part; `operators[i]`: number of the operator that item i belongs to, or -1."""

    name: PhaseName
    count: int
    program: tuple[Item, ...]
    moves: tuple[tuple[int, ...], ...]
    operators: tuple[int, ...]


@dataclass(frozen=True)
class StepParts:
    """What a step consists of. `links[axis]`: level of a mesh axis; `optimizer_ns`: of the update; `blocks`: first
    operators of the blocks in which weights are prefetched, ascending."""

    operators: Sequence[OperatorDecision]
    moves: Sequence[Move]
    links: Sequence[str]
    training: bool
    microbatches: int
    optimizer_ns: int
    blocks: Sequence[int]


def block_starts(operators: int, copies: Collection[Sequence[int]]) -> tuple[int, ...]:
    """Where blocks begin: each copy of a repeated block is one, and what lies before, between and behind."""
    starts = {0}
    for copy in copies:
        if copy:
            starts |= {min(copy), max(copy) + 1}
    return tuple(sorted(start for start in starts if start < max(operators, 1)))


def phases_of(parts: StepParts, policy: Policy = EAGER) -> tuple[Phase, ...]:
    """The phases of a step in the order in which they first run."""
    made = _Step(parts, policy)
    micro = parts.microbatches
    phases: list[Phase] = []
    if any(move.phase == "update" for move in parts.moves):
        phases.append(made.forward("first forward", 1))
        micro -= 1
    if micro:
        phases.append(made.forward("forward", micro))
    if parts.training:
        if parts.microbatches > 1:
            phases.append(made.backward("backward", parts.microbatches - 1))
        phases.append(made.backward("last backward", 1))
        phases.append(made.update())
    return tuple(phases)


@dataclass(frozen=True, slots=True)
class _Unit:
    """One collective of a move or of a bucket, once: `moves` it belongs to."""

    name: str
    seconds: float
    levels: Levels
    moves: tuple[int, ...]


@dataclass
class _Moves:
    """Numbers of moves by tensor (for all readers, or as it is stored) and by tensor and reader, in plan order."""

    shared: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    own: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))

    def put(self, number: int, move: Move) -> None:
        (self.own[move.tensor, move.reader] if move.reader else self.shared[move.tensor]).append(number)


class _Writer:
    """Collects the items of one phase."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.moves: list[tuple[int, ...]] = []
        self.operators: list[int] = []
        self.waited: set[int] = set()
        self._issued = 0

    def add(self, item: Item, operator: int, moves: tuple[int, ...] = ()) -> None:
        self.items.append(item)
        self.moves.append(moves)
        self.operators.append(operator)

    def compute(self, name: str, nanoseconds: int, operator: int) -> None:
        if nanoseconds > 0:
            self.add(Item("compute", name, nanoseconds * _SECOND), operator)

    def block(self, units: Sequence[_Unit], operator: int) -> None:
        for unit in units:
            if unit.seconds > 0.0:
                self.add(Item("blocking", unit.name, unit.seconds, unit.levels), operator, unit.moves)

    def issue(self, units: Sequence[_Unit], operator: int, after: int = -1, *, deferred: bool = False) -> int:
        """Issue collectives one after the other; the number of the last one, or `after`."""
        for unit in units:
            if unit.seconds > 0.0:
                item = Item("issue", unit.name, unit.seconds, unit.levels, self._issued, after, deferred)
                self.add(item, operator, unit.moves)
                after = self._issued
                self._issued += 1
        return after

    def wait(self, number: int, name: str, operator: int) -> None:
        if number >= 0 and number not in self.waited:
            self.waited.add(number)
            self.add(Item("wait", name, number=number), operator)

    def phase(self, name: PhaseName, count: int) -> Phase:
        return Phase(name, count, tuple(self.items), tuple(self.moves), tuple(self.operators))


class _Step:
    """Writes the phases of a step."""

    def __init__(self, parts: StepParts, policy: Policy) -> None:
        self.parts, self.policy = parts, policy
        self.bring, self.regather, self.back = _Moves(), _Moves(), _Moves()
        for number, move in enumerate(parts.moves):
            kind = self.back if move.phase == "backward" else self.bring
            (self.regather if move.regather else kind).put(number, move)
        self.makers = {name: i for i, one in enumerate(parts.operators) for name in filter(None, one.outputs)}
        self.readers: dict[str, list[str]] = defaultdict(list)
        for operator in parts.operators:
            for name in dict.fromkeys(filter(None, operator.inputs)):
                self.readers[name].append(operator.name)
        self.recomputed: dict[str, list[int]] = defaultdict(list)
        for index, operator in enumerate(parts.operators):
            if operator.again:
                self.recomputed[operator.again].append(index)
        self.buckets: dict[int, list[int]] = defaultdict(list)
        for number, move in enumerate(parts.moves):
            if move.bucket is not None:
                self.buckets[move.bucket].append(number)

    # units ------------------------------------------------------------------------------------------------------

    def units(self, number: int) -> list[_Unit]:
        """The collectives of a move, once."""
        move = self.parts.moves[number]
        return [self._unit(move, step, (number,)) for step in range(len(move.steps))]

    def _unit(self, move: Move, step: int, numbers: tuple[int, ...]) -> _Unit:
        one = move.steps[step]
        nanoseconds = sum(self.parts.moves[number].steps[step].time_ns for number in numbers)
        levels = frozenset(self.parts.links[axis] for axis in one.collective.axes)
        name = f"{one.collective.kind.replace('_', '-')} {move.tensor}"
        more = len(numbers) - 1
        return _Unit(name + (f" and {more} more" if more else ""), nanoseconds * _SECOND, levels, numbers)

    def bucket(self, number: int) -> list[_Unit]:
        numbers = tuple(self.buckets[number])
        move = self.parts.moves[numbers[0]]
        return [self._unit(move, step, numbers) for step in range(len(move.steps))]

    def times(self, number: int, operator: OperatorDecision | None = None) -> float:
        """How often a forward move runs in one forward (1 but for loops, or where its maker also runs in backward)."""
        move = self.parts.moves[number]
        micro = 1 if move.phase == "update" else self.parts.microbatches
        each = move.count / micro
        return each / 2 if operator is not None and self.runs_twice(operator, each) else each

    @staticmethod
    def runs_twice(operator: OperatorDecision, each: float) -> bool:
        forward_ns = operator.compute_ns - operator.backward_ns
        return each == 2 and (bool(operator.again) or operator.backward_ns >= forward_ns > 0)

    def scaled(self, number: int, times: float) -> list[_Unit]:
        if times == 1:
            return self.units(number)
        return [_Unit(u.name, u.seconds * times, u.levels, u.moves) for u in self.units(number)]

    # forward ----------------------------------------------------------------------------------------------------

    def forward(self, name: PhaseName, count: int) -> Phase:
        """The forward pass of one microbatch; the `first forward` brings new weights to where they are kept."""
        writer = _Writer()
        updated = self._updates(writer) if name == "first forward" else {}
        fetch = _Fetch(self, writer, self.bring, updated)
        order = range(len(self.parts.operators))
        ahead = self.ahead(order)
        available = {tensor for tensor in self.readers if tensor not in self.makers}
        pending: list[int] = []
        for index in order:
            operator = self.parts.operators[index]
            pending += ahead.get(index, ())
            pending = [other for other in pending if not fetch.issue(other, available, index)]
            fetch.wait(index)
            for tensor in dict.fromkeys(filter(None, operator.inputs)):
                for number in (*fetch.first_blocking(tensor), *self.bring.own.get((tensor, operator.name), ())):
                    if self.parts.moves[number].kind == "blocking":
                        writer.block(self.scaled(number, self.times(number)), index)
            writer.compute(operator.name, self._forward_ns(operator), index)
            writer.block(self.inner(operator, operator.inner_forward_ns), index)
            for tensor in filter(None, operator.outputs):
                for number in self.bring.shared.get(tensor, ()):
                    writer.block(self.scaled(number, self.times(number, operator)), index)
                available.add(tensor)
        return writer.phase(name, count)

    def _updates(self, writer: _Writer) -> dict[str, int]:
        """New weights, in the order in which they are read, on their way to where they are kept."""
        updates = {move.tensor: n for n, move in enumerate(self.parts.moves) if move.phase == "update"}
        issued: dict[str, int] = {}
        sent: dict[int, int] = {}
        for operator in self.parts.operators:
            for tensor in operator.inputs:
                if tensor in updates and tensor not in issued:
                    bucket = self.parts.moves[updates[tensor]].bucket
                    if bucket is None:
                        issued[tensor] = writer.issue(self.units(updates[tensor]), -1)
                        continue
                    if bucket not in sent:
                        sent[bucket] = writer.issue(self.bucket(bucket), -1)
                    issued[tensor] = sent[bucket]
        return issued

    def ahead(self, order: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """For operators at which something is to be issued: whose operands, in the order of need."""
        distance, starts = self.policy.distance, self.parts.blocks
        if distance is None:
            return {index: (index,) for index in order}
        found: dict[int, list[int]] = defaultdict(list)
        block = [bisect_right(starts, index) - 1 for index in range(len(self.parts.operators))]
        first: dict[int, int] = {}
        for index in order:
            first.setdefault(block[index], index)
        run = list(first)
        place = {number: at for at, number in enumerate(run)}
        for index in order:
            found[first[run[max(0, place[block[index]] - distance)]]].append(index)
        return found

    def _forward_ns(self, operator: OperatorDecision) -> int:
        return round((operator.compute_ns - operator.backward_ns) / self.parts.microbatches)

    def inner(self, operator: OperatorDecision, by_axis_ns: Sequence[int]) -> list[_Unit]:
        """The collectives inside an operator in one microbatch."""
        name, micro = f"inside {operator.name}", self.parts.microbatches
        return [
            _Unit(name, nanoseconds * _SECOND / micro, frozenset({self.parts.links[axis]}), ())
            for axis, nanoseconds in enumerate(by_axis_ns)
        ]

    # backward ---------------------------------------------------------------------------------------------------

    def backward(self, name: PhaseName, count: int) -> Phase:
        """The backward pass of one microbatch; the `last backward` also moves what moves once a step."""
        return _Backward(self, last=name == "last backward").run().phase(name, count)

    def update(self) -> Phase:
        """The optimizer."""
        writer = _Writer()
        writer.compute("optimizer step", self.parts.optimizer_ns, -1)
        return writer.phase("update", 1)


class _Fetch:
    """Weights gathered for their readers, in forward or again in backward. `known[t]`: number of what brings tensor t
    to all of its readers; `own[t, r]`: of what brings it to reader r."""

    def __init__(self, step: _Step, writer: _Writer, moves: _Moves, known: Mapping[str, int]) -> None:
        self.step, self.writer, self.moves = step, writer, moves
        self.known: dict[str, int] = dict(known)
        self.own: dict[tuple[str, str], int] = {}
        self.stored: set[str] = set()
        self._shared_blocking: set[str] = set()

    def issue(self, index: int, available: Collection[str], at: int) -> bool:
        """Issue what operator `index` reads, as far as it is there; whether that was all."""
        operator, done = self.step.parts.operators[index], True
        again = self.moves is self.step.regather
        for tensor in dict.fromkeys(filter(None, operator.inputs)):
            if tensor not in available and index != at:
                done = done and not self._moves_later(tensor, operator.name)
                continue
            if tensor not in self.stored and (again or tensor not in self.step.makers):
                self.stored.add(tensor)
                self.known[tensor] = self._issue(self.moves.shared.get(tensor, ()), tensor, at)
            if (tensor, operator.name) not in self.own:
                own = self.moves.own.get((tensor, operator.name), ())
                self.own[tensor, operator.name] = self._issue(own, tensor, at)
        return done

    def _moves_later(self, tensor: str, reader: str) -> bool:
        numbers = (*self.moves.shared.get(tensor, ()), *self.moves.own.get((tensor, reader), ()))
        return any(self.step.parts.moves[number].kind != "blocking" for number in numbers)

    def _issue(self, numbers: Sequence[int], tensor: str, at: int) -> int:
        """Issue the moves that are not waited for where they stand; the number of the last collective."""
        after = self.known.get(tensor, -1)
        for number in numbers:
            move = self.step.parts.moves[number]
            if move.kind != "blocking" and move.phase != "update":
                after = self.writer.issue(self.step.scaled(number, self.step.times(number)), at, after)
        return after

    def first_blocking(self, tensor: str) -> Sequence[int]:
        """The blocking moves of a tensor for all of its readers, when the first of them comes."""
        if tensor in self._shared_blocking or tensor in self.step.makers:
            return ()
        self._shared_blocking.add(tensor)
        return self.moves.shared.get(tensor, ())

    def wait(self, index: int) -> None:
        """Wait for what an operator reads."""
        operator = self.step.parts.operators[index]
        for tensor in dict.fromkeys(filter(None, operator.inputs)):
            number = self.own.get((tensor, operator.name), self.known.get(tensor, -1))
            self.writer.wait(number, tensor, index)


class _Backward:
    """Operators in reverse: what is recomputed right before, weights gathered again, gradients on their way back."""

    def __init__(self, step: _Step, *, last: bool) -> None:
        self.step, self.last = step, last
        self.parts, self.writer = step.parts, _Writer()
        self.missing = {name: len(readers) for name, readers in step.readers.items()}
        self.fetch = _Fetch(step, self.writer, step.regather, {})
        self.filled: dict[int, int] = defaultdict(int)
        self.reduced: dict[str, int] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.available = frozenset(step.readers)

    def run(self) -> _Writer:
        order = range(len(self.parts.operators) - 1, -1, -1)
        ahead = self.step.ahead(order)
        for index in order:
            for other in ahead.get(index, ()):
                for twice in self.step.recomputed.get(self.parts.operators[other].name, ()):
                    self.fetch.issue(twice, self.available, index)
                self.fetch.issue(other, self.available, index)
            self._operator(index)
        for number in sorted(set(self.reduced.values())):
            self.writer.wait(number, "gradients", -1)
        return self.writer

    def _operator(self, index: int) -> None:
        operator = self.parts.operators[index]
        for twice in self.step.recomputed.get(operator.name, ()):
            self._recompute(twice)
        self._brought_again(index)
        for tensor in filter(None, operator.outputs):
            if tensor not in self.step.readers:
                self._gradient(self.step.back.shared.get(tensor, ()), index)
            if tensor in self.reduced:
                self.writer.wait(self.reduced[tensor], tensor, index)
        nanoseconds = operator.backward_ns - operator.again_ns
        self.writer.compute(f"backward: {operator.name}", round(nanoseconds / self.parts.microbatches), index)
        self.writer.block(self.step.inner(operator, operator.inner_backward_ns), index)
        for tensor in dict.fromkeys(filter(None, operator.inputs)):
            self._gradient(self.step.back.own.get((tensor, operator.name), ()), index)
            self.missing[tensor] -= 1
            if not self.missing[tensor]:
                self._gradient(self.step.back.shared.get(tensor, ()), index)
        if not self._chosen(operator):
            for tensor in filter(None, operator.outputs):
                self._stored_again(tensor, operator, index)

    @staticmethod
    def _chosen(operator: OperatorDecision) -> bool:
        return bool(operator.again)

    def _stored_again(self, tensor: str, operator: OperatorDecision, index: int) -> None:
        """Moves of results of operators that run twice: once of their two times is here."""
        for number in self.step.bring.shared.get(tensor, ()):
            each = self.parts.moves[number].count / self.parts.microbatches
            if tensor in self.step.makers and self.step.runs_twice(operator, each):
                self.writer.block(self.step.units(number), index)

    def _recompute(self, index: int) -> None:
        operator = self.parts.operators[index]
        self._brought_again(index)
        nanoseconds = round(operator.again_ns / self.parts.microbatches)
        self.writer.compute(f"recompute: {operator.name}", nanoseconds, index)
        for tensor in filter(None, operator.outputs):
            self._stored_again(tensor, operator, index)

    def _brought_again(self, index: int) -> None:
        """What an operator's second run or its backward waits for, whichever reads its operands first."""
        operator = self.parts.operators[index]
        self.fetch.issue(index, self.available, index)
        self.fetch.wait(index)
        for tensor in dict.fromkeys(filter(None, operator.inputs)):
            for key in ((tensor, ""), (tensor, operator.name)):
                if key not in self.blocked:
                    self.blocked.add(key)
                    moves = self.step.regather
                    numbers = moves.own.get(key, ()) if key[1] else moves.shared.get(tensor, ())
                    for number in numbers:
                        if self.parts.moves[number].kind == "blocking":
                            self.writer.block(self.step.scaled(number, self.step.times(number)), index)

    def _gradient(self, numbers: Sequence[int], index: int) -> None:
        for number in numbers:
            move = self.parts.moves[number]
            once = move.count < self.parts.microbatches
            if once and not self.last:
                continue
            times = 1.0 if once else move.count / self.parts.microbatches
            if move.kind == "blocking" or not self.step.policy.deferred:
                self.writer.block(self.step.scaled(number, times), index)
            elif move.bucket is None:
                after = self.reduced.get(move.tensor, -1)
                self.reduced[move.tensor] = self.writer.issue(
                    self.step.scaled(number, times), index, after, deferred=True
                )
            else:
                self._in_bucket(move.bucket, index)

    def _in_bucket(self, bucket: int, index: int) -> None:
        """A bucket is sent when the last of its gradients is there."""
        self.filled[bucket] += 1
        members = self.step.buckets[bucket]
        if self.filled[bucket] == len(members):
            issued = self.writer.issue(self.step.bucket(bucket), index, deferred=True)
            for member in members:
                self.reduced[self.parts.moves[member].tensor] = issued
