"""Deadlines for long calls that cannot be stopped: HiGHS does not check limits while it reads a model or presolves.

Such a call runs in its own thread, so that Ctrl-C and the time limit take effect in the meantime. If it does not end
soon after, it is abandoned, and nothing that it uses may be touched any more. Python waits for the thread at exit,
since a thread that returns from HiGHS into a finalised interpreter aborts the process; the command line exits without
that finalisation and does not wait.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from shardplan.solve.budget import Budget
from shardplan.solve.constants import GRACE_SECONDS, TICK_SECONDS

Result = TypeVar("Result")
_abandoned: list[threading.Thread] = []


class AbandonedError(Exception):
    """The call went on for too long after the budget had ended."""


def within_deadline(call: Callable[[], Result], budget: Budget, seconds: float = float("inf")) -> Result:
    """Returns what `call` returns and raises what it raises. Raises `AbandonedError` if it does not end soon after the
    budget, or after `seconds`."""
    results: list[Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as failure:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    over = time.monotonic() + seconds
    ended: float | None = None
    while thread.is_alive():
        thread.join(TICK_SECONDS)
        if budget.interrupted or budget.seconds_left <= 0 or time.monotonic() >= over:
            ended = time.monotonic() if ended is None else ended
            if thread.is_alive() and time.monotonic() - ended > GRACE_SECONDS:
                _abandoned.append(thread)
                raise AbandonedError
    if failures:
        raise failures[0]
    return results[0]


@atexit.register
def _linger() -> None:
    for thread in _abandoned:
        thread.join()
