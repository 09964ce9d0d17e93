"""Ctrl-C while there is a result to keep: the first one asks the search to stop, the second one ends the command. And
deadlines of work that is given up then, or when a time limit has passed."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")


class Interruption:
    """Context manager that hears Ctrl-C.

    While it is `armed`, because there is something to keep, after the first Ctrl-C it is `asked` to stop, and the next
    one raises `KeyboardInterrupt`. Until then Ctrl-C is for the context around it, or raises. Contexts nest: what an
    inner one is asked, the outer ones are asked too, and what is worth keeping inside is worth keeping outside. In
    other threads than the main one it hears nothing."""

    _inside: Final[list[Interruption]] = []
    """Those that are entered, outermost first."""

    def __init__(self, *, armed: bool = False) -> None:
        self.armed, self.asked_s = armed, math.inf
        self._previous: object = None
        self._listens = False

    @property
    def asked(self) -> bool:
        """Whether the first Ctrl-C was heard, at `asked_s` (`time.monotonic`)."""
        return self.asked_s < math.inf

    def arm(self) -> None:
        """From here on there is something to keep, whatever ends first."""
        for one in self._inside:
            one.armed = True
        self.armed = True

    @classmethod
    def is_stopping(cls) -> bool:
        """Whether a search was asked to stop and has not ended yet."""
        return any(one.asked for one in tuple(cls._inside))

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._listens = True
            self.asked_s = min((one.asked_s for one in self._inside), default=math.inf)
            self._inside.append(self)
            self._previous = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listens:
            self._listens = False
            self._inside.remove(self)
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]  # what getsignal gave

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        if self.asked or not any(one.armed for one in self._inside):
            raise KeyboardInterrupt
        for one in self._inside:
            one.asked_s = time.monotonic()


class GivenUpError(Exception):
    """Work was given up at its deadline; what was known before is kept."""


@dataclass(eq=False)
class Deadline:
    """When long work ends without a result: after `ends_s` (`time.monotonic`) or once Ctrl-C asks to stop, but only
    while it is `armed`, because something is known without it. `by_clock`: whether time or Ctrl-C has ended any of
    it."""

    ends_s: float = math.inf
    armed: bool = False
    interruption: Interruption = field(default_factory=Interruption)
    by_clock: bool = False

    @property
    def has_passed(self) -> bool:
        """Whether the work is to be given up."""
        return self.armed and (self.interruption.asked or time.monotonic() >= self.ends_s)

    def check(self) -> None:
        """Raises `GivenUpError` if the work is to be given up."""
        if self.has_passed:
            self.by_clock = True
            raise GivenUpError

    @contextlib.contextmanager
    def armed_until(self, ends_s: float) -> Iterator[None]:
        """In this context, work is given up at another time even if nothing is known without it."""
        before = self.ends_s, self.armed
        self.ends_s, self.armed = ends_s, True
        try:
            yield
        finally:
            self.ends_s, self.armed = before

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items of a long loop, each one after a check."""
        for item in items:
            self.check()
            yield item


NEVER: Final = Deadline()
"""The deadline of work that is always finished."""
