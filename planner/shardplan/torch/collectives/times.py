"""Times at which moves are issued, run and awaited: recorded during a step, read afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class Sent(NamedTuple):
    """Collectives of the plan's moves `numbers` that ran in a row: seconds on the clock of `Times`."""

    numbers: tuple[int, ...]
    issued: float
    start: float
    end: float
    is_blocking: bool


class Awaited(NamedTuple):
    """The computing thread waited for the plan's moves `numbers` from `start` to `end`."""

    numbers: tuple[int, ...]
    start: float
    end: float


@dataclass
class Times:
    """Recorded times of one process. A moment is the wall clock on the CPU, and on an accelerator an event of the
    current stream; moments are seconds since the first one."""

    device: torch.device
    _sent: list[tuple[tuple[int, ...], Any, Any, Any, bool]] = field(default_factory=list)
    _awaited: list[tuple[tuple[int, ...], Any, Any]] = field(default_factory=list)
    _moments: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._first = self.now()

    def now(self) -> Any:
        """A moment."""
        if self.device.type == "cpu":
            return time.perf_counter()
        return torch.accelerator.current_stream().record_event(torch.Event(self.device, enable_timing=True))

    def sent(self, numbers: tuple[int, ...], issued: Any, start: Any, *, is_blocking: bool) -> None:
        """What has been sent ends now."""
        self._sent.append((numbers, issued, start, self.now(), is_blocking))

    def awaited(self, numbers: tuple[int, ...], start: Any) -> None:
        """What was waited for from `start` on is there."""
        self._awaited.append((numbers, start, self.now()))

    def moment(self, name: str) -> None:
        """Something called `name` happens now."""
        self._moments.append((name, self.now()))

    def seconds(self, moment: Any) -> float:
        """On an accelerator only after it has been synchronised."""
        if self.device.type == "cpu":
            return float(moment - self._first)
        return float(self._first.elapsed_time(moment)) / 1e3

    def all_sent(self) -> list[Sent]:
        """In the order in which it ended."""
        of = self.seconds
        return [
            Sent(numbers, of(issued), of(start), of(end), blocks) for numbers, issued, start, end, blocks in self._sent
        ]

    def all_awaited(self) -> list[Awaited]:
        """In order."""
        return [Awaited(numbers, self.seconds(start), self.seconds(end)) for numbers, start, end in self._awaited]

    def moments(self) -> list[tuple[str, float]]:
        """In order."""
        return [(name, self.seconds(moment)) for name, moment in self._moments]
