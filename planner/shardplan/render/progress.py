"""The progress line of a search on standard error; nothing where that is no terminal."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol

from shardplan.units import PS_PER_NS, duration, percent

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_INTERVAL_S, _FIRST_S = 0.1, 0.2
"""Seconds between two lines; the first comes so long after the start, as a short search needs none."""
_CLEAR = "\r\x1b[2K"
_LEAST_SHARE = 0.05
"""Of an effort: before that nobody knows how long the rest takes."""


class Standing(Protocol):
    """How far a solve is, in picoseconds or another unit of cost; `best` is infinite until an answer is known. Some say
    what share of their `effort` is spent, and what they are `doing`."""

    @property
    def best(self) -> float: ...
    @property
    def bound(self) -> float: ...


def picoseconds(cost: float) -> str:
    """`39.1 ms`: the costs of plans."""
    return duration(cost / PS_PER_NS)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Before anything is known."""

    best: float = math.inf
    bound: float = -math.inf


class ProgressLine:
    """Context manager; `update` is what the solver calls, as often as it likes. `amount` writes a cost; `doing` says
    what takes so long.

    The line is drawn by a thread of its own: what takes long before the solver says anything is seen to go on.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        enabled: bool = True,
        amount: Callable[[float], str] = picoseconds,
        doing: str = "solving",
    ) -> None:
        self._stream = stream
        self._amount, self._doing = amount, doing
        self._enabled = enabled and stream.isatty()
        self._started = time.monotonic()
        self._standing: Standing = _Unknown()
        self._ended = threading.Event()
        self._drawer = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        if self._enabled:
            self._drawer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._ended.set()
            self._drawer.join()

    def update(self, standing: Standing) -> None:
        """What the next line says."""
        self._standing = standing

    def _draw(self) -> None:
        drawn, wait = 0, _FIRST_S
        while not self._ended.wait(wait):
            begun = f"{self._doing} {_FRAMES[drawn % len(_FRAMES)]} "
            room = _columns(self._stream) - len(begun) - 1
            text = progress_text(self._standing, time.monotonic() - self._started, self._amount, room)
            self._stream.write(f"{_CLEAR}{begun}{text}")
            self._stream.flush()
            drawn, wait = drawn + 1, _INTERVAL_S
        if drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()


def _columns(stream: IO[str]) -> int:
    """Of the terminal that a stream is; as many as it takes where nobody knows."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or sys.maxsize
    except (OSError, ValueError):
        return sys.maxsize


def progress_text(
    standing: Standing, seconds: float, amount: Callable[[float], str] = picoseconds, room: int = sys.maxsize
) -> str:
    """`12 s  best 39.1 ms  bound 37.8 ms  gap 3.3 %  searching all plans  at most 20 s more  Ctrl-C keeps the best`;
    `seconds` since the start, and what is left of the effort at the same pace. In less `room` (columns) than that, what
    matters least is left out: a line that is folded cannot be rewritten."""
    parts = {"time": f"{seconds:.0f} s"}
    known = math.isfinite(standing.best)
    if known:
        parts["best"] = f"best {amount(standing.best)}"
    if math.isfinite(standing.bound) and standing.bound > 0:
        parts["bound"] = f"bound {amount(standing.bound)}"
        if known and standing.best > 0:
            parts["gap"] = f"gap {percent(1 - standing.bound / standing.best)}"
    if doing := getattr(standing, "doing", ""):
        parts["doing"] = doing
    share = getattr(standing, "effort", 0.0)
    if share >= _LEAST_SHARE:
        parts["left"] = f"at most {seconds * (1 - share) / share:.0f} s more"
    parts["keys"] = "Ctrl-C keeps the best" if known else "Ctrl-C stops"
    for least in ("bound", "keys", "doing", "left", "gap", "best"):
        if len("  ".join(parts.values())) <= room:
            break
        parts.pop(least, None)
    return "  ".join(parts.values())[: max(0, room)]
