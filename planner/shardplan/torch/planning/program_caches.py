"""Caches of a program (`functools.cache`), which an export would leave full of tensors without values."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

_KIND = type(functools.cache(lambda: None))
_LIBRARY = "torch"


@contextlib.contextmanager
def kept_out_of_caches() -> Iterator[None]:
    """Context: functions of the program that keep their results have kept none of these when it ends."""
    before = {id(each): (each, each.cache_info().currsize) for each in _caches()}
    try:
        yield
    finally:
        for each in _caches():
            _, size = before.get(id(each), (each, 0))
            if each.cache_info().currsize > size:
                each.cache_clear()


def _caches() -> list[Any]:
    """All functions with a cache but torch's."""
    found = [each for each in gc.get_objects() if type(each) is _KIND]
    return [each for each in found if str(each.__module__).partition(".")[0] != _LIBRARY]
