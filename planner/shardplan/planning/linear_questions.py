"""Questions about one linear sum in place of the objective: a plain problem, which is solved exactly."""

from __future__ import annotations

import math

from shardplan.planning.chain import Answer, Question
from shardplan.planning.questions import asked
from shardplan.planning.search import Questions, Search
from shardplan.schedule.objective import Linear
from shardplan.units import PS_PER_S


def bound_at(search: Search, linear: Linear) -> Questions[float]:
    """A lower bound (seconds) on every step, by one plain problem. `linear`: the objective at multipliers that were
    good for similar plans."""
    answer = yield from asked(search, Question(None, linear=linear, ends_s=search.ends_s, shortfall=False), math.inf)
    return 0.0 if answer.solution.outcome == "infeasible" else max(0.0, answer.solution.bound / PS_PER_S)


def of_linear(search: Search, linear: Linear, work: float = math.inf, enough_s: float = math.inf) -> Questions[Answer]:
    """The best assignment of one linear function of the terms, or the proof that there is none. It is solved without a
    memory limit first, which is fast, and exact if the result fits; else under the limit, with `work` at most. A bound
    of `enough_s` seconds or more ends it: what fits is not asked then."""
    unlimited = yield Question(None, linear.objective, linear)
    if unlimited.solution.bound >= enough_s * PS_PER_S:
        return unlimited
    if unlimited.solution.outcome == "optimal":
        limit = search.instance.limit_bytes
        plans = search.judged(unlimited.candidates)
        if plans and plans[0].keeps(limit):
            return unlimited
    return (yield Question(search.instance.limit_bytes, linear.objective, linear, work=work))
