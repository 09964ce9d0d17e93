"""What verbs say on a terminal while they work, on a pseudo-terminal of 80 columns."""

import os
import pty
import re
import sys
import termios
from pathlib import Path

import pytest

from shardplan.cli import main

ROOT = Path(__file__).parents[2]
MODEL = "transformer:layers=1,hidden=512,heads=8,vocab=4096,seq=512,batch=16"
COLUMNS = 80
FRAME = re.compile(r"\r\x1b\[2K([^\r\x1b]+)")


def on_a_terminal(*arguments: str) -> tuple[list[str], str]:
    """The lines of progress that a command draws, and everything that it writes."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, str(ROOT / "cli.py"), *arguments])
    termios.tcsetwinsize(terminal, (24, COLUMNS))
    written = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the end of a pseudo-terminal on Linux
            break
        if not part:
            break
        written += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, written.decode()
    text = written.decode()
    return FRAME.findall(text), text


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (("solve", MODEL, "--mesh", "4x4", "-o"), r"^(solving|trying)"),
        (("compare", MODEL, "--mesh", "1x4"), r"^comparing .* \(\d of \d\)"),
        (("sweep", MODEL, "--mesh", "2x4,2x2"), r"^planning .* \d of 2 done"),
        (("price", MODEL.replace("layers=1", "layers=8"), "--tp", "4"), r"^pricing .* \(\d of 2\)"),
    ],
)
def test_what_lasts_says_what_it_does_in_one_line(verb, said, tmp_path):
    """Lines fit the terminal, and the last one is gone in the end."""
    verb = (*verb, str(tmp_path / "one.plan.json")) if verb[-1] == "-o" else verb
    lines, text = on_a_terminal(*verb)
    assert any(re.search(said, line) for line in lines), lines
    assert all(len(line) < COLUMNS for line in lines)
    assert any("best " in line and "gap " in line for line in lines) or verb[0] in ("sweep", "price")
    assert "\r\x1b[2K" in text[text.rindex(lines[-1]) :]


def test_a_plan_that_runs_says_how_far_it_is(tmp_path):
    model, plan = "transformer:layers=4,hidden=64,heads=4,vocab=256,seq=64,batch=8", str(tmp_path / "p.json")
    assert main(["solve", model, "--mesh", "1x2", "--effort", "quick", "-q", "-o", plan]) == 0
    lines, _ = on_a_terminal("verify", model, plan)
    told = [re.search(r"^running . \d+ s  (\d+) of (\d+) instructions", line) for line in lines]
    assert len({found[1] for found in told if found}) > 1, lines
    assert len({found[2] for found in told if found}) == 1
