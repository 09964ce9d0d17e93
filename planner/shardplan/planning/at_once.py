"""A plan within a moment: with a time limit, the cheapest question comes before the first whole one."""

from __future__ import annotations

import math
from dataclasses import replace

from shardplan.planning.chain import Question
from shardplan.planning.constants import ROUGH_WORK
from shardplan.planning.questions import asked
from shardplan.planning.rematerialisation import MOST_RECOMPUTED
from shardplan.planning.search import Questions, Search


def at_once(search: Search) -> Questions[None]:
    """Schedules the best assignment for the base sums alone, if there is a time limit: it takes a fraction of a whole
    question, which may be given up when its time is over. Where the search chooses what is recomputed, that is nothing,
    or what `--remat full` recomputes if the former does not fit. What a search finds in time does not depend on it."""
    options, spent = search.instance.options, search.spent
    if math.isinf(search.limit_s) or not options.cost_model.is_ours or search.restricted or search.is_late():
        return
    work = spent.work
    for limit_bytes in dict.fromkeys((None, search.limit_bytes)):
        remat = MOST_RECOMPUTED if limit_bytes is not None and search.instance.chooses_remat else None
        question = Question(limit_bytes, remat=remat, is_late=True, ends_s=search.ends_s, shortfall=False)
        answer = yield from asked(search, question, ROUGH_WORK)
        if answer.solution.choices is None:
            break
        best = replace(search, known={}).judged(answer.candidates[:1])[0]
        if best.keeps(search.limit_bytes) or search.interruption.asked:
            break
    spent.work = work
