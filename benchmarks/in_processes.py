"""Parts of a benchmark in processes of their own, printed in their order."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardplan.processes import processors

Part = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that prints, and what it is called with."""


def printed(parts: Sequence[Part], processes: int | None = None) -> Iterator[tuple[Any, float]]:
    """The result of every part and its seconds of CPU, once its lines and those of all parts before it are printed.
    `processes`: as many as the machine has processors where it is not given."""
    with multiprocessing.get_context("fork").Pool(processes or processors()) as pool:
        for text, result, seconds in pool.imap(_run, parts):
            print(text, end="", flush=True)
            yield result, seconds


def _run(part: Part) -> tuple[str, Any, float]:
    function, given = part
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        result = function(*given)
    return lines.getvalue(), result, time.process_time() - begun
