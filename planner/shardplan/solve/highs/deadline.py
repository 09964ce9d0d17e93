"""Calls that may take long and cannot be stopped: HiGHS looks up neither while it reads a model nor while it presolves.

Such a call runs in a thread of its own, so that Ctrl-C and the time limit are heard in the meantime. Where it does not
end soon after, it is left to itself: nothing that it has may be touched any more. At its end Python waits for it, as
a thread that comes back from HiGHS to a Python that is no more aborts the process; the command line does not wait, and
leaves without that end.
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
    """What `call` returns or raises. Raises `AbandonedError` when it does not end soon after the budget, or after so
    many seconds."""
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
