"""The line that is rewritten while the solver works."""

import io
import time
from dataclasses import dataclass

import pytest

from shardplan.render.progress import ProgressLine, Step, fitted, progress_parts

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
    ("standing", "text"),
    [
        (Standing(float("inf"), float("-inf")), "Ctrl-C stops"),
        (Standing(float("inf"), 37.8 * PICOSECONDS_PER_MS), "bound 37.8 ms  Ctrl-C stops"),
        (
            Standing(39.1 * PICOSECONDS_PER_MS, 37.8 * PICOSECONDS_PER_MS),
            "best 39.1 ms  bound 37.8 ms  gap 3.3 %  Ctrl-C keeps the best",
        ),
    ],
)
def test_text(standing, text):
    assert fitted(progress_parts(standing, 10), 200) == text


def test_what_is_left_of_an_effort_is_said_when_it_can_be_known():
    assert "left" not in progress_parts(Effort(2.0, 1.0, 0.01), 10)
    assert progress_parts(Effort(2.0, 1.0, 0.25), 10)["left"] == "at most 30 s more"


@pytest.mark.parametrize(
    ("done", "counted_s", "text"),
    [
        (0.5, 8.0, "half  about 6 s more  Ctrl-C stops"),
        (0.5, 5.0, "half  Ctrl-C stops"),
        (0.0, 0.0, "half  Ctrl-C stops"),
        (1.0, 9.0, "half  Ctrl-C stops"),
    ],
)
def test_things_that_are_left_take_as_long_as_those_that_are_done(done, counted_s, text):
    """After 10 s: what took longer than was thought has no time left that could be said."""
    assert fitted(progress_parts(Step("half", done), 10, counted_s=counted_s), 200) == text


def test_ctrl_c_keeps_the_best_only_of_what_ends_with_it():
    assert progress_parts(Standing(2.0, 1.0), 10, keeps=False)["keys"] == "Ctrl-C stops"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (88, "best 2 ms  bound 1 ms  gap 50.0 %  at most 30 s more  Ctrl-C keeps the best"),
        (60, "best 2 ms  bound 1 ms  gap 50.0 %  at most 30 s more"),
        (42, "best 2 ms  gap 50.0 %  at most 30 s more"),
        (30, "best 2 ms  gap 50.0 %"),
        (3, ""),
        (-4, ""),
    ],
)
def test_what_matters_least_is_left_out_of_a_narrow_terminal(room, text):
    standing = Effort(2 * PICOSECONDS_PER_MS, PICOSECONDS_PER_MS, 0.25)
    assert fitted(progress_parts(standing, 10), room) == text


def test_one_line_rewritten_and_cleared():
    """It is drawn although nobody says how far it is."""
    terminal = Terminal()
    with ProgressLine(terminal):
        time.sleep(0.5)
    assert terminal.getvalue().count("reading") >= 2
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


def test_what_is_printed_meanwhile_is_not_mixed_with_the_line():
    """The line is gone when the text comes, and back after it, with what is done by then."""
    terminal = Terminal()
    with ProgressLine(terminal) as progress:
        time.sleep(0.35)
        with progress.hidden():
            terminal.write("said\n")
            time.sleep(0.3)
        progress.begin("solving")
        time.sleep(0.3)
    before, after = terminal.getvalue().split("said\n")
    assert before.endswith("\r\x1b[2K")
    assert "reading" in before
    assert "solving" not in before
    assert "solving" in after
