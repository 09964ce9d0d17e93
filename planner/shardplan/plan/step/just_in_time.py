"""Weights gathered just in time: a phase whose prefetches are issued early enough that no reader waits for them, and no
earlier, as far as its links allow.

A phase is first written with every prefetch a fixed number of blocks ahead. That is too late for a weight whose gather
takes longer than those blocks compute, and too early for one that then stands in the queue of a link before others that
are read sooner. So gathers are placed backwards in time, link by link, the one that is read last first:

    latest start = (the earlier of its first reader's turn and the latest start of what the link carries next)
                   - its seconds, blocking collectives on its link between them not counted

by a clock on which nothing is waited for and compute is not slowed down, so the real time between two turns is no
shorter. Deferred collectives need the link too, and none of them starts before its gradient is made. So a gather also
starts early enough that at every moment t up to its start, on the clock of the schedule before, the link can carry what
is still to come by the time at which everything can have ended:

    t + (seconds of gathers that start from t on) + (seconds of deferred collectives made from t on)  <=  end

A prefetch moves to the turn in which its latest start lies, if that is earlier than its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from shardplan.plan.step.moves import StepMoves
from shardplan.plan.step.phases import Phase
from shardplan.schedule.links import LinkLevels
from shardplan.schedule.streams import Item, Simulation


def just_in_time(phase: Phase, ran: Simulation, step: StepMoves) -> Phase:
    """The phase, of which `ran` is the schedule, with its prefetches issued at the turns in which their latest starts
    lie, or where they are if that is earlier; the same object if none moves. A value is not sent before forward has
    made it; backward has all of them."""
    if not any(item.action == "issue" and not item.deferred for item in phase.program):
        return phase
    clock = _PhaseClock(phase.program, ran, step.parts.levels)
    latest = _latest_starts(phase.program, clock, step.parts.levels)
    first = next((index for index, operator in enumerate(phase.operators) if operator >= 0), len(phase.program))
    is_forward = phase.name in ("first forward", "forward")
    made = _made_at(phase) if is_forward else {}
    places: dict[int, int] = {}
    keys: list[tuple[int, int, float]] = []
    for index, item in enumerate(phase.program):
        is_prefetch = item.action == "issue" and item.number in latest and phase.operators[index] >= 0
        place = index
        if is_prefetch:
            sources = {step.parts.moves[number].tensor for number in phase.moves[index]} if is_forward else ()
            ready = max((made.get(step.makers[one], index) for one in sources if not step.is_at_hand(one)), default=0)
            after = max((places.get(number, 0) for number in item.after), default=0)
            place = min(index, max(first, ready, after, clock.turn(latest[item.number])))
        if item.action == "issue":
            places[item.number] = place if is_prefetch else index + 1
        keys.append((place, int(not is_prefetch), latest[item.number] if is_prefetch else index))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if order == list(range(len(keys))):
        return phase
    return replace(
        phase,
        program=tuple(phase.program[index] for index in order),
        moves=tuple(phase.moves[index] for index in order),
        steps=tuple(phase.steps[index] for index in order),
        operators=tuple(phase.operators[keys[index][0]] for index in order),
    )


def _made_at(phase: Phase) -> Mapping[int, int]:
    """By operator, the position behind everything that it computes and sends while nothing is computed."""
    return {
        operator: index + 1
        for index, (item, operator) in enumerate(zip(phase.program, phase.operators, strict=True))
        if item.action in ("compute", "blocking")
    }


def _latest_starts(program: Sequence[Item], clock: _PhaseClock, links: LinkLevels) -> dict[int, float]:
    """By number of a prefetch, its latest start (seconds from the begin of the phase)."""
    issued = {item.number: item for item in program if item.action == "issue" and not item.deferred and item.levels}
    due = dict.fromkeys(issued, clock.end)
    for index, item in enumerate(program):
        if item.action == "wait" and item.number in due:
            due[item.number] = min(due[item.number], clock.starts[clock.before(index)])
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, item in sorted(issued.items(), reverse=True):
        for before in item.after:
            if before in due:
                dependents[before].append(number)
                due[before] = min(due[before], due[number] - item.seconds)
    carried = {level: _Link(level, program, clock, links) for level in clock.free}
    found: dict[int, float] = {}
    for number in sorted(issued, key=lambda one: (due[one], one), reverse=True):
        item = issued[number]
        ends = min((found[other] for other in dependents[number]), default=clock.end)
        bound = links.outermost(item.levels)
        found[number] = carried[bound].start(min(ends, due[number]), item.seconds)
        for level in sorted(item.levels - {bound}):
            carried[level].start(min(ends, due[number]), item.seconds * links.share(level, item.levels))
    return found


class _PhaseClock:
    """When each timed item of a phase begins, and the last one ends: `starts` if nothing is waited for, `ran` as it was
    simulated. By level, how long its link is free of blocking collectives until then: `free`, `free_ran`."""

    def __init__(self, program: Sequence[Item], ran: Simulation, links: LinkLevels) -> None:
        self._timed = [index for index, item in enumerate(program) if item.action in ("compute", "blocking")]
        items, spans = [program[index] for index in self._timed], {span.item: span for span in ran.spans}
        self.starts = [0.0, *accumulate(item.seconds for item in items)]
        self.end = self.starts[-1]
        own = [spans[index] for index in self._timed]
        self.ran = [*(span.start for span in own), own[-1].end if own else 0.0]
        self.free: dict[str, np.ndarray] = {}
        self.free_ran: dict[str, np.ndarray] = {}
        for level in sorted({level for item in program for level in item.levels}):
            shares = [links.share(level, item.levels) if item.levels else 0.0 for item in items]
            for found, starts, lasting in (
                (self.free, self.starts, [item.seconds for item in items]),
                (self.free_ran, self.ran, [span.end - span.start for span in own]),
            ):
                busy = accumulate(share * seconds for share, seconds in zip(shares, lasting, strict=True))
                found[level] = np.array(starts) - np.array([0.0, *busy])

    def before(self, index: int) -> int:
        """The number of timed items before a position of the program."""
        return bisect_right(self._timed, index - 1)

    def turn(self, moment: float) -> int:
        """The position behind the last item that has ended by a moment."""
        place = bisect_right(self.starts, moment) - 1
        return self._timed[min(place, len(self._timed)) - 1] + 1 if place > 0 else 0


class _Link:
    """A link, filled with gathers backwards in time. Its own time passes only while no blocking collective has it.

    `made`: when gradients are made for the deferred collectives that it carries, ascending, on the simulated clock;
    `left[i]`: the seconds of those from number i on; `gathered`: the seconds of the gathers placed so far, the first of
    which starts at `first`; `end`: when everything can have ended.
    """

    def __init__(self, level: str, program: Sequence[Item], clock: _PhaseClock, links: LinkLevels) -> None:
        self._starts, self._free, self._ran = np.array(clock.starts), clock.free[level], clock.free_ran[level]
        carried = [
            (clock.before(index), item.seconds * links.share(level, item.levels), item.deferred)
            for index, item in enumerate(program)
            if item.action == "issue" and level in item.levels
        ]
        made = [(place, seconds) for place, seconds, deferred in carried if deferred]
        self._made = [float(self._ran[place]) for place, _ in made]
        self._left = [0.0, *accumulate(seconds for _, seconds in reversed(made))][::-1]
        self._gathered, self._first = 0.0, float(self._free[-1])
        last = (float(self._free[place]) + left for (place, _), left in zip(made, self._left, strict=False))
        self._end = max(self._first, sum(seconds for _, seconds, _ in carried), *last)

    def start(self, ends: float, seconds: float) -> float:
        """Places a gather that has to have ended at `ends`, and returns its start."""
        own = float(np.interp(ends, self._starts, self._free)) if ends > 0.0 else ends
        self._gathered += seconds
        self._first = min(min(own, self._first) - seconds, self._before_deferred())
        return float(np.interp(self._first, self._free, self._starts)) if self._first > 0.0 else self._first

    def _before_deferred(self) -> float:
        """The latest start that leaves the link enough time for what is still to come."""
        room, before = self._end - self._gathered, 0.0
        for moment, left in zip(self._made, self._left, strict=False):
            if moment + left > room:
                return float(np.interp(max(before, room - left), self._ran, self._free))
            before = moment
        return float(self._free[-1])
