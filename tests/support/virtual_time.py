"""The time that recorded steps of several processes take together, on devices and links of known speed.

Each process has a thread that computes and a thread for each lane, which run their actions in order. A collective
begins when all of its members have come to it, and takes the links of its levels at each of them: the link that bounds
it whole, of others a share (`shardplan.schedule.links`). On a link, collectives of the computing thread go before
gathered weights, and those before gradients; of one kind, in the order in which they began. Who gives way pauses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardplan.schedule.links import Levels, LinkLevels
from shardplan.schedule.streams import MOST_PASSING

_NONE = 1e-15
"""Seconds this few are none."""


class Compute(NamedTuple):
    """Something that computes for some seconds."""

    name: str
    seconds: float


class Send(NamedTuple):
    """A collective of the processes `group`, of `seconds` at full speed, for the plan's moves `numbers`."""

    name: str
    seconds: float
    group: tuple[int, ...]
    levels: Levels
    numbers: tuple[int, ...] = ()


class Issue(NamedTuple):
    """The work `job` is given to its lane."""

    job: int


class Wait(NamedTuple):
    """The thread waits until the work `job` is done."""

    job: int


class Barrier(NamedTuple):
    """The computing threads of all processes wait for each other."""


Action = Compute | Send | Issue | Wait | Barrier


@dataclass
class Job:
    """Work of a lane."""

    lane: str
    actions: list[Action] = field(default_factory=list)


@dataclass
class Recorded:
    """What one process does in a step: the actions of its computing thread, and the work of its lanes by number."""

    actions: list[Action] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)


class Ran(NamedTuple):
    """An action of the process `rank` on a lane (`""`: the computing thread), from `start` to `end` in seconds."""

    rank: int
    lane: str
    action: Action
    start: float
    end: float


@dataclass(eq=False)
class _Collective:
    """A collective that some of its members have come to: `since`, by rank. `left`: seconds at full speed."""

    send: Send
    lane: str
    left: float
    since: dict[int, float] = field(default_factory=dict)
    number: int = -1

    @property
    def precedence(self) -> tuple[int, int]:
        return (0 if not self.lane else 1 if self.lane.startswith("gather") else 2), self.number


@dataclass(eq=False)
class _Thread:
    """`todo`: the actions left, with the job that ends with each (-1: none); `until`: when what it does ends."""

    rank: int
    lane: str
    todo: list[tuple[Action | None, int]] = field(default_factory=list)
    next: int = 0
    until: float | None = None
    meets: _Collective | None = None


