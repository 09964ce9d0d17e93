"""The line that is rewritten while the solver works."""

import io
from dataclasses import dataclass

import pytest

from shardplan.render.progress import ProgressLine, progress_text

PICOSECONDS_PER_MS = 1e9


@dataclass
class Standing:
    best: float
    bound: float


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


def test_one_line_rewritten_and_cleared():
    terminal = Terminal()
    with ProgressLine(terminal) as progress:
        progress.update(Standing(float("inf"), float("-inf")))
        progress.update(Standing(float("inf"), float("-inf")))
    assert terminal.getvalue().count("solving") == 1
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert "\n" not in terminal.getvalue()


@pytest.mark.parametrize(("stream", "enabled"), [(io.StringIO(), True), (Terminal(), False)])
def test_silent_in_a_pipe_and_when_told_so(stream, enabled):
    with ProgressLine(stream, enabled=enabled) as progress:
        progress.update(Standing(2.0, 1.0))
    assert stream.getvalue() == ""
