"""A plan within a moment: with a time limit, the cheapest question comes before the first whole one."""

from __future__ import annotations

import math
from dataclasses import replace

from shardplan.planning.chain import Question
from shardplan.planning.constants import ROUGH_WORK
from shardplan.planning.questions import asked
from shardplan.planning.search import Questions, Search


def at_once(search: Search) -> Questions[None]:
    """Schedules the best assignment for the base sums alone, if there is a time limit: it takes a fraction of a whole
    question, which may be given up when its time is over. What a search finds in time does not depend on it."""
    options, spent = search.instance.options, search.spent
    if math.isinf(search.limit_s) or not options.cost_model.is_ours or search.restricted or search.is_late:
        return
    work = spent.work
    for limit_bytes in dict.fromkeys((None, search.limit_bytes)):
        question = Question(limit_bytes, is_late=True, ends_s=search.ends_s, shortfall=False)
        answer = yield from asked(search, question, ROUGH_WORK)
        if answer.solution.choices is None or search.is_late:
            break
        if replace(search, known={}).judged(answer.candidates[:1])[0].keeps(search.limit_bytes):
            break
    spent.work = work
