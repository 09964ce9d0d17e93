"""Ctrl-C while there is a result to keep: the first one asks the search to stop, the second one ends the command."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final


class Interruption:
    """Context manager that hears Ctrl-C.

    While it is `armed`, because there is something to keep, the first Ctrl-C sets `asked` and the next one raises
    `KeyboardInterrupt`. Until then Ctrl-C is for the context around it, or raises. Contexts nest: what an inner one is
    asked, the outer ones are asked too, and what is worth keeping inside is worth keeping outside. In other threads
    than the main one it hears nothing.
    """

    _inside: Final[list[Interruption]] = []
    """Those that are entered, outermost first."""

    def __init__(self, *, armed: bool = False) -> None:
        self.armed, self.asked = armed, False
        self._previous: object = None
        self._listens = False

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
            self.asked = any(one.asked for one in self._inside)
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
            one.asked = True
