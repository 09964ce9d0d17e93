"""Memory in flight: gathered weights from their issue on, gradients until their reduction has ended, and gathered
weights that stay from forward to backward (`shardplan.plan.step.staying_weights`).

The memory rows of the cost graph (`shardplan.graph.memory`) count a gathered weight while its reader runs, and a
gradient while it is made. This module adds what a schedule holds for longer, moment by moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph
from shardplan.graph.memory import MemoryRows
from shardplan.plan.step.memory_timeline import moved_bytes
from shardplan.plan.step.moves import StepParts
from shardplan.plan.step.phases import Phase
from shardplan.plan.step.schedule import StepSchedule
from shardplan.plan.step.staying_weights import bytes_of, copies
from shardplan.schedule.streams import Simulation


def in_flight_bytes(
    built: CostGraph, parts: StepParts, scheduled: StepSchedule, memory: MemoryRows
) -> NDArray[np.int64]:
    """Bytes in flight at every moment of `memory`, shape (moments,)."""
    change = np.zeros(memory.moments + 1, dtype=np.int64)
    for phase, ran in scheduled.phases_ran():
        backward = phase.name in ("backward", "last backward")
        for number, issued, ended in _flights(phase, ran):
            move = parts.moves[number]
            if move.phase == "update":
                continue  # it arrives where the weight is kept all the time
            size = moved_bytes(built, move, gradient=backward and not move.regather)
            if _crossed(parts.blocks, issued, ended) > 1:
                size = built.model.in_all_copies(move.tensor, size)
            begin, end = _moments(memory, issued, ended, backward=backward, gathered=move.regather)
            if end > begin:
                change[begin] += size
                change[end] -= size
    return change.cumsum()[:-1] + bytes_of(copies(built, parts.moves, memory), memory.moments)


def _moments(memory: MemoryRows, issued: int, ended: int, *, backward: bool, gathered: bool) -> tuple[int, int]:
    """The moments in which a move is in flight and the rows of `memory` do not count it: for a gathered weight from its
    issue until its reader runs; for a gradient from after its maker until the operator during which its reduction ends.
    """
    if not backward:
        return issued, ended
    begin, end = memory.time.backward(issued), memory.time.backward(ended)
    return (begin, end) if gathered else (begin + 1, end + 1)


def _crossed(blocks: Sequence[int], issued: int, ended: int) -> int:
    """The number of block borders that a move in flight crosses: traffic that falls behind compute by more than a block
    falls behind further in a deeper model."""
    return abs(bisect_right(blocks, issued) - bisect_right(blocks, ended))


def _flights(phase: Phase, ran: Simulation) -> Iterator[tuple[int, int, int]]:
    """Moves in flight beyond one operator: (move, first operator, last operator).

    A gathered weight is held from its issue until its reader begins; a reduced gradient from its making until the
    operator that runs when its reduction ends.
    """
    last = len(phase.operators) - 1
    ends = {span.item: span.end for span in ran.spans}
    computed = [(ends[i], phase.operators[i]) for i, item in enumerate(phase.program) if item.action == "compute"]
    times = [end for end, _ in computed]
    issued: dict[int, tuple[int, tuple[int, ...], int]] = {}
    for index, item in enumerate(phase.program):
        if item.action == "issue":
            issued[item.number] = (phase.operators[index], phase.moves[index], index)
    waited = dict(_waits(phase))
    for number, (operator, moves, index) in issued.items():
        until = waited.get(number, -1)
        if until < 0 and computed:
            place = bisect_left(times, ends.get(index, 0.0))
            until = computed[min(place, len(computed) - 1)][1]
        if operator >= 0 and until >= 0 and last >= 0:
            for move in moves:
                yield move, operator, until


def _waits(phase: Phase) -> Iterator[tuple[int, int]]:
    """What is awaited, and at which operator: for postponed operators, the one at whose position they run."""
    farther = min if phase.name in ("backward", "last backward") else max
    now = -1
    for item, operator in zip(phase.program, phase.operators, strict=True):
        if operator >= 0:
            now = operator if now < 0 else farther(now, operator)
        if item.action == "wait":
            yield item.number, now if operator >= 0 else operator
