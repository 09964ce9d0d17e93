"""The progress line of a command on standard error; nothing where that is no terminal."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol

from shardplan.text_lines import columns_of
from shardplan.units import PS_PER_NS, duration, percent

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_INTERVAL_S, _FIRST_S = 0.1, 0.15
"""Seconds between two lines; the first comes so long after the start, as what is short needs none."""
_CLEAR = "\r\x1b[2K"
_LEAST_SHARE = 0.05
"""Of an effort: before that nobody knows how long the rest takes."""


class Standing(Protocol):
    """How far something is, in picoseconds or another unit of cost; `best` is infinite until an answer is known. Some
    say what share of their `effort` is spent, what share of things is `done`, and what they are `doing`."""

    @property
    def best(self) -> float: ...
    @property
    def bound(self) -> float: ...


def picoseconds(cost: float) -> str:
    """`39.1 ms`: the costs of plans."""
    return duration(cost / PS_PER_NS)


@dataclass(frozen=True, slots=True)
class Step:
    """Something that has no lower bound: what is being done, what `share` of it is done, and the best so far."""

    doing: str = ""
    done: float = 0.0
    best: float = math.inf
    bound: float = -math.inf


class ProgressLine:
    """Context manager; `update` is what a solver calls, as often as it likes; `begin` says what is done from here on.
    Whoever prints on the same terminal does so while the line is `hidden`.

    The line is drawn by a thread of its own: what takes long before anybody says anything is seen to go on.
    """

    def __init__(self, stream: IO[str], *, enabled: bool = True, doing: str = "reading") -> None:
        self._stream, self._doing = stream, doing
        self._amount: Callable[[float], str] = picoseconds
        self._enabled = enabled and stream.isatty()
        self._started = self._begun = time.monotonic()
        self._standing: Standing = Step()
        self._counted_s = 0.0
        self._keeps, self._drawn, self._frame = False, False, 0
        self._ended, self._drawing = threading.Event(), threading.RLock()
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
            self._clear()

    def begin(
        self, doing: str, amount: Callable[[float], str] = picoseconds, *, keeps: bool = False
    ) -> Callable[[Standing], None]:
        """Say from here on that this is done, `solving`; what comes back is called with how far it is. `amount` writes
        a cost; `keeps`: Ctrl-C ends it with the best so far."""
        self._standing, self._doing, self._begun = Step(), doing, time.monotonic()
        self._amount, self._keeps = amount, keeps
        return self.update

    def update(self, standing: Standing) -> None:
        """What the next line says."""
        if getattr(standing, "done", 0.0) != getattr(self._standing, "done", 0.0):
            self._counted_s = time.monotonic() - self._begun
        self._standing = standing

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Nothing is drawn meanwhile."""
        with self._drawing:
            self._clear()
            yield

    def _draw(self) -> None:
        wait = _FIRST_S
        while not self._ended.wait(wait):
            with self._drawing:
                begun = f"{self._doing} {_FRAMES[self._frame % len(_FRAMES)]} "
                now = time.monotonic()
                parts = progress_parts(
                    self._standing, now - self._begun, self._amount, keeps=self._keeps, counted_s=self._counted_s
                )
                room = columns_of(self._stream) - len(begun) - 1
                text = fitted({"time": f"{now - self._started:.0f} s", **parts}, room)
                self._stream.write(f"{_CLEAR}{begun}{text}")
                self._stream.flush()
                self._drawn, self._frame, wait = True, self._frame + 1, _INTERVAL_S

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False


def progress_parts(
    standing: Standing,
    seconds: float,
    amount: Callable[[float], str] = picoseconds,
    *,
    keeps: bool = True,
    counted_s: float = 0.0,
) -> dict[str, str]:
    """`best 39.1 ms`, `bound 37.8 ms`, `gap 3.3 %`, `searching all plans`, `at most 20 s more`, `Ctrl-C keeps the
    best`: `seconds` since it began, and what is left of the effort at the same pace. `keeps`: Ctrl-C does; `counted_s`:
    seconds after which as many things were done."""
    parts = {}
    known = math.isfinite(standing.best)
    if known:
        parts["best"] = f"best {amount(standing.best)}"
    if math.isfinite(standing.bound) and standing.bound > 0:
        parts["bound"] = f"bound {amount(standing.bound)}"
        if known and standing.best > 0:
            parts["gap"] = f"gap {percent(1 - standing.bound / standing.best)}"
    if doing := getattr(standing, "doing", ""):
        parts["doing"] = doing
    share, done = getattr(standing, "effort", 0.0), getattr(standing, "done", 0.0)
    if share >= _LEAST_SHARE:
        parts["left"] = f"at most {seconds * (1 - share) / share:.0f} s more"
    elif 0.0 < done < 1.0 and (left_s := counted_s / done - seconds) >= 1.0:
        parts["left"] = f"about {left_s:.0f} s more"
    parts["keys"] = "Ctrl-C keeps the best" if known and keeps else "Ctrl-C stops"
    return parts


def fitted(parts: Mapping[str, str], room: int) -> str:
    """The parts in one line. In less `room` (columns) than they take, what matters least is left out: a line that is
    folded cannot be rewritten."""
    kept = dict(parts)
    for least in ("keys", "doing", "bound", "left", "gap", "best"):
        if len("  ".join(kept.values())) <= room:
            break
        kept.pop(least, None)
    return "  ".join(kept.values())[: max(0, room)]
