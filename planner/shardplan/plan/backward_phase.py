"""The backward pass of one microbatch as a program: rematerialisation, weights gathered again, gradients reduced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardplan.plan.forward_phase import Prefetch
from shardplan.plan.phases import Phase, PhaseName, PhaseWriter
from shardplan.plan.step_moves import StepMoves
from shardplan.plan.types import OperatorDecision


def backward(step: StepMoves, name: PhaseName, count: int) -> Phase:
    """The backward pass of one microbatch; the `last backward` also moves what moves once a step."""
    return _Backward(step, last=name == "last backward").run().phase(name, count)


class _Backward:
    """Operators in reverse: recomputation right before, re-gathered weights, and moves of gradients."""

    def __init__(self, step: StepMoves, *, last: bool) -> None:
        self.step, self.last = step, last
        self.parts, self.writer = step.parts, PhaseWriter()
        self.missing = {name: len(readers) for name, readers in step.readers.items()}
        self.fetch = Prefetch(step, self.writer, step.regather, {})
        self.filled: dict[int, int] = defaultdict(int)
        self.reduced: dict[str, int] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.available = frozenset(step.readers)

    def run(self) -> PhaseWriter:
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
        self.writer.compute(f"backward: {operator.name}", nanoseconds / self.parts.microbatches, index)
        self.writer.block(self.step.inner(operator, operator.inner_backward_ns), index)
        for tensor in self.step.reads[index]:
            self._gradient(self.step.back.own.get((tensor, operator.name), ()), index)
            self.missing[tensor] -= 1
            if not self.missing[tensor]:
                self._gradient(self.step.back.shared.get(tensor, ()), index)

    def _stored_again(self, tensor: str, operator: OperatorDecision, index: int) -> None:
        """Moves of results of operators that run twice: once of their two times is here."""
        for number in self.step.bring.shared.get(tensor, ()):
            each = self.parts.moves[number].count / self.parts.microbatches
            if tensor in self.step.makers and self.step.runs_twice(operator, each):
                self.writer.block(self.step.units(number), index)

    def _recompute(self, index: int) -> None:
        operator = self.parts.operators[index]
        self._brought_again(index)
        nanoseconds = operator.again_ns / self.parts.microbatches
        self.writer.compute(f"recompute: {operator.name}", nanoseconds, index)
        for tensor in filter(None, operator.outputs):
            self._stored_again(tensor, operator, index)

    def _brought_again(self, index: int) -> None:
        """What an operator's second run or its backward waits for, whichever reads its operands first."""
        operator = self.parts.operators[index]
        self.fetch.issue(index, self.available, index)
        self.fetch.wait(index)
        for tensor in self.step.reads[index]:
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
