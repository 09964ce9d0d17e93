"""Limits of a solve: seconds, work, and Ctrl-C."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal

from shardplan.interruption import GivenUpError, Interruption
from shardplan.solve.constants import PROOF_WORK, PROOF_WORK_SMALL, REDUCING_SECONDS

Phase = Literal["reduce", "bound", "search", "prove"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a solve. `best` is infinite until there is an assignment; `work` is the work so far; `solved` the
    number of finished plain problems, if several are solved."""

    seconds: float
    best: float
    bound: float
    phase: Phase
    work: float = 0.0
    solved: int = 0


@dataclass
class Budget:
    """The limits of a solve, and what it has spent. One unit of work is about a million table entries looked at.

    `spent` and `expired` give the same result on every machine as long as there is no time limit; `by_clock`: the
    time limit has ended something, so that another run may end elsewhere. `most_work`: work after which a search ends
    with what it has; unlike a work limit, it does not change the search of a problem that needs less. `is_patient`:
    what comes before the first assignment is finished, however late that is.
    """

    time_limit: float | None = None
    work_limit: float | None = None
    most_work: float = math.inf
    is_patient: bool = False
    started: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - as it is then
    work: float = 0.0
    by_clock: bool = False
    _interruption: Interruption = field(default_factory=lambda: Interruption(armed=True))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C asked to stop."""
        return self._interruption.asked

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return float("inf") if self.time_limit is None else self.time_limit - self.seconds

    @property
    def work_left(self) -> float:
        """Work until the work limit; infinite without one."""
        return float("inf") if self.work_limit is None else self.work_limit - self.work

    @property
    def most_left(self) -> float:
        """Work until `most_work` is spent."""
        return self.most_work - self.work

    @property
    def free(self) -> bool:
        """Whether no limit is given."""
        return self.time_limit is None and self.work_limit is None

    def spend(self, entries: float) -> None:
        """Adds `entries` table entries to the work."""
        self.work += entries / 1e6

    def part(self, share: float, work: float) -> tuple[float, float]:
        """The time and work at which a part of the search ends: a share of what is left of the limits; without limits,
        after `work`."""
        if self.time_limit is None and self.work_limit is None:
            return float("inf"), self.work + work
        seconds = self.seconds + share * self.seconds_left
        return seconds, float("inf") if self.work_limit is None else self.work + share * self.work_left

    def past(self, end: tuple[float, float]) -> bool:
        """Whether a part of the search has ended."""
        if self.work >= end[1]:
            return True
        is_late = self.time_limit is not None and self.seconds >= end[0]
        self.by_clock |= is_late
        return is_late

    def proof(self, share: float) -> tuple[float, float, float]:
        """Work, gap and seconds of a proof that may take a share of what is left of the limits."""
        if self.time_limit is None and self.work_limit is None:
            return PROOF_WORK, 0.0, float("inf")
        return share * self.work_left, 0.0, share * self.seconds_left

    def proof_work(self) -> tuple[float, float]:
        """The work that a proof may take, and the work after which a small gap is enough; with a limit, all that it
        allows."""
        if self.work_limit is not None:
            return self.work_left, float("inf")
        if self.time_limit is not None:
            return float("inf"), float("inf")
        return PROOF_WORK, PROOF_WORK_SMALL

    def expired(self) -> bool:
        """Whether to stop now."""
        if self.interrupted:
            return True
        if self.work >= (self.most_work if self.work_limit is None else min(self.most_work, self.work_limit)):
            return True
        is_late = self.seconds_left <= 0
        self.by_clock |= is_late
        return is_late

    @property
    def reproducible(self) -> bool:
        """Whether neither the time limit nor Ctrl-C has ended anything."""
        return not self.by_clock and not self.interrupted

    def check(self) -> None:
        """Raises `GivenUpError` some time after the time limit, unless it is patient, or after Ctrl-C: what comes
        before the first assignment is finished if it takes no longer."""
        asked_s = max(self.started, self._interruption.asked_s)
        late_s = -math.inf if self.is_patient else -self.seconds_left
        after_s = max(late_s, time.monotonic() - asked_s)
        if after_s >= REDUCING_SECONDS:
            self.by_clock = True
            raise GivenUpError

    def __enter__(self) -> Budget:
        """From here on, the first Ctrl-C only asks to stop; a second one raises."""
        self._interruption.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._interruption.__exit__()
