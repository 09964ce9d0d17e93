"""List scheduling: tasks on streams that run one task at a time; each stream takes the first of its ready tasks.

Schedules of pipelines are computed this way: every stage runs its microbatches in its own order, and waits for what
other stages send. Compute beside communication is slower by `kappa`: both need memory bandwidth and processors.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

COMPUTE = 0


@dataclass(frozen=True, slots=True)
class Task:
    """`stream`: 0 computes, all others communicate; `after`: numbers of the tasks that must have ended."""

    name: str
    stream: int
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Repetitions of a part of the step that are not listed task by task: `times` more of the tasks from `first` to
    before `last`, one after the other, from `start` to `end` (seconds from the start of the step)."""

    first: int
    last: int
    times: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """`starts[i]`, `ends[i]`: seconds of task i from the start of the step; `step_s`: the length of the step if not all
    of its tasks are listed, and `unlisted` those that are not."""

    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    step_s: float | None = None
    unlisted: tuple[Unlisted, ...] = ()

    @property
    def seconds(self) -> float:
        """The end of the last task."""
        return max(self.ends, default=0.0) if self.step_s is None else self.step_s

    def busy(self, stream: int) -> float:
        """Seconds in which a stream works, unlisted repetitions included."""
        more = sum(part.times * self._listed(stream, part.first, part.last) for part in self.unlisted)
        return self._listed(stream, 0, len(self.tasks)) + more

    def busy_unlisted(self, stream: int, part: Unlisted) -> float:
        """The share of the unlisted time in which a stream works."""
        whole = part.end - part.start
        return part.times * self._listed(stream, part.first, part.last) / whole if whole else 0.0

    def _listed(self, stream: int, first: int, last: int) -> float:
        return sum(end - start for start, end in self.spans(stream, first, last))

    def spans(self, stream: int, first: int = 0, last: int | None = None) -> list[tuple[float, float]]:
        """The spans in which a stream works on the tasks from `first` to before `last`, in order and without overlap (a
        collective that gives way to another one has not ended meanwhile)."""
        listed = zip(self.tasks[first:last], self.starts[first:last], self.ends[first:last], strict=True)
        found: list[tuple[float, float]] = []
        for start, end in sorted((start, end) for task, start, end in listed if task.stream == stream):
            if found and start < found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return found


def schedule(tasks: Sequence[Task], kappa: float = 1.0) -> Timeline:
    """Starts every task as early as its stream and its predecessors allow, lower numbers first.

    Raises `ValueError` if tasks wait for each other in a cycle. The result is never longer than all tasks in a row
    times kappa, and never shorter than the longest chain or the busiest stream.
    """
    run = _Run(tasks, kappa)
    done = 0
    while done < len(tasks):
        run.start_what_can()
        if not run.events:
            raise ValueError("tasks wait for each other in a circle")
        run.end_next()
        done += 1
    return Timeline(tuple(tasks), tuple(run.starts), tuple(run.ends))


class _Run:
    """A schedule under construction. `ready`: by stream, tasks that wait only for their stream; `free`: when the stream
    is free."""

    def __init__(self, tasks: Sequence[Task], kappa: float) -> None:
        self.tasks = tasks
        self.kappa = kappa
        self.starts, self.ends = [0.0] * len(tasks), [0.0] * len(tasks)
        self.waiting = [len(task.after) for task in tasks]
        self.followers: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for before in task.after:
                self.followers[before].append(number)
        # communication first, so that compute knows what runs beside it
        streams = sorted({task.stream for task in tasks}, reverse=True)
        self.ready: dict[int, list[int]] = {stream: [] for stream in streams}
        self.free = dict.fromkeys(streams, 0.0)
        self.events: list[tuple[float, int]] = []
        self.now = 0.0
        for number, count in enumerate(self.waiting):
            if not count:
                self.ready[tasks[number].stream].append(number)

    def start_what_can(self) -> None:
        for stream, ready in self.ready.items():
            while ready and self.free[stream] <= self.now:
                number = heapq.heappop(ready)
                end = self.now + self._seconds(self.tasks[number])
                self.starts[number], self.ends[number] = self.now, end
                self.free[stream] = end
                heapq.heappush(self.events, (end, number))

    def end_next(self) -> None:
        """Advances to the end of the next task; tasks that waited only for it become ready."""
        self.now, number = heapq.heappop(self.events)
        for follower in self.followers[number]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                heapq.heappush(self.ready[self.tasks[follower].stream], follower)

    def _seconds(self, task: Task) -> float:
        """The duration of a task that starts now: compute is slower while communication runs."""
        if task.stream != COMPUTE or self.kappa <= 1.0:
            return task.seconds
        until = max((free for stream, free in self.free.items() if stream != COMPUTE), default=self.now)
        return task.seconds + (self.kappa - 1.0) * min(task.seconds, max(0.0, until - self.now))
