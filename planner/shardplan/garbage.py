"""Tuning of Python's garbage collector: plans are many objects, few of which form cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

FEW_COLLECTIONS = (100_000, 50, 50)
"""Thresholds of the collector: with Python's own, looking for cycles takes a tenth to a quarter of a search."""


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Meanwhile the collector runs seldom, unless it runs still less often anyway; its thresholds come back."""
    before = gc.get_threshold()
    if before[0]:  # 0: it is off
        gc.set_threshold(*map(max, before, FEW_COLLECTIONS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
