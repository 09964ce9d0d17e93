"""One command run in this process on an input that anybody may have made, and what any answer must be like."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardplan.cli import main

CPU_SECONDS = 10
ANSWERS = {0, 1, 2, 3, 4}
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class TooLongError(BaseException):
    """Not caught by anybody on the way."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends what takes more processor time than `seconds`."""

    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True)
class Answer:
    """`fault`: what is wrong with it, `""` where nothing is. `seconds`: of the processor."""

    code: int
    out: str
    said: str
    seconds: float
    fault: str = ""


def answer(command: Sequence[str], seconds: float = CPU_SECONDS) -> Answer:
    """What `shardplan COMMAND` answers, judged."""
    out, said = io.StringIO(), io.StringIO()
    started = time.process_time()
    try:
        with limited(seconds), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = main([*command, "-v"] if "-v" not in command else command)
    except TooLongError:
        return Answer(-1, out.getvalue(), said.getvalue(), seconds, "it takes too long")
    found = Answer(code, out.getvalue(), said.getvalue(), time.process_time() - started)
    return Answer(found.code, found.out, found.said, found.seconds, _fault(command, found))


def _fault(command: Sequence[str], found: Answer) -> str:
    if found.code not in ANSWERS:
        return f"exit {found.code}"
    if "Traceback" in found.said:
        return "a traceback"
    said = re.search(r"error\[|^Error: |^error: ", found.said, re.MULTILINE)
    said = said or re.search("proven infeasible|without a plan:", found.out)
    if found.code > 1 and not said:
        return f"exit {found.code} without a word"
    if hidden := _OBEYED.search(found.out + found.said):
        return f"it prints {hidden[0]!r}"
    expected = 1 if "github" in command and found.code < 2 else 0
    if sum(line.lstrip().startswith("::") for line in (found.out + "\n" + found.said).splitlines()) > expected:
        return "it prints a line that CI obeys"
    return _unreadable(command, found)


def _unreadable(command: Sequence[str], found: Answer) -> str:
    """Documents are documents whatever they say."""
    try:
        if "--json" in command:
            json.loads(found.out, parse_constant=_refuse)
        if "graphml" in command and found.code == 0:
            ET.fromstring(found.out)
    except (ValueError, ET.ParseError) as problem:
        return f"its document cannot be read: {problem}"
    return ""


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
