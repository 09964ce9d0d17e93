"""Simulation of one device in one phase of a step: a compute stream and one communication stream per link level.

The device runs a program: items in order, each of which computes, communicates while nothing else is computed
(blocking), issues an asynchronous collective, or waits for one. A collective occupies every link level that its
algorithm uses. On each level blocking collectives go first, then those that something will wait for soon, then
deferred ones; of one kind, what was issued first; the others pause (streams of different priority do this on GPUs).
What has to come after another collective is issued when that has ended. Compute beside communication takes `kappa`
times as long. So for every program

    seconds = compute + blocking + (kappa - 1) / kappa * (time in which both run) + time in which only waiting is done
    seconds >= blocking on l + asynchronous on l,  for every level l

and nothing runs at full speed twice on one link. `shardplan.schedule.objective` has the sums that follow from this.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Action = Literal["compute", "blocking", "issue", "wait"]
Levels = frozenset[str]
"""Names of the link levels that a collective occupies."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a device's program. `compute`: `seconds` alone; `blocking`: `seconds` on `levels`; `issue`: starts
    the asynchronous collective `number`, which takes `seconds` on `levels`, once the one with the number `after` has
    ended, and gives way to others where it is `deferred`; `wait`: for that number."""

    action: Action
    name: str
    seconds: float = 0.0
    levels: Levels = frozenset()
    number: int = -1
    after: int = -1
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """What ran from `start` to `end` (seconds from the start of the phase). `item`: index in the program; a span of an
    asynchronous collective has the index of its issue. `exposed`: seconds in which only waiting for it was done."""

    item: int
    start: float
    end: float
    exposed: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """Spans of a phase in the order in which they end, and its length. `waited`: seconds in which nothing but
    asynchronous collectives ran."""

    seconds: float
    spans: tuple[Span, ...]
    waited: float


def simulate(program: Sequence[Item], kappa: float = 1.0) -> Simulation:
    """The schedule of one phase; at its end everything that was issued is awaited.

    Raises `ValueError` for a program that waits for what it has not issued.
    """
    return _Device(program, kappa).run()


class _Device:
    """`left`: seconds of what was issued and has not ended; `queue`: that by precedence; `used`: levels of it all."""

    def __init__(self, program: Sequence[Item], kappa: float) -> None:
        self.program, self.kappa = program, max(1.0, kappa)
        self.now = 0.0
        self.waited = 0.0
        self.spans: list[Span] = []
        self.used: Levels = frozenset()
        self.left: dict[int, float] = {}
        self.queue: list[tuple[bool, int]] = []
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
        insort(self.queue, (item.deferred, index))
        self.exposed[index] = 0.0
        self.used |= item.levels

    def _wait(self, item: Item) -> None:
        if item.number not in self.issued:
            raise ValueError(f"the program waits for '{item.name}', which it has not issued")
        index = self.issued[item.number]
        while index in self.left:
            self._idle()

    def _idle(self) -> None:
        """Nothing runs but what was issued, until one of that ends."""
        active = self._active(frozenset())
        step = min(self.left[index] for index in active)
        self.waited += step
        for index in active:
            self.exposed[index] += step
        self._advance(active, step)

    def _do(self, index: int, item: Item) -> None:
        """Compute or communicate to the end of the item."""
        start, left = self.now, item.seconds
        while left > 0.0:
            active = self._active(item.levels)
            slower = self.kappa if active and item.action == "compute" else 1.0
            until_done = left * slower
            step = min([until_done, *(self.left[number] for number in active)])
            left = 0.0 if step >= until_done else left - step / slower
            self._advance(active, step)
        exposed = self.now - start if item.action == "blocking" else 0.0
        self.spans.append(Span(index, start, self.now, exposed))

    def _active(self, taken: Levels) -> list[int]:
        """What runs now beside something that has taken some levels: by precedence, what finds its levels free."""
        free = self.used - taken
        found = []
        for _, index in self.queue:
            if not free:
                break
            levels = self.program[index].levels
            if self._depends(index) or levels & taken:
                continue
            if levels <= free:
                found.append(index)
            free = free - levels
        return found

    def _depends(self, index: int) -> bool:
        """Whether an issued collective waits for the end of another one."""
        return self.issued.get(self.program[index].after, -1) in self.left

    def _advance(self, active: Sequence[int], step: float) -> None:
        for index in active:
            self.started.setdefault(index, self.now)
        self.now += step
        for index in active:
            self.left[index] -= step
            if self.left[index] <= 1e-15:
                del self.left[index]
                self.queue.remove((self.program[index].deferred, index))
                self.spans.append(Span(index, self.started[index], self.now, self.exposed.pop(index)))
