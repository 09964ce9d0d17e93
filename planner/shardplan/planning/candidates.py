"""Where candidates come from: generators that ask questions, look at the answers, and return the best plan they know.

Each generator yields a `Question` and is sent its `Answer`; it calls nobody who asks it. `shortest` lists them in the
order in which they are tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from shardplan.graph.remat import Recompute
from shardplan.planning.chain import Answer, Question
from shardplan.planning.instance import Instance
from shardplan.planning.judge import Candidate, fits, judged, keeps, proven
from shardplan.planning.objective import BOTH, MOST_WEIGHTS, improves, next_weight
from shardplan.planning.rematerialisation import flags
from shardplan.units import PS_PER_S

T = TypeVar("T")
Questions: TypeAlias = Generator[Question, Answer, T]

BALANCED = 0.01
"""Where the larger of two sums is proven to this relative gap, no integer program is asked for better."""
UNPROVEN = 0.03
"""The same where what is recomputed is chosen: its integer programs are large."""
CLOSE = 0.01
"""Where what was chosen to recompute leaves more than this share of the step unproven, the flags are tried too."""


class NoPlanError(Exception):
    """A question that had to have an answer has none."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.solution.outcome)
        self.answer = answer


@dataclass(frozen=True)
class Found:
    """The plan of the shortest step found, and the greatest proven lower bound on any step, in seconds."""

    candidate: Candidate
    bound_s: float


@dataclass(frozen=True)
class Search:
    """What is searched, and until when (`time.monotonic`)."""

    instance: Instance
    ends_s: float

    @classmethod
    def of(cls, instance: Instance) -> Search:
        limit = instance.options.time_limit
        return cls(instance, math.inf if limit is None else time.monotonic() + limit)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    def share(self, parts: float) -> float:
        """When one of so many parts of the time that is left has passed."""
        now = time.monotonic()
        return now + max(0.0, self.ends_s - now) / parts

    def question(self, **asked: object) -> Question:
        """A question about plans that keep the limit on memory."""
        return Question(**{"limit_bytes": self.instance.limit_bytes, **asked})  # type: ignore[arg-type]


def shortest(search: Search) -> Questions[Found]:
    """The plan of the shortest step. Raises `NoPlanError` where there is none."""
    instance = search.instance
    found = None
    if instance.sums_are_separable and (instance.chooses_remat or instance.options.time_limit is None):
        found = yield from without_limit(search)
    if found is None:
        found = yield from (choosing_remat if instance.chooses_remat else with_given_remat)(search)
    return found


def without_limit(search: Search) -> Questions[Found | None]:
    """The plan, where the best one at weight one without a limit on memory leads to it: it fits, or overlaps more than
    it computes. Where what is recomputed is to be chosen, nothing is: if that fits, it is the answer."""
    instance = search.instance
    answer = yield search.question(limit_bytes=None, ends_s=search.share(2))
    if answer.solution.choices is None:
        return None
    known = judged(answer)
    fitting = fits(answer, instance.limit_bytes)
    if known.f1_s >= known.f2_s:
        return Found(known, known.bound_s) if fitting else None
    limit = None if instance.chooses_remat else instance.limit_bytes
    remat = answer.layouts.built.recompute
    best = yield from larger_sum(search, known, known.bound_s, remat, limit, parts=2, beaten=not fitting)
    return best if best is not None and keeps(best.candidate, instance.limit_bytes) else None


def with_given_remat(search: Search) -> Questions[Found]:
    """The plan, where it is given what is recomputed."""
    found: Found | None
    if search.instance.sums_are_separable:
        found = yield from by_weights(search, most=1)
        known = found.candidate
        if known.f1_s < known.f2_s:
            remat, limit = known.priced.built.recompute, search.instance.limit_bytes
            found = yield from larger_sum(search, known, found.bound_s, remat, limit)
            if found is not None:
                return found
            found = yield from by_weights(search)
    else:
        found = yield from by_weights(search)
    known = found.candidate
    return found if known.weight == 1.0 and known.f1_s >= known.f2_s else _settled(found)


def choosing_remat(search: Search) -> Questions[Found]:
    """The plan with what is best recomputed for it."""
    found = None
    if search.instance.sums_are_separable:
        found = yield from larger_sum_choosing_remat(search)
    if found is None:
        found = yield from by_weights(search)
    best = found.candidate
    if search.ends_s == math.inf and best.step_s - found.bound_s > CLOSE * best.step_s:
        others = yield from with_flags(search, best)
        best = min([best, *others], key=lambda candidate: candidate.step_s)
    return _settled(Found(best, found.bound_s))


