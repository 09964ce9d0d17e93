"""Weights gathered just in time: a phase whose prefetches are issued early enough that no reader waits for them, and no
earlier, as far as its links allow.

A phase is first written with every prefetch a fixed number of blocks ahead. That is too late for a weight whose gather
takes longer than those blocks compute, and too early for one that then stands in the queue of a link before others that
are read sooner. So gathers are placed backwards in time, link by link, the one that is read last first:

    latest start = (the earlier of its first reader's turn and the latest start of what the link carries next)
                   - its seconds, blocking collectives on its link between them not counted

by a clock on which nothing is waited for and compute is not slowed down, so the real time between two turns is no
shorter. A prefetch moves to the turn in which its latest start lies, if that is earlier than its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from shardplan.plan.phases import Phase
from shardplan.plan.step_moves import StepMoves
from shardplan.schedule.links import LinkLevels
from shardplan.schedule.streams import Item


def just_in_time(phase: Phase, step: StepMoves) -> Phase:
    """The phase with its prefetches issued at the turns in which their latest starts lie, or where they are if that is
    earlier. A value that is made in the phase is not sent before it is made."""
    clock = _Clock(phase.program, step.parts.levels)
    latest = _latest_starts(phase.program, clock, step.parts.levels)
    first = next((index for index, operator in enumerate(phase.operators) if operator >= 0), len(phase.program))
    made = _made_at(phase) if phase.name in ("first forward", "forward") else {}
    places: dict[int, int] = {}
    keys: list[tuple[int, int, float]] = []
    for index, item in enumerate(phase.program):
        place = index
        if item.number in latest and item.action == "issue" and phase.operators[index] >= 0:
            sources = {step.parts.moves[number].tensor for number in phase.moves[index]}
            ready = max((made.get(step.makers[one], index) for one in sources if not step.is_at_hand(one)), default=0)
            after = max((places.get(number, 0) for number in item.after), default=0)
            place = min(index, max(first, ready, after, clock.turn(latest[item.number])))
        if item.action == "issue":
            places[item.number] = place + (place == index)
        keys.append((place, int(place == index), latest.get(item.number, 0.0) if place < index else index))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return replace(
        phase,
        program=tuple(phase.program[index] for index in order),
        moves=tuple(phase.moves[index] for index in order),
        operators=tuple(phase.operators[keys[index][0]] for index in order),
    )


def _made_at(phase: Phase) -> Mapping[int, int]:
    """By operator, the position behind everything that it computes and sends while nothing is computed."""
    return {
        operator: index + 1
        for index, (item, operator) in enumerate(zip(phase.program, phase.operators, strict=True))
        if item.action in ("compute", "blocking")
    }


def _latest_starts(program: Sequence[Item], clock: _Clock, links: LinkLevels) -> dict[int, float]:
    """By number of a prefetch, its latest start (seconds from the begin of the phase)."""
    issued = {item.number: item for item in program if item.action == "issue" and not item.deferred}
    due = dict.fromkeys(issued, clock.end)
    for index, item in enumerate(program):
        if item.action == "wait" and item.number in due:
            due[item.number] = min(due[item.number], clock.at(index))
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, item in sorted(issued.items(), reverse=True):
        for before in item.after:
            if before in due:
                dependents[before].append(number)
                due[before] = min(due[before], due[number] - item.seconds)
    found: dict[int, float] = {}
    free: dict[str, float] = {}
    for number in sorted(issued, key=lambda one: (due[one], one), reverse=True):
        item = issued[number]
        if not item.levels:
            continue
        bound = links.outermost(item.levels)
        ends = min((found[other] for other in dependents[number] if other in found), default=clock.end)
        ends = min(ends, due[number], free.get(bound, clock.end))
        found[number] = free[bound] = clock.before(ends, item.seconds, bound)
        for level in item.levels - {bound}:
            passing = item.seconds * links.share(level, item.levels)
            free[level] = clock.before(min(ends, free.get(level, clock.end)), passing, level)
    return found


class _Clock:
    """When each item of a phase begins if nothing is waited for, and how long each link is free until then."""

    def __init__(self, program: Sequence[Item], links: LinkLevels) -> None:
        self._timed = [index for index, item in enumerate(program) if item.action in ("compute", "blocking")]
        items = [program[index] for index in self._timed]
        self._starts = [0.0, *accumulate(item.seconds for item in items)]
        self.end = self._starts[-1]
        self._free: dict[str, np.ndarray] = {}
        for level in {level for item in program for level in item.levels}:
            shares = {levels: links.share(level, levels) for levels in {item.levels for item in items if item.levels}}
            busy = [item.seconds * shares[item.levels] if item.levels else 0.0 for item in items]
            self._free[level] = np.array(self._starts) - np.array([0.0, *accumulate(busy)])

    def at(self, index: int) -> float:
        """When the item at a position of the program begins."""
        return self._starts[bisect_right(self._timed, index - 1)]

    def before(self, ends: float, seconds: float, level: str) -> float:
        """The latest start of `seconds` on a link, so that they have passed at `ends`."""
        free = self._free[level]
        left = float(np.interp(ends, self._starts, free)) - seconds if ends > 0.0 else ends - seconds
        return float(np.interp(left, free, self._starts)) if left > 0.0 else left

    def turn(self, moment: float) -> int:
        """The position behind the last item that has begun before a moment."""
        place = bisect_right(self._starts, moment) - 1
        return self._timed[min(place, len(self._timed)) - 1] + 1 if place > 0 else 0
