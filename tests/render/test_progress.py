"""The line that is rewritten while the solver works."""

import io
import re
import signal
import time
from dataclasses import dataclass

import pytest

from shardplan.cli import cli
from shardplan.interruption import Interruption
from shardplan.render.progress import Pace, ProgressLine, Step, fitted, progress_parts, time_left
from shardplan.verbs.session import _read_first

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
        (Standing(float("inf"), 37.8 * PICOSECONDS_PER_MS), "none found yet  bound 37.8 ms  Ctrl-C stops"),
        (
            Standing(39.1 * PICOSECONDS_PER_MS, 37.8 * PICOSECONDS_PER_MS),
            "best 39.1 ms  bound 37.8 ms  gap 3.3 %  Ctrl-C keeps the best",
        ),
    ],
)
def test_text(standing, text):
    assert fitted(progress_parts(standing), 200) == text


def test_what_is_left_of_an_effort_is_said_when_it_can_be_known():
    assert time_left(Effort(2.0, 1.0, 0.01), 10) == ""
    assert time_left(Effort(2.0, 1.0, 0.25), 10) == "about 30 s left"
    assert time_left(Effort(2.0, 1.0, 0.25), 10, left_s=4) == "about 4 s left"
    assert time_left(Effort(2.0, 1.0, 0.25), 10, left_s=40) == "about 30 s left"


@pytest.mark.parametrize(
    ("told", "now_s", "left_s"),
    [
        ([(8, 4, 4)], 10, 6),
        ([(8, 1, 1)], 30, 0),
        ([(8, 1, 3)], 30, 30),
        ([(8, 0, 4)], 10, 0),
        ([(8, 1, 40)], 10, 0),
        ([(8, 4, 4), (9, 4, 2)], 10, 2),
        ([(8, 4, 4), (20, 0, 9), (23, 1, 8)], 24, 23),
        ([(8, 4, 4), (20, 1, 9)], 24, 0),
        ([(40, 1, 9), (42, 2, 8), (44, 3, 7)], 44, 14),
    ],
    ids=["half", "last", "slow", "none", "few", "fewer left", "others", "others begun", "slow start"],
)
def test_things_that_are_left_take_as_long_as_those_that_are_done(told, now_s, left_s):
    """Of things done and left from second 0 on; the current one counts once it takes longer than the others."""
    pace = Pace(0.0)
    for at_s, done, left in told:
        pace = pace.after(Step("", done, left), at_s)
    assert pace.left_s(now_s) == left_s


def test_ctrl_c_keeps_the_best_only_of_what_ends_with_it():
    assert progress_parts(Standing(2.0, 1.0), keeps=False)["keys"] == "Ctrl-C stops"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (88, "best 2 ms  bound 1 ms  gap 50.0 %  about 30 s left  Ctrl-C keeps the best"),
        (60, "best 2 ms  bound 1 ms  gap 50.0 %  about 30 s left"),
        (42, "best 2 ms  gap 50.0 %  about 30 s left"),
        (30, "best 2 ms  gap 50.0 %"),
        (3, ""),
        (-4, ""),
    ],
)
def test_what_matters_least_is_left_out_of_a_narrow_terminal(room, text):
    standing = Standing(2 * PICOSECONDS_PER_MS, PICOSECONDS_PER_MS)
    assert fitted(progress_parts(standing, "about 30 s left"), room) == text


def test_one_line_rewritten_and_cleared():
    """It is drawn although nobody says how far it is."""
    terminal = Terminal()
    with ProgressLine(terminal):
        time.sleep(0.5)
    assert terminal.getvalue().count("reading") >= 2
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert "\n" not in terminal.getvalue()


def test_a_dumb_terminal_gets_no_control_sequences(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with ProgressLine(terminal, after_s=0.0):
        time.sleep(0.05)
    assert "reading" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()
    assert re.search(r"\r +\r$", terminal.getvalue())


def test_after_ctrl_c_it_says_that_it_stops(monkeypatch):
    """Until a search of a large model has ended, or has its first plan, seconds pass."""
    monkeypatch.setattr("shardplan.render.progress.columns_of", lambda _: 60)
    terminal = Terminal()
    with ProgressLine(terminal, doing="solving", after_s=0.0) as progress:
        progress.update(Standing(2.0, 1.0))
        with Interruption(armed=True):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
    assert "stopping; Ctrl-C again aborts" in terminal.getvalue()
    assert "Ctrl-C stops" not in terminal.getvalue()[terminal.getvalue().index("stopping") :]


def test_what_ends_at_once_draws_nothing():
    terminal = Terminal()
    with ProgressLine(terminal) as progress:
        progress.update(Standing(2.0, 1.0))
    assert terminal.getvalue() == ""


def test_a_long_name_leaves_room_for_what_matters(monkeypatch):
    monkeypatch.setattr("shardplan.render.progress.columns_of", lambda _: 44)
    terminal = Terminal()
    with ProgressLine(terminal, doing=f"reading {'x' * 90}.onnx", after_s=0.0):
        time.sleep(0.05)
    (line,) = filter(None, terminal.getvalue().split("\r\x1b[2K"))
    assert line == f"reading {'x' * 13}… ⠋ 0 s  Ctrl-C stops"


@pytest.mark.parametrize(
    ("given", "first"),
    [("diff old.json new.json", "old.json"), ("show -", ""), ("explain a.json b", "a.json"), ("profiles list", "")],
)
def test_what_is_read_first_is_named(given, first):
    context = cli.make_context("shardplan", given.split())
    name, command, arguments = cli.resolve_command(context, given.split())
    assert _read_first(command.make_context(name, arguments)) == first


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
