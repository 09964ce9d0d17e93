"""The standing of a search: the best scheduled step, its bound, and the share of its effort that is spent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardplan.planning.chain import Question, most_solved
from shardplan.planning.constants import work_limit
from shardplan.planning.instance import Instance
from shardplan.planning.search import Search
from shardplan.solve import Progress
from shardplan.units import PS_PER_S


@dataclass(frozen=True, slots=True)
class Standing:
    """`best`: the shortest scheduled step, infinite before there is a plan; `bound`: a lower bound on every step; both
    in picoseconds, or in the unit of another planner's prices. `effort`: the share of the search's work that is done, 0
    if it has no end. `doing`: the current activity. `done`: how many problems of a search, or how many searches, are
    finished; `left`: an upper bound on those to come, 0 if unknown."""

    best: float
    bound: float
    effort: float = 0.0
    doing: str = ""
    done: int = 0
    left: int = 0


def without_effort(on_progress: OnProgress | None) -> OnProgress | None:
    """A callback that forwards to `on_progress` without effort and counts, which describe one search of several."""
    return on_progress and (lambda standing: on_progress(replace(standing, effort=0.0, done=0, left=0)))


def without_bound(on_progress: OnProgress) -> OnProgress:
    """A callback that forwards to `on_progress` without the bound, which holds for a subset of the plans only."""
    return lambda standing: on_progress(replace(standing, bound=-math.inf))


def of_shallow(on_progress: OnProgress | None) -> OnProgress | None:
    """A callback that forwards to `on_progress` without steps and bounds, which are those of a shallow form."""
    return on_progress and (
        lambda standing: on_progress(Standing(math.inf, -math.inf, doing=f"{standing.doing} of fewer layers"))
    )


OnProgress = Callable[[Standing], None]


@dataclass
class Turn:
    """Reports the progress of `count` searches that follow one another. `known`: the best result of those that ended,
    if all search the same thing; `restricted`: the current one searches only a subset of the plans."""

    on_progress: OnProgress | None
    count: int
    number: int = 0
    name: str = ""
    known: float = math.inf
    restricted: bool = False

    def next(self, name: str, *, restricted: bool = False) -> None:
        """The next search begins."""
        self.number, self.name, self.restricted = self.number + 1, name, restricted
        self.tell(Standing(math.inf, -math.inf))

    def tell(self, standing: Standing) -> None:
        """Reports the standing of the current search."""
        if self.on_progress is not None:
            doing = f"{self.name} ({self.number} of {self.count})"
            done, best = self.number - 1, min(standing.best, self.known)
            bound = -math.inf if self.restricted else min(standing.bound, best)
            left = self.count - done
            self.on_progress(replace(standing, best=best, bound=bound, effort=0.0, doing=doing, done=done, left=left))


@dataclass
class Watch:
    """Reports progress whenever the solver does, and when plans are scheduled. `bound`: the highest bound that holds
    for every plan; `last`: what was reported last."""

    on_progress: OnProgress | None
    bound: float = field(default=-math.inf)
    last: Standing = field(default=Standing(math.inf, -math.inf))

    def of(self, search: Search, question: Question) -> Callable[[Progress], None] | None:
        """The callback for the solver of a question; the question's start is reported at once."""
        if self.on_progress is None:
            return None
        doing, holds = _doing(question), _holds_for_all(question, search.instance)

        def update(progress: Progress) -> None:
            best = search.spent.best_s * PS_PER_S
            bound = max(self.bound, progress.bound) if holds else self.bound
            spent, most = search.spent, most_solved(question, search.instance.options)
            solved = min(progress.solved, most - 1)
            self._tell(
                Standing(
                    best, min(bound, best), self._share(search, progress.work), doing,
                    done=spent.solved + solved, left=max(spent.left, most) + spent.later - solved,
                )
            )  # fmt: skip

        update(Progress(0.0, math.inf, -math.inf, "reduce"))
        return update

    def scheduling(self, search: Search) -> None:
        """Reports that plans are scheduled, with the best so far."""
        best = search.spent.best_s * PS_PER_S
        bound = max(self.bound, self.last.bound)
        self._tell(replace(self.last, best=best, bound=min(bound, best), doing="scheduling the best plans found"))

    def _tell(self, standing: Standing) -> None:
        if self.on_progress is not None:
            self.last = standing
            self.on_progress(standing)

    def heard(self, search: Search, question: Question, bound: float) -> None:
        """Keeps the bound of an answer, if it holds for every plan."""
        if _holds_for_all(question, search.instance):
            self.bound = max(self.bound, bound)

    def _share(self, search: Search, work: float) -> float:
        whole = work_limit(search.instance.options)
        return min(1.0, (search.spent.work + work) / whole) if math.isfinite(whole) else 0.0


def _holds_for_all(question: Question, instance: Instance) -> bool:
    """Whether the bound of a question holds for every plan that fits: it leaves none of them out, and has no price that
    is higher than in the schedule."""
    less = question.limit_bytes is not None and question.limit_bytes < instance.limit_bytes
    fixed = question.equal_layers or (question.remat is not None and instance.chooses_remat)
    dearer = question.regather or question.bucket_bytes is not None
    return not (question.restriction or question.near or question.linear or less or fixed or dearer)


def _doing(question: Question) -> str:
    """The purpose of a question, for the progress line."""
    if question.near is not None:
        return "searching near the best plan" if question.near.free else "taking over a coarser mesh's plan"
    if question.assignments:
        return "searching parts of all plans"
    if question.restriction is not None:
        return "searching among known recipes"
    if question.linear is not None:
        return "searching with a reweighted objective"
    return "searching all plans" if question.limit_bytes is None else "searching all plans that fit"
