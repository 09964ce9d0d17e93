"""Robust standard output and standard error: closed, without a reader, or with an encoding that lacks characters."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from types import FrameType
from typing import Any, TextIO

DEGRADE = "shardplan.degrade"
"""Error handler of encodings: characters that there are none of are written with those of ASCII."""
_PLAIN = {
    "→": "->", "←": "<-", "×": "x", "±": "+-", "≤": "<=", "≥": ">=", "·": "*", "µ": "u", "…": "...", "–": "-", "—": "-",
    "−": "-", "▒": "=", "░": ".",
    "│": "|", "└": "+", "─": "-", "┌": "+", "┐": "+", "┘": "+", "├": "+", "┤": "+", "█": "#", "•": "*", "━": "-",
    **dict(zip("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\|/-\\|/", strict=True)),
}  # fmt: skip


def _degraded(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    text = problem.object[problem.start : problem.end]
    return "".join(_PLAIN.get(character, "?") for character in text), problem.end


codecs.register_error(DEGRADE, _degraded)


def discard(stream: TextIO) -> None:
    """Nobody reads `stream` on: what is still buffered and what is written from now on goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Unheard:
    """A stream for people that may be gone: the answer does not depend on who listens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of the stream; nothing where it fails."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            discard(self._stream)
            return len(text)

    def flush(self) -> None:
        """As `write`."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            discard(self._stream)


def prepare() -> None:
    """Make both streams writable in any case, and SIGTERM what Ctrl-C is. Of the process, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before we began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            whole = _buffered(stream)
            whole.reconfigure(errors=DEGRADE)
            setattr(sys, name, whole)
    sys.stderr = Unheard(sys.stderr)
    signal.signal(signal.SIGTERM, _as_interrupt)


def _buffered(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, written line by line where Python was told not to buffer (`-u`): it would lose, without a word,
    what a disk that is nearly full takes no more."""
    raw, encoding = stream.buffer, stream.encoding
    if not isinstance(raw, io.RawIOBase):
        return stream
    stream.detach()  # or it would close the file when it goes
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=True)


def _as_interrupt(_: int, frame: FrameType | None) -> None:
    """Whoever handles Ctrl-C at this moment handles SIGTERM."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
