"""The line that is rewritten while the solver works."""

import io
import time
from dataclasses import dataclass

import pytest

from shardplan.render.progress import ProgressLine, progress_text

PICOSECONDS_PER_MS = 1e9


@dataclass
class Standing:
    best: float
    bound: float


@dataclass
class Effort(Standing):
    effort: float


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "standing", "text"),
    [
        (0.4, Standing(float("inf"), float("-inf")), "0 s  Ctrl-C stops"),
        (3, Standing(float("inf"), 37.8 * PICOSECONDS_PER_MS), "3 s  bound 37.8 ms  Ctrl-C stops"),
        (
            12,
            Standing(39.1 * PICOSECONDS_PER_MS, 37.8 * PICOSECONDS_PER_MS),
            "12 s  best 39.1 ms  bound 37.8 ms  gap 3.3 %  Ctrl-C keeps the best",
        ),
    ],
)
def test_text(seconds, standing, text):
    assert progress_text(standing, seconds) == text


def test_what_is_left_of_an_effort_is_said_when_it_can_be_known():
    assert "more" not in progress_text(Effort(2.0, 1.0, 0.01), 10)
    assert "at most 30 s more" in progress_text(Effort(2.0, 1.0, 0.25), 10)


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (88, "10 s  best 2 ms  bound 1 ms  gap 50.0 %  at most 30 s more  Ctrl-C keeps the best"),
        (80, "10 s  best 2 ms  gap 50.0 %  at most 30 s more  Ctrl-C keeps the best"),
        (48, "10 s  best 2 ms  gap 50.0 %  at most 30 s more"),
        (30, "10 s  best 2 ms  gap 50.0 %"),
        (3, "10 "),
        (-4, ""),
    ],
)
def test_what_matters_least_is_left_out_of_a_narrow_terminal(room, text):
    standing = Effort(2 * PICOSECONDS_PER_MS, PICOSECONDS_PER_MS, 0.25)
    assert progress_text(standing, 10, room=room) == text


def test_one_line_rewritten_and_cleared():
    """It is drawn although nobody says how far it is."""
    terminal = Terminal()
    with ProgressLine(terminal):
        time.sleep(0.5)
    assert terminal.getvalue().count("solving") >= 2
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert "\n" not in terminal.getvalue()


def test_what_ends_at_once_draws_nothing():
    terminal = Terminal()
    with ProgressLine(terminal) as progress:
        progress.update(Standing(2.0, 1.0))
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_silent_in_a_pipe_and_when_told_so(stream, enabled):
    with ProgressLine(stream, enabled=enabled) as progress:
        progress.update(Standing(2.0, 1.0))
        time.sleep(0.3)
    assert stream.getvalue() == ""
