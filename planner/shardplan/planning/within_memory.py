"""A plan whose schedule fits in memory, where that of the best assignment does not.

The solver counts what an assignment holds at least. Its schedule may hold more, such as weights that are gathered for a
recomputation and stay for the backward behind it. Assignments under tighter limits leave room for that.
"""

from __future__ import annotations

from dataclasses import replace

from shardplan.planning.chain import given_up
from shardplan.planning.constants import ROUGH_GAP, WITHIN_ROUNDS
from shardplan.planning.questions import about, asked
from shardplan.planning.search import Found, NoScheduleError, Questions, Search


def within_memory(search: Search, found: Found) -> Questions[Found]:
    """The best plan, if its schedule keeps the memory limit; else the best one that was scheduled and does, or the
    first one of tighter limits. Each limit is tighter than the last one by as much as the schedules under that one are
    over the real limit; where it has no assignment, the next one is halfway back. Raises `NoScheduleError` if no such
    plan is found."""
    limit_bytes = search.limit_bytes
    if found.candidate.keeps(limit_bytes):
        return found
    best = search.spent.best
    found = found.better([*search.known.values(), *([best] if best else [])], limit_bytes)
    answer = given_up(about(found, None))
    least = found.candidate.peak_bytes
    some_bytes, none_bytes = limit_bytes, 0  # limits with assignments, and without
    tighter = 2 * limit_bytes - least
    for _ in range(WITHIN_ROUNDS):
        if found.candidate.keeps(limit_bytes) or search.is_late() or not none_bytes < tighter < some_bytes:
            break
        question = replace(about(found, found.linear), limit_bytes=tighter, unproven=ROUGH_GAP, shortfall=False)
        answer = yield from asked(search, question, search.work_left)
        if not answer.candidates:
            none_bytes, tighter = tighter, (tighter + some_bytes) // 2
            continue
        plans = search.judged(answer.candidates)
        found = found.better(plans, limit_bytes)
        holds = min(one.peak_bytes for one in plans)
        some_bytes, least = tighter, min(least, holds)
        tighter = max(tighter - (holds - limit_bytes), (tighter + none_bytes) // 2)
    if not found.candidate.keeps(limit_bytes):
        raise NoScheduleError(answer, least)
    return found
