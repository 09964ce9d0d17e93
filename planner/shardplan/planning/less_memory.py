"""Candidates under tighter memory limits than the one that is asked for, which they keep too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardplan.planning.constants import (
    AVERAGES,
    LESS_MEMORY_WORK,
    LESS_TIGHT_LIMIT,
    TIGHTER_GAP,
    TIGHTER_LIMIT,
    TIGHTER_SHARES,
)
from shardplan.planning.questions import about, better_of
from shardplan.planning.search import Found, Questions, Search

TIGHTER: Final = AVERAGES["quick"] * len(TIGHTER_SHARES)
"""Upper bound on the plain problems of `at_tighter_limits`."""


def under_less_memory(search: Search, found: Found) -> Questions[Found]:
    """The best plan at the best multipliers under a tighter memory limit, if memory is scarce: it keeps the real limit
    too, and is a starting point in another part of the search space."""
    if not found.candidate.is_tight(search.limit_bytes, TIGHTER_LIMIT):
        return found
    question = replace(about(found, found.linear), equal_layers=True)
    for share in (TIGHTER_LIMIT, LESS_TIGHT_LIMIT):
        tighter = int(share * search.limit_bytes)
        before_s = found.candidate.step_s
        found, _ = yield from better_of(search, found, replace(question, limit_bytes=tighter))
        if found.candidate.step_s < before_s:
            break
    return found


def is_unproven_under_limit(found: Found) -> bool:
    """Whether a memory limit leaves a large gap."""
    return found.limit_bytes is not None and found.gap > TIGHTER_GAP


def at_tighter_limits(search: Search, found: Found) -> Questions[Found]:
    """The best plans of tighter memory limits, where a limit leaves a large gap: they keep this limit too, and other
    layouts are the cheapest there."""
    if search.unlimited or not is_unproven_under_limit(found):
        return found
    for share in TIGHTER_SHARES:
        tighter = int(share * search.limit_bytes)
        question = replace(about(found, None), equal_layers=True, limit_bytes=tighter, averages=AVERAGES["quick"])
        found, _ = yield from better_of(search, found, question, proves=False, work=LESS_MEMORY_WORK)
    return found
