"""The progress line of a search on standard error; nothing where that is no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Protocol

from shardplan.units import PS_PER_NS, duration, percent

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_INTERVAL_S = 0.1
_CLEAR = "\r\x1b[2K"


class Standing(Protocol):
    """How far a solve is, in picoseconds or another unit of cost; `best` is infinite until an answer is known."""

    @property
    def best(self) -> float: ...
    @property
    def bound(self) -> float: ...


def picoseconds(cost: float) -> str:
    """`39.1 ms`: the costs of plans."""
    return duration(cost / PS_PER_NS)


class ProgressLine:
    """Context manager; `update` is what the solver calls, as often as it likes. `amount` writes a cost."""

    def __init__(self, stream: IO[str], *, enabled: bool = True, amount: Callable[[float], str] = picoseconds) -> None:
        self._stream = stream
        self._amount = amount
        self._enabled = enabled and stream.isatty()
        self._started = time.monotonic()
        self._shown_at = -math.inf
        self._frame = 0
        self._drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def update(self, standing: Standing) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if not self._enabled or now - self._shown_at < _INTERVAL_S:
            return
        self._shown_at = now
        self._frame = (self._frame + 1) % len(_FRAMES)
        text = progress_text(standing, now - self._started, self._amount)
        self._stream.write(f"{_CLEAR}solving {_FRAMES[self._frame]} {text}")
        self._stream.flush()
        self._drawn = True


def progress_text(standing: Standing, seconds: float, amount: Callable[[float], str] = picoseconds) -> str:
    """`12 s  best 39.1 ms  bound 37.8 ms  gap 3.3 %  Ctrl-C keeps the best`; `seconds` since the start."""
    parts = [f"{seconds:.0f} s"]
    known = math.isfinite(standing.best)
    if known:
        parts.append(f"best {amount(standing.best)}")
    if math.isfinite(standing.bound) and standing.bound > 0:
        parts.append(f"bound {amount(standing.bound)}")
        if known and standing.best > 0:
            parts.append(f"gap {percent(1 - standing.bound / standing.best)}")
    parts.append("Ctrl-C keeps the best" if known else "Ctrl-C stops")
    return "  ".join(parts)
