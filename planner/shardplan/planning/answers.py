"""Answers to questions about one instance: its cost graphs, the reductions and the solver behind them, and progress
reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardplan.errors import Diagnostic, warning
from shardplan.interruption import Deadline
from shardplan.planning.chain import Answer, Answering, answering
from shardplan.planning.instance import CostGraphs, Instance
from shardplan.planning.reduction import Restrict, both
from shardplan.planning.search import Questions, Search, T
from shardplan.planning.standing import OnProgress, Watch


@dataclass
class Answers:
    """Answers questions about `instance`. Prices are computed once and shared by all questions. `warn` is called with a
    warning when a step of a search failed; `reasons`: it will be said how much memory is missing; `work` is the work of
    all searches so far, in the units of `shardplan.solve.constants`."""

    instance: Instance
    warn: Callable[[Diagnostic], None]
    reasons: bool = True
    graphs: CostGraphs = field(init=False)
    work: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.graphs = CostGraphs(self.instance)

    def to(
        self,
        questions: Questions[T],
        search: Search,
        restriction: Restrict | None = None,
        on_progress: OnProgress | None = None,
    ) -> T:
        """Runs the generator `questions`, answers every question that it yields within what `restriction` allows, and
        returns its result. `on_progress` is called with the standing of the search. Raises what the generator raises.
        """
        watch = Watch(on_progress)
        search.spent.report = lambda: watch.scheduling(search)
        is_early = on_progress is not None or math.isfinite(search.limit_s)
        try:
            question = next(questions)
            while True:
                deadline, is_late = search.deadline, question.is_late or search.is_late()
                asked = replace(
                    question, restriction=both(question.restriction, restriction), deadline=deadline, is_late=is_late,
                    shortfall=question.shortfall and (self.reasons or not is_late),
                )  # fmt: skip
                found = _answer(search, answering(self.graphs, asked, watch.of(search, question)), deadline, is_early)
                search.clock.by_clock |= deadline.by_clock
                self.work += found.solution.work
                if found.solution.choices is not None:
                    search.interruption.arm()
                watch.heard(search, question, found.solution.bound)
                if found.solution.failure:
                    self.warn(_step_failed(found.solution.failure))
                question = questions.send(found)
        except StopIteration as end:
            result: T = end.value
            return result


def _answer(search: Search, steps: Answering[Answer], deadline: Deadline, is_early: bool) -> Answer:
    """The answer. If plans are wanted early, what is met before is scheduled while there is no plan; with one, the rest
    of the question may be given up."""
    try:
        while True:
            met = next(steps)
            if is_early:
                search.schedule_first(met)
                deadline.armed = search.spent.best is not None
    except StopIteration as end:
        found: Answer = end.value
        return found


def _step_failed(failure: str) -> Diagnostic:
    hint = "the plan stands; please report this defect of shardplan as CONTRIBUTING.md says"
    return warning("search-failed", f"a step of the search was given up: {failure}", hint=hint)
