"""The progress line of a command on standard error; none if that is not a terminal."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import IO, Protocol

from shardplan.interruption import Interruption
from shardplan.text_lines import columns_of
from shardplan.units import PS_PER_NS, duration, percent

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_INTERVAL_S, FIRST_S = 0.1, 0.2
"""Seconds between two lines; the first comes so long after the process began, as what is short needs none."""
_CLEAR = "\r\x1b[2K"
_LEAST_SHARE = 0.05
"""Of an effort: before that nobody knows how long the rest takes."""


class Standing(Protocol):
    """The progress of a search, in picoseconds or another unit of cost; `best` is infinite until there is an answer.
    Optional: the share of the `effort` that is spent, the numbers of things `done` and at most `left`, and the current
    activity (`doing`)."""

    @property
    def best(self) -> float: ...
    @property
    def bound(self) -> float: ...


def picoseconds(cost: float) -> str:
    """`39.1 ms`: the costs of plans."""
    return duration(cost / PS_PER_NS)


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of a task without a lower bound: the activity, how much of it is done and left, and the
    best so far."""

    doing: str = ""
    done: float = 0.0
    left: float = 0.0
    best: float = math.inf
    bound: float = -math.inf


class ProgressLine:
    """Context manager; `update` is what a solver calls, as often as it likes; `begin` says what is done from here on.
    Whoever prints on the same terminal does so while the line is `hidden`.

    The line is drawn by a thread of its own: what takes long before anybody says anything is seen to go on.
    """

    def __init__(
        self, stream: IO[str], *, enabled: bool = True, doing: str = "reading", after_s: float = FIRST_S
    ) -> None:
        self._stream, self._doing = stream, doing
        self._amount: Callable[[float], str] = picoseconds
        self._after_s, self._enabled = after_s, enabled and stream.isatty()
        self._started = self._begun = time.monotonic()
        self._standing: Standing = Step()
        self._pace = Pace(self._begun)
        self._keeps, self._drawn, self._frame = False, "", 0
        self._obeys = os.environ.get("TERM") != "dumb"
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
        self._pace = Pace(self._begun)
        self._amount, self._keeps = amount, keeps
        return self.update

    def update(self, standing: Standing) -> None:
        """What the next line says."""
        self._pace = self._pace.after(standing, time.monotonic())
        self._standing = standing

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Nothing is drawn meanwhile."""
        with self._drawing:
            self._clear()
            yield

    def _draw(self) -> None:
        wait = self._after_s
        while not self._ended.wait(wait):
            with self._drawing:
                columns = columns_of(self._stream)
                begun = f"{shortened(self._doing, columns // 2)} {_FRAMES[self._frame % len(_FRAMES)]} "
                now = time.monotonic()
                left = time_left(self._standing, now - self._begun, self._pace.left_s(now))
                parts = progress_parts(self._standing, left, self._amount, keeps=self._keeps)
                if Interruption.is_stopping():
                    parts = {"stopping": "stopping; Ctrl-C again aborts", **parts}
                    del parts["keys"]
                room = columns - len(begun) - 1
                text = fitted({"time": f"{now - self._started:.0f} s", **parts}, room)
                self._stream.write(f"{self._clearing()}{begun}{text}")
                self._stream.flush()
                self._drawn, self._frame, wait = f"{begun}{text}", self._frame + 1, _INTERVAL_S

    def _clearing(self) -> str:
        """What empties the line; a terminal without control sequences gets blanks over what was drawn."""
        return _CLEAR if self._obeys else f"\r{' ' * len(self._drawn)}\r"

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(self._clearing())
            self._stream.flush()
            self._drawn = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of counted things: `done` of them by `counted_s` (`time.monotonic`), when at most `left` were to come;
    `before` of them by `began_s`: work that is done once for all does not count."""

    began_s: float
    counted_s: float = 0.0
    done: float = 0.0
    left: float = 0.0
    before: float = 0.0

    def after(self, standing: Standing, now_s: float) -> Pace:
        """The same with what a standing says; where less is done than before, others have begun."""
        done, left = getattr(standing, "done", 0.0), getattr(standing, "left", 0.0)
        if done < self.done:
            return Pace(now_s, now_s, done, left, done)
        if self.counted_s > self.began_s and not self.before and done > self.done:  # the second one
            return Pace(self.counted_s, now_s, done, left, self.done)
        return replace(self, counted_s=now_s if done > self.done else self.counted_s, done=done, left=left)

    def left_s(self, now_s: float) -> float:
        """Seconds for what is left at this pace, 0 if unknown; the current thing takes at least as long as it has taken
        so far."""
        if self.done <= self.before or self.done < _LEAST_SHARE * (self.done + self.left):
            return 0.0
        counted = self.done - self.before
        each_s = max((self.counted_s - self.began_s) / counted, (now_s - self.began_s) / (counted + 1.0))
        return max(each_s * self.left - (now_s - self.counted_s), each_s * (self.left - 1.0))


def time_left(standing: Standing, seconds: float, left_s: float = 0.0) -> str:
    """`about 20 s left`, `` where that cannot be known: what is left of the effort at the pace of the `seconds` since
    it began, or of things that are counted (`left_s`), whatever ends first."""
    share = getattr(standing, "effort", 0.0)
    ends_s = [seconds * (1 - share) / share] if share >= _LEAST_SHARE else []
    ends_s += [left_s] if left_s >= 1.0 else []
    return f"about {min(ends_s):.0f} s left" if ends_s else ""


def progress_parts(
    standing: Standing, left: str = "", amount: Callable[[float], str] = picoseconds, *, keeps: bool = True
) -> dict[str, str]:
    """`best 39.1 ms` (`none found yet` where a bound is known), `bound 37.8 ms`, `gap 3.3 %`, `searching all plans`,
    what is `left`, `Ctrl-C keeps the best`. `keeps`: Ctrl-C does."""
    parts = {}
    known = math.isfinite(standing.best)
    if known:
        parts["best"] = f"best {amount(standing.best)}"
    if math.isfinite(standing.bound) and standing.bound > 0:
        parts["bound"] = f"bound {amount(standing.bound)}"
        if known and standing.best > 0:
            parts["gap"] = f"gap {percent(1 - standing.bound / standing.best)}"
        if not known:
            parts = {"best": "none found yet", **parts}
    if doing := getattr(standing, "doing", ""):
        parts["doing"] = doing
    if left:
        parts["left"] = left
    parts["keys"] = "Ctrl-C keeps the best" if known and keeps else "Ctrl-C stops"
    return parts


def shortened(text: str, columns: int) -> str:
    """`reading a-very-long-na…`: the text in so many columns."""
    return text if len(text) <= columns else f"{text[: max(0, columns - 1)]}…"


def fitted(parts: Mapping[str, str], room: int) -> str:
    """The parts in one line. If they take more than `room` columns, the least important are left out: a line that is
    folded cannot be rewritten."""
    kept = dict(parts)
    for least in ("keys", "doing", "bound", "left", "gap", "best"):
        if len("  ".join(kept.values())) <= room:
            break
        kept.pop(least, None)
    return "  ".join(kept.values())[: max(0, room)]