def larger_sum(
    search: Search,
    known: Candidate,
    bound_s: float,
    remat: Recompute,
    limit_bytes: int | None,
    *,
    parts: float = 1,
    beaten: bool = False,
) -> Questions[Found | None]:
    """The plan of the shortest step, or `known` (unless any is better: `beaten`), and the bound on any step, from
    `bound_s`; `None` where the problem of the larger sum is too large."""
    if known.priced.solution.outcome != "interrupted" and not search.is_over:
        unproven = BALANCED if search.instance.options.gap else 0.0
        answer = yield Question(limit_bytes, BOTH, remat, ends_s=search.share(parts), unproven=unproven)
        if answer.too_large:
            return None
        if answer.solution.outcome != "infeasible":
            bound_s = max(bound_s, answer.solution.bound / PS_PER_S)
        if answer.solution.choices is not None:
            other = judged(answer)
            if beaten or other.step_s < known.step_s:
                return Found(replace(other, bound_s=bound_s), bound_s)
    return _settled(Found(known, bound_s))


def larger_sum_choosing_remat(search: Search) -> Questions[Found | None]:
    """The plan with what is best recomputed for it; `None` where the problem of both is too large, or its search ends
    before anything is found."""
    unproven = UNPROVEN if search.instance.options.gap else 0.0
    answer = yield search.question(weights=BOTH, chooses_remat=True, ends_s=search.share(1), unproven=unproven)
    solution = answer.solution
    if solution.choices is None:
        if solution.outcome in ("infeasible", "interrupted"):
            raise NoPlanError(answer)
        return None
    return _settled(Found(judged(answer), solution.bound / PS_PER_S))


def by_weights(search: Search, remat: Recompute | None = None, *, most: int = MOST_WEIGHTS) -> Questions[Found]:
    """The plan of the shortest step and the bound on any, by weights of the two sums, of which the first is one.

    `remat`: what is recomputed, if that is given. Raises `NoPlanError` where there is no plan at weight one.
    """
    trials: list[Candidate] = []
    while len(trials) < most and (weight := next_weight(trials)) is not None:
        answer = yield from at_weight(search, weight, remat, ends_s=search.share(MOST_WEIGHTS - len(trials)))
        if answer.solution.choices is None:
            if not trials:
                raise NoPlanError(answer)
            break
        trial = judged(answer)
        if not improves(trial, trials):
            break
        trials.append(trial)
        if answer.solution.outcome == "interrupted" or search.is_over:
            break
    best = min(trials, key=lambda trial: trial.step_s)
    return Found(best, max(trial.bound_s for trial in trials))


def at_weight(
    search: Search,
    weight: float,
    remat: Recompute | None = None,
    *,
    ends_s: float = math.inf,
    unlimited_first: bool = False,
) -> Questions[Answer]:
    """The best assignment at a weight, or the proof that there is none.

    `unlimited_first`: it is sought without a limit on memory first, which is quick; where that fits it is exact. Where
    the search for what to recompute finds nothing that fits before it gives up, the flags are tried.
    """
    weights, chooses = (weight,), search.instance.chooses_remat and remat is None
    unlimited = None
    if unlimited_first or chooses:
        unlimited = yield Question(None, weights, ends_s=ends_s)
        if fits(unlimited, search.instance.limit_bytes):
            return unlimited
    if unlimited is None or not chooses:
        return (yield search.question(weights=weights, remat=remat, ends_s=ends_s))
    unproven = UNPROVEN if search.instance.options.gap else 0.0
    limited = search.question(weights=weights, ends_s=ends_s, unproven=unproven)
    found = yield replace(limited, chooses_remat=True, unlimited=unlimited.solution)
    if found.solution.outcome != "limit":
        return found
    for flag in flags(unlimited.layouts.built):
        tried = yield replace(limited, remat=flag)
        if tried.solution.choices is not None and tried.solution.cost < found.solution.cost:
            outcome = "feasible" if tried.solution.outcome == "optimal" else tried.solution.outcome
            solution = replace(tried.solution, bound=found.solution.bound, outcome=outcome)
            found = replace(tried, solution=solution)
    return found


def with_flags(search: Search, chosen: Candidate) -> Questions[list[Candidate]]:
    """The plans of the flags of rematerialisation that may be faster than what was chosen."""
    found = []
    for flag in flags(chosen.priced.built):
        best = None
        if search.instance.sums_are_separable:
            best = yield from larger_sum(search, chosen, 0.0, flag, search.instance.limit_bytes)
        if best is None:
            there = (yield search.question(weights=(chosen.weight,), remat=flag)).solution
            if there.choices is not None and there.bound / PS_PER_S < chosen.step_s:
                best = yield from by_weights(search, flag)
        if best is not None:
            found.append(best.candidate)
    return found


def _settled(found: Found) -> Found:
    """The same, where the solution says what is proven of the step."""
    return Found(proven(found.candidate, found.bound_s), found.bound_s)
