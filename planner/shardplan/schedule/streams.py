"""Simulation of one device in one phase of a step: a compute stream and one communication stream per link level.

The device runs a program: items in order, each of which computes, communicates while nothing is computed (blocking),
issues an asynchronous collective, or waits for one. A collective takes the link that bounds it whole, and a share of
the links inside of it (`shardplan.schedule.links`). Precedence: blocking collectives, then collectives that something
will wait for soon, then deferred ones; within one class, in the order of issue. Collectives of lower precedence pause
(as on GPUs with stream priorities), and one that waits for a link leaves other links to those behind it. Two
collectives share a link if one of them is bound elsewhere and takes at most `MOST_PASSING` of it; the other gets the
rest. A collective that depends on others is issued when they have ended. Compute beside communication takes `kappa`
times as long. So for every program, with blocking collectives at their actual speed,

    seconds = compute + blocking + (kappa - 1) / kappa * (time in which both run) + time in which only waiting is done
    seconds >= sum of what each collective takes of l, blocking or not,  for every level l

and no link serves two collectives at full speed. `shardplan.schedule.objective` has the sums that follow from this.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from shardplan.schedule.links import WHOLE, Levels, LinkLevels

_NONE: Final[Levels] = frozenset()
Action = Literal["compute", "blocking", "issue", "wait"]
MOST_PASSING: Final = 0.5
"""Share of a link that collectives bound by other links may take beside one that this link bounds: more would slow down
the collective with precedence by more than it overlaps."""


class Item(NamedTuple):
    """One item of a device's program. `compute`: `seconds` of compute; `blocking`: `seconds` of communication on
    `levels`; `issue`: starts the asynchronous collective `number`, of `seconds` on `levels`, once the collectives in
    `after` have ended; a `deferred` one has the lowest precedence; `wait`: for that number."""

    action: Action
    name: str
    seconds: float = 0.0
    levels: Levels = frozenset()
    number: int = -1
    after: tuple[int, ...] = ()
    deferred: bool = False


class Span(NamedTuple):
    """Something that ran from `start` to `end` (seconds from the start of the phase). `item`: index in the program; for
    an asynchronous collective, of its issue. `exposed`: seconds in which the device only waited for it."""

    item: int
    start: float
    end: float
    exposed: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """Spans of a phase in the order in which they end, and its length. `waited`: seconds in which only asynchronous
    collectives ran."""

    seconds: float
    spans: tuple[Span, ...]
    waited: float


def simulate(program: Sequence[Item], kappa: float = 1.0, links: LinkLevels = WHOLE) -> Simulation:
    """The schedule of one phase on `links`; at its end, everything issued is awaited.

    Raises `ValueError` for a program that waits for a collective that it has not issued.
    """
    return Device(program, kappa, links).run()


@dataclass(frozen=True, slots=True)
class _Use:
    """The links that a collective takes: the link of level `bound` whole, and shares of others."""

    bound: str
    passes: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, levels: Levels, links: LinkLevels) -> _Use:
        bound = links.outermost(levels)
        return cls(bound, tuple((level, links.share(level, levels)) for level in sorted(levels - {bound})))


class _Running:
    """What runs at a moment: which collective has the link of each level, and the share of it that passing collectives
    take."""

    def __init__(self) -> None:
        self.owners: set[str] = set()
        self.passing: dict[str, float] = {}

    def take(self, use: _Use) -> bool:
        """Starts a collective, if those of higher precedence leave room."""
        passing, owners = self.passing, self.owners
        if use.bound in owners or passing.get(use.bound, 0.0) > MOST_PASSING:
            return False
        for level, share in use.passes:
            is_free = level not in owners and level not in passing
            if not is_free and passing.get(level, 0.0) + share > MOST_PASSING:
                return False
        owners.add(use.bound)
        for level, share in use.passes:
            passing[level] = passing.get(level, 0.0) + share
        return True

    def speed(self, use: _Use) -> float:
        """The share that passing collectives leave of the link that bounds a collective."""
        return 1.0 - self.passing.get(use.bound, 0.0)


class Device:
    """State of the simulated device. `left`: remaining seconds of issued collectives; `queue`: those that depend on no
    other, by precedence; `after`: collectives that depend on the end of one; `missing`: on how many a collective still
    depends; `bounds`: how many in the queue each level bounds; `uses`: what collectives take, by their levels;
    `beside`: what of the queue runs, by the levels of what has started, until the queue changes."""

    def __init__(self, program: Sequence[Item], kappa: float, links: LinkLevels) -> None:
        self.program, self.kappa = program, max(1.0, kappa)
        self.uses = {levels: _Use.of(levels, links) for levels in {item.levels for item in program} if levels}
        self.now = 0.0
        self.waited = 0.0
        self.spans: list[Span] = []
        self.bounds: Counter[str] = Counter()
        self.left: dict[int, float] = {}
        self.queue: list[tuple[bool, int]] = []
        self.beside: dict[Levels, tuple[list[tuple[int, float]], float]] = {}
        self.after: dict[int, list[int]] = {}
        self.missing: dict[int, int] = {}
        self.issued: dict[int, int] = {}
        self.started: dict[int, float] = {}
        self.exposed: dict[int, float] = {}

    def run(self) -> Simulation:
        for index, item in enumerate(self.program):
            if item.action == "issue":
                self._issue(index, item)
            elif item.action == "wait":
                self._wait(item)
            else:
                self._do(index, item)
        while self.left:
            self._idle()
        return Simulation(self.now, tuple(self.spans), self.waited)

    def _issue(self, index: int, item: Item) -> None:
        self.issued[item.number] = index
        if item.seconds <= 0.0 or not item.levels:
            self.spans.append(Span(index, self.now, self.now))
            return
        self.left[index] = item.seconds
        self.exposed[index] = 0.0
        before = {self.issued[number] for number in item.after if self.issued.get(number, -1) in self.left}
        self.missing[index] = len(before)
        for other in before:
            self.after.setdefault(other, []).append(index)
        if not before:
            self._queue(index, item)

    def _queue(self, index: int, item: Item) -> None:
        insort(self.queue, (item.deferred, index))
        self.bounds[self.uses[item.levels].bound] += 1
        self.beside.clear()

    def _wait(self, item: Item) -> None:
        if item.number not in self.issued:
            raise ValueError(f"the program waits for '{item.name}', which it has not issued")
        index = self.issued[item.number]
        while index in self.left:
            self._idle()

    def _idle(self) -> None:
        """Only issued collectives run, until one of them ends."""
        active, _ = self._active(_NONE)
        step = min(self.left[index] / speed for index, speed in active)
        self.waited += step
        for index, _ in active:
            self.exposed[index] += step
        self._advance(active, step)

    def _do(self, index: int, item: Item) -> None:
        """Computes or communicates until the item ends."""
        start, left = self.now, item.seconds
        levels = item.levels if item.action == "blocking" else _NONE
        while left > 0.0 and self.queue:
            active, slower = self._active(levels)
            step = until_done = left * slower
            for number, speed in active:
                step = min(step, self.left[number] / speed)
            left = 0.0 if step >= until_done else left - step / slower
            self._advance(active, step)
        self.now += max(0.0, left)
        exposed = self.now - start if item.action == "blocking" else 0.0
        self.spans.append(Span(index, start, self.now, exposed))

    def _active(self, levels: Levels) -> tuple[list[tuple[int, float]], float]:
        """The issued collectives that run now, by precedence, with the speed of each, beside a blocking collective on
        `levels`, or on none beside compute; and how many times as long as alone that takes."""
        if levels not in self.beside:
            self.beside[levels] = self._running_beside(self.uses.get(levels))
        return self.beside[levels]

    def _running_beside(self, started: _Use | None) -> tuple[list[tuple[int, float]], float]:
        running = _Running()
        if started is not None:
            running.take(started)
        found, free = [], len(self.bounds.keys() - running.owners)
        for _, index in self.queue:
            if not free:
                break
            use = self.uses[self.program[index].levels]
            if running.take(use):
                found.append((index, use))
                free -= 1
        slower = (self.kappa if found else 1.0) if started is None else 1.0 / running.speed(started)
        return [(index, running.speed(use)) for index, use in found], slower

    def _advance(self, active: Sequence[tuple[int, float]], step: float) -> None:
        for index, _ in active:
            self.started.setdefault(index, self.now)
        self.now += step
        for index, speed in active:
            self.left[index] -= step * speed
            if self.left[index] <= 1e-15:
                self._end(index)

    def _end(self, index: int) -> None:
        """A collective has ended: those that depended on it alone may run."""
        item = self.program[index]
        del self.left[index]
        self.queue.remove((item.deferred, index))
        bound = self.uses[item.levels].bound
        self.bounds[bound] -= 1
        if not self.bounds[bound]:
            del self.bounds[bound]
        self.beside.clear()
        self.spans.append(Span(index, self.started[index], self.now, self.exposed.pop(index)))
        for other in self.after.pop(index, ()):
            self.missing[other] -= 1
            if not self.missing[other]:
                self._queue(other, self.program[other])
