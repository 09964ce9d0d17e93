"""Worker processes: a function of shared data and an item, run for many items on this machine.

The data is sent to every worker once. A worker ends with the process that started it, however that ends, and when
nobody asks for more results; Ctrl-C is for the process that asked, not for its workers.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

from shardplan.errors import ShardplanError, error

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Shared, Item], Result], shared: Shared, items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """`function(shared, item)` for every item, as they are done; in this process where that is as good.

    `function` is one of a module, and all data can be pickled. Raises `ShardplanError` (`lost-worker`) where a worker
    is ended from outside, as Linux does with the largest process when memory runs out.
    """
    if processes < 2 or len(items) < 2:
        yield from (function(shared, item) for item in items)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_Worker.begin, initargs=(function, shared))
    try:
        for future in as_completed([pool.submit(_Worker.run, item) for item in items]):
            yield future.result()
    except BrokenProcessPool:
        summary = "a process that works for this one was ended from outside, most often because memory ran out"
        hint = "fewer of them run where fewer processors are: taskset -c 0,1 shardplan ..."
        raise ShardplanError(error("lost-worker", summary, hint=hint)) from None
    except BaseException:  # Ctrl-C, or nobody asks for more: what is begun may take minutes
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def processors() -> int:
    """Of this machine, those that this process may use: `taskset` and containers leave it fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """In a worker process: the function and the data that it was given when it began."""

    call: Callable[[Any], Any]

    @classmethod
    def begin(cls, function: Callable[[Any, Any], Any], shared: Any) -> None:
        """Keep both, and end when the parent process does."""
        if hasattr(os, "setpgrp"):  # Ctrl-C is for the process that asked: half a search is no result
            os.setpgrp()
        if (parent := multiprocessing.parent_process()) is not None:
            threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
        cls.call = staticmethod(lambda item: function(shared, item))

    @classmethod
    def run(cls, item: Any) -> Any:
        """The result for one item."""
        return cls.call(item)


def _end_with(parent: int) -> None:
    wait([parent])
    os._exit(1)
