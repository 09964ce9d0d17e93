"""The backward pass of one microbatch as a program: rematerialisation, re-gathered weights, gradient reduction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardplan.plan.step.forward_phase import Prefetch
from shardplan.plan.step.moves import StepMoves
from shardplan.plan.step.phases import Numbers, Phase, PhaseName, PhaseWriter, Policy
from shardplan.plan.types import OperatorDecision


def backward(step: StepMoves, policy: Policy, name: PhaseName, count: int) -> Phase:
    """The backward pass of one microbatch; the `last backward` also moves what moves once a step."""
    return _Backward(step, policy, last=name == "last backward").run().phase(name, count)


class _Backward:
    """Operators in reverse: recomputation right before, re-gathered weights, and moves of gradients."""

    def __init__(self, step: StepMoves, policy: Policy, *, last: bool) -> None:
        self.step, self.policy, self.last = step, policy, last
        self.parts, self.writer = step.parts, PhaseWriter()
        self.missing = {name: len(readers) for name, readers in step.readers.items()}
        self.fetch = Prefetch(step, self.writer, step.regather)
        self.filled: dict[int, int] = defaultdict(int)
        self.full: list[int] = []
        self.unsent: dict[str, list[int]] = defaultdict(list)
        """By tensor, the buckets that its gradient moves in and that have not been sent, in order."""
        self.reduced: dict[str, Numbers] = defaultdict(tuple)
        self.blocked: set[tuple[str, str]] = set()
        self.available = frozenset(step.readers)
        self.put_off: list[int] = []

    def run(self) -> PhaseWriter:
        ahead = self.step.ahead(self.step.order[::-1], self.policy.distance)
        for index in range(len(self.parts.operators) - 1, -1, -1):
            for other in ahead.get(index, ()):
                for recomputed in self.step.recomputed.get(self.parts.operators[other].name, ()):
                    self.fetch.issue(recomputed, self.available, index)
                self.fetch.issue(other, self.available, index)
            self._run_postponed(self.step.block[index] + 1)
            if self._is_postponed(index):
                self.put_off.append(index)
            else:
                self._run_backward(index)
        self._run_postponed(-1)
        for bucket in [*self.full]:  # in files of older releases, buckets may have to wait for one another
            self._send(bucket, -1)
        self.writer.wait(sorted({number for numbers in self.reduced.values() for number in numbers}), "gradients", -1)
        return self.writer

    def _is_postponed(self, index: int) -> bool:
        """Whether only weights depend on an operator while gradients that it needs are in flight: it is then postponed,
        as nothing would overlap their communication. Views compute nothing and wait for nothing."""
        if index not in self.step.of_weights:
            return False
        outputs = list(filter(None, self.parts.operators[index].outputs))
        waiting = {self.parts.operators[other].name for other in self.put_off}
        if any(reader in waiting for tensor in outputs for reader in self.step.readers.get(tensor, ())):
            return True
        return index not in self.step.views and any(self.reduced[tensor] for tensor in outputs)

    def _run_postponed(self, block: int) -> None:
        """The postponed operators of the blocks behind `block`."""
        while self.put_off and self.step.block[self.put_off[0]] > block:
            self._run_backward(self.put_off.pop(0))

    def _run_backward(self, index: int) -> None:
        if index in self.step.views:
            self._view(index)
        else:
            self._operator(index)

    def _operator(self, index: int) -> None:
        operator = self.parts.operators[index]
        for recomputed in self.step.recomputed.get(operator.name, ()):
            self._recompute(recomputed)
        self._wait_for_reads(index)
        for tensor in filter(None, operator.outputs):
            if tensor not in self.step.readers:
                self._gradient(self.step.back.shared.get(tensor, ()), index)
            if tensor in self.reduced:
                self.writer.wait(self.reduced[tensor], tensor, index)
        nanoseconds = operator.backward_ns - operator.recompute_ns
        self.writer.compute(f"backward: {operator.name}", nanoseconds / self.parts.microbatches, index)
        self.writer.block(self.step.inner(operator, operator.inner_backward_ns), index)
        self._of_operands(index)

    def _view(self, index: int) -> None:
        """A view of weights: the moves of its operand's gradient come after those of its result's gradient."""
        operator = self.parts.operators[index]
        made = {number for tensor in filter(None, operator.outputs) for number in self.reduced[tensor]}
        for tensor in self.step.reads[index]:
            self.reduced[tensor] = tuple(sorted({*self.reduced[tensor], *made}))
        self._of_operands(index)

    def _of_operands(self, index: int) -> None:
        """Moves of the gradients that an operator has made."""
        for tensor in self.step.reads[index]:
            self._gradient(self.step.back.own.get((tensor, self.parts.operators[index].name), ()), index)
            self.missing[tensor] -= 1
            if not self.missing[tensor]:
                self._gradient(self.step.back.shared.get(tensor, ()), index)

    def _stored_recomputed(self, tensor: str, operator: OperatorDecision, index: int) -> None:
        """Moves of the results of operators that run twice: the second of their two times."""
        for number in self.step.bring.shared.get(tensor, ()):
            each = self.parts.moves[number].count / self.parts.microbatches
            if tensor in self.step.makers and self.step.runs_twice(operator, each):
                self.writer.block(self.step.units(number), index)

    def _recompute(self, index: int) -> None:
        operator = self.parts.operators[index]
        self._wait_for_reads(index)
        nanoseconds = operator.recompute_ns / self.parts.microbatches
        self.writer.compute(f"recompute: {operator.name}", nanoseconds, index)
        for tensor in filter(None, operator.outputs):
            self._stored_recomputed(tensor, operator, index)

    def _wait_for_reads(self, index: int) -> None:
        """Waits for what an operator's recomputation or its backward reads, whichever comes first."""
        if not self.fetch.reads[index]:
            return
        operator = self.parts.operators[index]
        self.fetch.issue(index, self.available, index)
        self.fetch.wait(index)
        for tensor in self.fetch.reads[index]:
            for key in ((tensor, ""), (tensor, operator.name)):
                if key not in self.blocked:
                    self.blocked.add(key)
                    moves = self.step.regather
                    numbers = moves.own.get(key, ()) if key[1] else moves.shared.get(tensor, ())
                    for number in numbers:
                        if self.parts.moves[number].kind == "blocking":
                            self.writer.block(self.step.units(number, self.step.times(number)), index)

    def _gradient(self, numbers: Sequence[int], index: int) -> None:
        for number in numbers:
            move = self.parts.moves[number]
            once = move.count < self.parts.microbatches
            if (once and not self.last) or move.bucket in self.step.unsent:
                continue
            times = 1.0 if once else move.count / self.parts.microbatches
            if move.kind == "blocking" or not self.policy.deferred:
                self.writer.block(self.step.units(number, times), index)
            elif move.bucket is None:
                self.reduced[move.tensor] = self.writer.issue(
                    self.step.units(number, times), index, self.reduced[move.tensor], deferred=True
                )
            else:
                self._in_bucket(move.tensor, move.bucket, index)

    def _in_bucket(self, tensor: str, bucket: int, index: int) -> None:
        """Sends a bucket when the last of its gradients is complete, and none moves in another bucket before."""
        self.filled[bucket] += 1
        self.unsent[tensor].append(bucket)
        if self.filled[bucket] == len(self.step.buckets[bucket]):
            self.full.append(bucket)
            self._send_full(index)

    def _send_full(self, index: int) -> None:
        """Sends full buckets as long as there is one none of whose gradients has to move in another one before."""
        while True:
            first = {tensor: buckets[0] for tensor, buckets in self.unsent.items() if buckets}
            ready = (full for full in self.full if all(first[tensor] == full for tensor in self._tensors(full)))
            bucket = next(ready, None)
            if bucket is None:
                return
            self._send(bucket, index)

    def _send(self, bucket: int, index: int) -> None:
        tensors = self._tensors(bucket)
        after = tuple(sorted({number for tensor in tensors for number in self.reduced[tensor]}))
        issued = self.writer.issue(self.step.bucket(bucket), index, after, deferred=True)
        self.reduced |= dict.fromkeys(tensors, issued)
        self.full.remove(bucket)
        for tensor in tensors:
            self.unsent[tensor].remove(bucket)

    def _tensors(self, bucket: int) -> list[str]:
        return [self.parts.moves[member].tensor for member in self.step.buckets[bucket]]
