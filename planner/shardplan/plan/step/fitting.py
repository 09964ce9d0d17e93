"""The shortest schedule of an assignment that fits in memory.

Weights stay gathered and are gathered early, and gradients are reduced late, as far as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import MemoryRows
from shardplan.plan.step.bucketing import BucketPrices, in_buckets
from shardplan.plan.step.emit import Emitter
from shardplan.plan.step.in_flight_memory import in_flight_bytes
from shardplan.plan.step.memory_timeline import TEMPORARIES, bytes_by_moment, peak_of
from shardplan.plan.step.moves import StepMoves, StepParts, block_starts
from shardplan.plan.step.phases import EAGER, HOLDING_LESS, Policy
from shardplan.plan.step.schedule import StepSchedule, in_time, schedule_moves, serial_schedule
from shardplan.plan.step.staying_weights import Copy, copies, to_regather
from shardplan.plan.types import Memory, Move, OperatorDecision

WORTH_HOLDING = 1e-3
"""Share of the step that gathering weights just in time has to save, as communication in flight takes memory."""
TRIES = 3
"""Sets of weights to re-gather that are tried before all are: what is in flight depends on the schedule."""
STAY: frozenset[str] = frozenset()
"""No weight is re-gathered that could stay."""


@dataclass(frozen=True)
class Fitted:
    """A schedule, with the bytes at its peak. `regathered`: weights for which memory is too short to stay. `is_rough`:
    it is the first one found, not the shortest."""

    scheduled: StepSchedule
    memory: Memory
    regathered: frozenset[str] = STAY
    is_rough: bool = False

    def keeps(self, limit_bytes: int) -> bool:
        return self.memory.total <= limit_bytes


@dataclass(frozen=True)
class Lowered:
    """An assignment and its decisions on operators, from which its moves follow. `rows`: what it holds and when."""

    built: CostGraph
    choice: Mapping[Node, int]
    operators: tuple[OperatorDecision, ...]
    optimizer_ns: int
    rows: MemoryRows

    def parts(self, regathered: frozenset[str] = STAY) -> StepParts:
        """The parts of the step if the weights `regathered` do not stay for backward."""
        if regathered == STAY:
            return self._all_staying
        return self._emitted(regathered)

    @cached_property
    def _all_staying(self) -> StepParts:
        return self._emitted(STAY)

    def _emitted(self, regathered: frozenset[str]) -> StepParts:
        moves = Emitter(self.built, self.choice, regathered).moves()
        return step_parts(self.built, self.operators, moves, self.optimizer_ns)

    def step(self, regathered: frozenset[str] = STAY, *, full: bool = False) -> StepMoves:
        """The moves of the step in their buckets, in full ones if asked."""
        built = self.built
        levels = [level.name for level in built.cluster.levels]
        prices = BucketPrices(built.cluster.mesh, built.prices.seconds, built.prices.bucket_bytes, levels, full)
        return in_buckets(StepMoves(self.parts(regathered)), prices, lambda name: built.model.tensor(name).dtype)

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """Bytes by category and moment, without what is in flight."""
        return bytes_by_moment(self.rows, self.choice)

    def fitted(self, limit_bytes: int, below_s: float = math.inf) -> Fitted:
        """The shortest schedule that fits, or the one that needs the least memory; it is not optimised if it cannot
        take less than `below_s` seconds."""
        step = self.step()
        if not self.built.options.cost_model.is_ours:
            return Fitted(serial_schedule(step.parts), peak_of(self.held))
        found = self.under(EAGER, step)
        is_hopeless = found.scheduled.seconds - found.scheduled.waited_s >= below_s
        if found.keeps(limit_bytes) or is_hopeless:
            return self.in_time(found, step, limit_bytes, below_s)
        staying = copies(self.built, step.parts.moves, self.rows)
        if not staying:
            return self._holding_less(step, limit_bytes, STAY)
        some = list(self._some_staying(staying, found, limit_bytes)) if found.scheduled.seconds < below_s else []
        if some and not self._waits(some[-1]):
            return some[-1]
        everything = frozenset(copy.tensor for copy in staying)
        step = self.step(everything)
        least = self.under(EAGER, step, everything)
        if not least.keeps(limit_bytes):
            return self._holding_less(step, limit_bytes, everything)
        best = self.in_time(least, step, limit_bytes, below_s)
        return min((best, *some), key=lambda one: one.scheduled.seconds)

    def first_fit(self, limit_bytes: int) -> Fitted:
        """A rough schedule that fits if there is one, after few tries: if not all gathered weights may stay, none
        does."""
        return replace(self._first_fit(limit_bytes), is_rough=True)

    def _first_fit(self, limit_bytes: int) -> Fitted:
        step = self.step()
        if not self.built.options.cost_model.is_ours:
            return Fitted(serial_schedule(step.parts), peak_of(self.held))
        found = self.under(EAGER, step)
        if found.keeps(limit_bytes):
            return found
        everything = frozenset(copy.tensor for copy in copies(self.built, step.parts.moves, self.rows))
        if not everything:
            return self._holding_less(step, limit_bytes, STAY)
        return self._eager_or_less(self.step(everything), limit_bytes, everything)

    def in_full_buckets(self, than: Fitted, limit_bytes: int) -> Fitted:
        """The same with full buckets, if that is shorter."""
        step = self.step(than.regathered, full=True)
        found = self.in_time(self._eager_or_less(step, limit_bytes, than.regathered), step, limit_bytes)
        is_better = found.scheduled.seconds < than.scheduled.seconds
        return found if is_better and found.keeps(max(limit_bytes, than.memory.total)) else than

    def under(self, policy: Policy, step: StepMoves, regathered: frozenset[str] = STAY) -> Fitted:
        """The schedule under a policy."""
        return self._fitted(schedule_moves(step, policy, self._kappa), regathered)

    def in_time(self, found: Fitted, step: StepMoves, limit_bytes: int, below_s: float = math.inf) -> Fitted:
        """The same with weights gathered just in time, if that is shorter and fits. It saves at most the time that the
        step waits for them."""
        seconds = found.scheduled.seconds
        worth_s = max(WORTH_HOLDING * seconds, seconds - below_s)
        is_eager, allowed = found.scheduled.policy == EAGER, self.built.options.gathers_in_time
        if not (is_eager and allowed and found.keeps(limit_bytes) and found.scheduled.waited_s > worth_s):
            return found
        other = self._fitted(in_time(step, found.scheduled, self._kappa), found.regathered)
        is_shorter = other.scheduled.seconds <= seconds * (1.0 - WORTH_HOLDING)
        return other if is_shorter and other.keeps(limit_bytes) else found

    def _some_staying(self, staying: Sequence[Copy], whole: Fitted, limit_bytes: int) -> Iterator[Fitted]:
        """Schedules that fit in which some weights stay: as many as leave room for what is in flight, then, if the step
        waits, as many as leave room for gathering the others just in time. `whole`: the schedule in which all stay."""
        most = self.held.sum(axis=0) + in_flight_bytes(self.built, whole.scheduled.parts, whole.scheduled, self.rows)
        room = limit_bytes
        for _ in range(TRIES):
            regathered = to_regather(staying, most, room)
            step = self.step(regathered)
            found = self.under(EAGER, step, regathered)
            if found.keeps(limit_bytes):
                yield found
                if not self._waits(found):
                    return
                found = self._fitted(in_time(step, found.scheduled, self._kappa), regathered)
                if found.keeps(limit_bytes):
                    yield found
                    return
            room -= found.memory.total - limit_bytes

    @staticmethod
    def _waits(found: Fitted) -> bool:
        """Whether a step waits so long that gathering weights just in time may be worth its memory."""
        return found.scheduled.waited_s > WORTH_HOLDING * found.scheduled.seconds

    def _eager_or_less(self, step: StepMoves, limit_bytes: int, regathered: frozenset[str]) -> Fitted:
        """The schedule that gathers and reduces at the fastest times, or one that holds less if that does not fit."""
        found = self.under(EAGER, step, regathered)
        return found if found.keeps(limit_bytes) else self._holding_less(step, limit_bytes, regathered)

    def _holding_less(self, step: StepMoves, limit_bytes: int, regathered: frozenset[str]) -> Fitted:
        """The first policy that fits, or the last one."""
        for policy in HOLDING_LESS:
            found = self.under(policy, step, regathered)
            if found.keeps(limit_bytes):
                break
        return found

    def _fitted(self, scheduled: StepSchedule, regathered: frozenset[str]) -> Fitted:
        held = self.held.copy()
        held[TEMPORARIES] += in_flight_bytes(self.built, scheduled.parts, scheduled, self.rows)
        return Fitted(scheduled, peak_of(held), regathered)

    @property
    def _kappa(self) -> float:
        return self.built.cluster.overlap.kappa


def step_parts(
    built: CostGraph, operators: Sequence[OperatorDecision], moves: Sequence[Move], optimizer_ns: int
) -> StepParts:
    """The parts of an assignment's step, for its schedule."""
    copies = [copy for block in built.model.blocks for copy in block.copies]
    return StepParts(
        operators,
        moves,
        tuple(built.cluster.levels[level].name for level in built.cluster.axis_levels),
        built.options.training,
        built.options.microbatches,
        optimizer_ns,
        block_starts(len(operators), copies),
        built.links,
        frozenset(name for name, tensor in built.model.tensors.items() if tensor.role == "input"),
    )