class VirtualTime:
    """Steps of all processes, by rank, run together. `ran`: what has taken time."""

    def __init__(self, steps: Sequence[Recorded], links: LinkLevels) -> None:
        self.steps, self.links, self.now, self.ran = steps, links, 0.0, list[Ran]()
        self.threads = {(rank, ""): _Thread(rank, "", [(a, -1) for a in one.actions]) for rank, one in enumerate(steps)}
        self.done: set[tuple[int, int]] = set()
        self.met: dict[tuple[str, tuple[int, ...], int], _Collective] = {}
        self.counts: dict[tuple[int, str, tuple[int, ...]], int] = defaultdict(int)
        self.queue: list[_Collective] = []
        self.begun = 0

    def run(self) -> float:
        """Seconds until everything is done. Raises `AssertionError` where processes wait for each other for ever."""
        while True:
            self._advance_all()
            active = list(self._active())
            ends = [thread.until - self.now for thread in self.threads.values() if thread.until is not None]
            ends += [one.left / speed for one, speed in active]
            if not ends:
                break
            self._pass(min(ends), active)
        stuck = [thread for thread in self.threads.values() if thread.next < len(thread.todo)]
        assert not stuck, [(one.rank, one.lane, one.todo[one.next]) for one in stuck]
        return self.now

    def _advance_all(self) -> None:
        """All threads come as far as they do without time passing."""
        has_changed = True
        while has_changed:
            changes = [self._advance(thread) for thread in list(self.threads.values())]
            has_changed = any(changes)

    def _pass(self, seconds: float, active: Sequence[tuple[_Collective, float]]) -> None:
        self.now += seconds
        for one, speed in active:
            one.left -= seconds * speed
            if one.left <= _NONE:
                self.queue.remove(one)
        for thread in self.threads.values():
            if thread.until is not None and thread.until - self.now <= _NONE:
                thread.until = None
                self._end(thread)

    def _end(self, thread: _Thread) -> None:
        """The action of a thread has ended."""
        _, job = thread.todo[thread.next]
        thread.next += 1
        if job >= 0:
            self.done.add((thread.rank, job))

    def _advance(self, thread: _Thread) -> bool:
        """Whether a thread has come further without time passing."""
        if thread.until is not None or thread.next == len(thread.todo):
            return False
        action, _ = thread.todo[thread.next]
        if isinstance(action, Compute):
            thread.until = self.now + action.seconds
            self.ran.append(Ran(thread.rank, thread.lane, action, self.now, thread.until))
            return True
        if isinstance(action, Issue):
            self._issue(thread.rank, action.job)
        elif isinstance(action, Wait):
            if (thread.rank, action.job) not in self.done:
                return False
        elif isinstance(action, Barrier):
            return self._passes_barrier(thread)
        elif isinstance(action, Send):
            return self._sends(thread, action)
        self._end(thread)
        return True

    def _issue(self, rank: int, number: int) -> None:
        job = self.steps[rank].jobs[number]
        lane = self.threads.setdefault((rank, job.lane), _Thread(rank, job.lane))
        lane.todo += [*((action, -1) for action in job.actions), (None, number)]

    def _passes_barrier(self, thread: _Thread) -> bool:
        """Where all are at it, all pass."""
        main = [one for one in self.threads.values() if not one.lane]
        if not all(one.next < len(one.todo) and isinstance(one.todo[one.next][0], Barrier) for one in main):
            return False
        for one in main:
            self._end(one)
        return True

    def _sends(self, thread: _Thread, send: Send) -> bool:
        if thread.meets is None:
            count = self.counts[thread.rank, thread.lane, send.group]
            self.counts[thread.rank, thread.lane, send.group] += 1
            key = thread.lane, send.group, count
            thread.meets = one = self.met.setdefault(key, _Collective(send, thread.lane, send.seconds))
            assert (one.send.name, one.send.seconds) == (send.name, send.seconds), (one.send, send)
            one.since[thread.rank] = self.now
            if len(one.since) == len(send.group):
                one.number = self.begun
                self.begun += 1
                self.queue.append(one)
            return True
        one = thread.meets
        if one.left > _NONE or len(one.since) < len(send.group):
            return False
        self.ran.append(Ran(thread.rank, thread.lane, send, one.since[thread.rank], self.now))
        thread.meets = None
        self._end(thread)
        return True

    def _active(self) -> Iterator[tuple[_Collective, float]]:
        """The collectives that run now, with the speed of each."""
        owners: set[tuple[int, str]] = set()
        passing: dict[tuple[int, str], float] = defaultdict(float)
        found = []
        for one in sorted(self.queue, key=lambda one: one.precedence):
            bound = self.links.outermost(one.send.levels)
            own = [(rank, bound) for rank in one.send.group]
            shares = {
                (rank, level): self.links.share(level, one.send.levels)
                for level in one.send.levels - {bound}
                for rank in one.send.group
            }
            if any(link in owners or passing[link] > MOST_PASSING for link in own):
                continue
            if any(
                (link in owners or passing[link]) and passing[link] + share > MOST_PASSING
                for link, share in shares.items()
            ):
                continue
            owners.update(own)
            for link, share in shares.items():
                passing[link] += share
            found.append((one, own))
        return ((one, min(1.0 - passing[link] for link in own)) for one, own in found)


def seconds_of(steps: Sequence[Recorded], links: LinkLevels) -> float:
    """Seconds that a step of all processes, by rank, takes."""
    return VirtualTime(steps, links).run()


def computed(step: Recorded) -> Mapping[str, float]:
    """Seconds of compute of one process by name."""
    found: dict[str, float] = defaultdict(float)
    for action in step.actions:
        if isinstance(action, Compute):
            found[action.name] += action.seconds
    return found
