"""The forward pass of one microbatch as a program, with weights prefetched for their readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from shardplan.plan.step.moves import Moves, StepMoves
from shardplan.plan.step.phases import Numbers, Phase, PhaseName, PhaseWriter, Policy
from shardplan.plan.types import OperatorDecision


def forward(step: StepMoves, policy: Policy, name: PhaseName, count: int) -> Phase:
    """The forward pass of one microbatch; the `first forward` also moves new weights to where they are kept."""
    writer = PhaseWriter()
    fetch = Prefetch(step, writer, step.bring, updates=name == "first forward")
    ahead = step.ahead(step.order, policy.distance)
    available = set(filter(step.is_at_hand, step.readers))
    waiting: dict[str, list[int]] = defaultdict(list)
    """By tensor that is not made yet, whose turn has come but for that."""
    freed: list[int] = []
    for index in step.order:
        operator = step.parts.operators[index]
        turn = {*ahead.get(index, ()), *freed, index} if step.reads[index] or freed else ahead.get(index, ())
        for other in sorted(turn):
            for tensor in fetch.issue(other, available, index):
                waiting[tensor].append(other)
        freed = []
        fetch.wait(index)
        for tensor in step.reads[index]:
            for number in (*fetch.first_blocking(tensor), *step.bring.own.get((tensor, operator.name), ())):
                if step.parts.moves[number].kind == "blocking":
                    writer.block(step.units(number, step.times(number)), index)
        writer.compute(operator.name, _forward_ns(step, operator), index)
        writer.block(step.inner(operator, operator.inner_forward_ns), index)
        for tensor in filter(None, operator.outputs):
            for number in step.bring.shared.get(tensor, ()):
                writer.block(step.units(number, step.times(number, operator)), index)
            available.add(tensor)
            freed += waiting.pop(tensor, ())
    return writer.phase(name, count)


def _forward_ns(step: StepMoves, operator: OperatorDecision) -> float:
    return (operator.compute_ns - operator.backward_ns) / step.parts.microbatches


class Prefetch:
    """Weights gathered for their readers, in forward or again in backward. `known[t]`: numbers of the collectives that
    bring tensor t to all of its readers; `own[t, r]`: of those that bring it to reader r. `reads`: by operator, what it
    reads that moves, or is a view of weights."""

    def __init__(self, step: StepMoves, writer: PhaseWriter, moves: Moves, *, updates: bool = False) -> None:
        """`updates`: new weights are moved to where they are kept first."""
        self.step, self.writer, self.moves = step, writer, moves
        self.updates = step.updates if updates else {}
        self.known: dict[str, Numbers] = {}
        self.own: dict[tuple[str, str], Numbers] = {}
        self.stored: set[str] = set()
        self._shared_blocking: set[str] = set()
        views = (step.parts.operators[index].outputs for index in step.views)
        moving = moves.tensors.union(self.updates, *views)
        self.reads = [tuple([name for name in names if name in moving]) for names in step.reads]

    def issue(self, index: int, available: Collection[str], at: int) -> list[str]:
        """Issues the gathers for operator `index` as far as their sources are available; returns the tensors that are
        not."""
        missing: list[str] = []
        for tensor in self.reads[index]:
            reader = self.step.parts.operators[index].name
            if tensor not in available and index != at:
                missing += [tensor] if self._moves_later(tensor, reader) else []
                continue
            self._issue_reads(tensor, reader, at)
        return missing

    def _issue_reads(self, tensor: str, reader: str, at: int) -> Numbers:
        """Issues the moves of a tensor to a reader, unless that was done already; returns what the reader has to wait
        for."""
        if (tensor, reader) in self.own:
            return self.own[tensor, reader]
        again = self.moves is self.step.regather
        if tensor not in self.stored and (again or self.step.is_at_hand(tensor)):
            self.stored.add(tensor)
            self._update(tensor, at)
            before = self.known.get(tensor, ()) or self._view_sources(tensor, at)
            self.known[tensor] = self._issue(self.moves.shared.get(tensor, ()), before, at)
        numbers = self.moves.own.get((tensor, reader), ())
        self.own[tensor, reader] = self._issue(numbers, self.known.get(tensor, ()), at)
        return self.own[tensor, reader]

    def _update(self, tensor: str, at: int) -> None:
        """Issues the move of a new weight, or of its bucket, unless that was done already."""
        if tensor in self.updates and tensor not in self.known:
            number = self.updates[tensor]
            bucket = self.step.parts.moves[number].bucket
            sent = self.writer.issue(self.step.units(number) if bucket is None else self.step.bucket(bucket), at)
            for other in (number,) if bucket is None else self.step.buckets[bucket]:
                self.known[self.step.parts.moves[other].tensor] = sent

    def _view_sources(self, tensor: str, at: int) -> Numbers:
        """What a view of weights waits for: everything that it reads."""
        maker = self.step.makers.get(tensor, -1)
        if maker not in self.step.views:
            return ()
        viewer = self.step.parts.operators[maker].name
        return tuple(sorted({n for read in self.step.reads[maker] for n in self._issue_reads(read, viewer, at)}))

    def _moves_later(self, tensor: str, reader: str) -> bool:
        numbers = (*self.moves.shared.get(tensor, ()), *self.moves.own.get((tensor, reader), ()))
        return any(self.step.parts.moves[number].kind != "blocking" for number in numbers)

    def _issue(self, numbers: Sequence[int], after: Numbers, at: int) -> Numbers:
        """Issues the moves that are not blocking; returns the number of the last collective, or `after`."""
        for number in numbers:
            move = self.step.parts.moves[number]
            if move.kind != "blocking" and move.phase != "update":
                after = self.writer.issue(self.step.units(number, self.step.times(number)), at, after)
        return after

    def first_blocking(self, tensor: str) -> Sequence[int]:
        """The blocking moves of a tensor for all of its readers, at the first of them."""
        if tensor in self._shared_blocking or tensor in self.step.makers:
            return ()
        self._shared_blocking.add(tensor)
        return self.moves.shared.get(tensor, ())

    def wait(self, index: int) -> None:
        """Waits for what an operator reads."""
        for tensor in self.reads[index]:
            reader = self.step.parts.operators[index].name
            numbers = self.own.get((tensor, reader), self.known.get(tensor, ()))
            self.writer.wait(numbers, tensor, index)
