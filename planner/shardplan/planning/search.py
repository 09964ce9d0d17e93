"""A search for the best plan of an instance: its limits, what it has spent, and the best result so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import numpy as np

from shardplan.graph.options import UNLIMITED_BYTES
from shardplan.graph.problem import objective_of
from shardplan.interruption import Deadline, Interruption
from shardplan.planning.chain import Answer, Assigned, Question, most_solved
from shardplan.planning.constants import CLOSING_RESERVE, work_limit
from shardplan.planning.instance import Instance
from shardplan.planning.judge import Candidate, Known, first_judged, judged
from shardplan.planning.reduction import LayoutProblem
from shardplan.schedule.objective import Linear, Objective, Weights, at_multipliers
from shardplan.solve import Plane
from shardplan.solve.linear_functions import Choices
from shardplan.units import PS_PER_S

T = TypeVar("T")
Questions: TypeAlias = Generator[Question, Answer, T]
"""A generator that yields questions, is sent their answers, and returns its result."""


class NoPlanError(Exception):
    """A question that has to have an assignment has none."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.solution.outcome)
        self.answer = answer


class NoScheduleError(NoPlanError):
    """Assignments fit in memory, but no schedule of those found does: the one that needs least holds `peak_bytes` at
    its peak."""

    def __init__(self, answer: Answer, peak_bytes: int) -> None:
        super().__init__(answer)
        self.peak_bytes = peak_bytes


class NoBetterError(Exception):
    """A search has no plan below the step that is good enough: `bound_s` is a lower bound on all of its plans."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(f"no step is below {bound_s} s")
        self.bound_s = bound_s


@dataclass(frozen=True)
class Found:
    """The best result of a search: the plan with the shortest schedule, the greatest proven lower bound on any schedule
    (seconds), and the multipliers of that bound. `limit_bytes`: the memory limit of that proof, kept for further
    questions, since a limit that does not bind only costs time. `outcome`: of the last answer; `planes`: cutting planes
    of the assignments met; `memory_multipliers`: those of memory, picoseconds per byte at each moment. `whole`: the
    problem with all its maxima, if it has the choices of a cost graph. `mixture`: assignments of it that are best
    together, with their shares (`Solution.mixture`)."""

    candidate: Candidate
    bound_s: float
    objective: Objective
    multipliers: Weights
    limit_bytes: int | None
    outcome: str = "feasible"
    planes: tuple[Plane, ...] = ()
    memory_multipliers: Mapping[int, float] = field(default_factory=dict)
    whole: LayoutProblem | None = None
    mixture: Mapping[Choices, float] = field(default_factory=dict)

    @property
    def linear(self) -> Linear:
        """The objective at the best multipliers, as one linear function."""
        return at_multipliers(self.objective, self.multipliers)

    @property
    def gap(self) -> float:
        """The relative distance of the best plan from the bound."""
        return 1.0 - self.bound_s / self.candidate.step_s if self.candidate.step_s else 0.0

    @property
    def excess(self) -> float:
        """The share by which the best plan's schedule is longer than its sums; 0 if these are not known."""
        whole, best = self.whole, self.candidate
        if whole is None or best.layouts.built is not whole.built:
            return 0.0
        sums_s = whole.functions.costs(np.array([tuple(best.priced.choice.values())]))[0] / PS_PER_S
        return best.step_s / float(sums_s) - 1.0 if sums_s else 0.0

    @property
    def is_only_one(self) -> bool:
        """Whether no node has a second choice."""
        return all(np.isfinite(cost).sum() <= 1 for cost in self.candidate.layouts.problem.costs)

    def hopeless(self, assignments: Sequence[Assigned], limit_bytes: int) -> dict[Choices, LayoutProblem]:
        """Those assignments whose sums, which are lower bounds on their schedules, are no shorter than the best
        schedule."""
        whole = self.whole
        if whole is None or not self.candidate.keeps(limit_bytes):
            return {}
        alike = [choices for layouts, choices in assignments if layouts.built is whole.built]
        if not alike:
            return {}
        costs = whole.functions.costs(np.array(alike))
        below = self.candidate.step_s * PS_PER_S
        return {choices: whole for choices, cost in zip(alike, costs, strict=True) if cost >= below}

    def proven_by(self, other: Found) -> Found:
        """The same plan with the better of two proofs; the question of `other` allows at least as much."""
        if other.bound_s <= self.bound_s:
            return self
        return replace(self, bound_s=other.bound_s, multipliers=other.multipliers)

    def better(self, others: list[Candidate], limit_bytes: int) -> Found:
        """The same proof with the best of these plans."""
        known = [self.candidate, *(other for other in others if other.keeps(limit_bytes))]
        return replace(self, candidate=min(known, key=lambda one: (not one.keeps(limit_bytes), one.step_s)))


@dataclass
class Spent:
    """What a search has spent: `work`, in the units of `shardplan.solve.constants`, and the longest time (seconds) that
    the schedule of one plan took. For the progress line only: `solved`, the plain problems of answered questions at
    most; `left`, those of questions to come, and `later`, those of later searches; `report`, which is called when
    `best` may have changed. `best`: the best plan that was scheduled and keeps the memory limit, with which the search
    can end at any time."""

    work: float = 0.0
    schedule_s: float = 0.0
    solved: int = 0
    left: int = 0
    later: int = 0
    best: Candidate | None = None
    report: Callable[[], None] = lambda: None

    @property
    def best_s(self) -> float:
        """The step of the best plan, seconds; infinite if there is none."""
        return math.inf if self.best is None else self.best.step_s


@dataclass
class Clock:
    """`by_clock`: whether time or Ctrl-C has decided anything in a search, or in one inside of it, so that another run
    may end elsewhere."""

    by_clock: bool = False


@dataclass(frozen=True)
class Search:
    """What is searched and until when (`time.monotonic`); `interruption` is set by Ctrl-C. `clock`: shared with the
    searches inside of it. `restricted`: the choices are few, as in a recipe, so recipes are no candidates. `only_best`:
    plans that cannot become the best are not scheduled fully. `unlimited`: there is no memory limit. `regather`:
    questions are asked as if all gathered weights were gathered again for backward; plans are scheduled with as many
    staying as fit. `worth_s`: if the plan without a memory limit takes so long, no other is searched."""

    instance: Instance
    limit_s: float
    interruption: Interruption = field(default_factory=Interruption)
    restricted: bool = False
    clock: Clock = field(default_factory=Clock)
    only_best: bool = True
    unlimited: bool = False
    regather: bool = False
    worth_s: float = math.inf
    known: Known = field(default_factory=dict)
    """Plans that were scheduled."""
    hopeless: dict[Choices, LayoutProblem] = field(default_factory=dict)
    """Assignments that were not scheduled, as their sums bound their schedules above the best: parts of them may be
    useful in crossovers."""
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def of(
        cls,
        instance: Instance,
        interruption: Interruption | None = None,
        clock: Clock | None = None,
        *,
        restricted: bool = False,
    ) -> Search:
        """A new search for a plan of an instance, whose making is part of the time limit."""
        limit = instance.options.time_limit
        ends_s = math.inf if limit is None else time.monotonic() + limit - instance.taken_s
        return cls(instance, ends_s, interruption or Interruption(), restricted, clock or Clock())

    def without_limit(self) -> Search:
        """The same search without a memory limit; it keeps its own record of scheduled plans."""
        return replace(self, unlimited=True, known={}, hopeless={})

    @property
    def met(self) -> int:
        """The number of assignments met."""
        return len(self.known) + len(self.hopeless)

    @property
    def limit_bytes(self) -> int:
        """The memory limit of a plan."""
        return UNLIMITED_BYTES if self.unlimited else self.instance.limit_bytes

    @property
    def ends_s(self) -> float:
        """The time after which no further question is asked; the rest of the time limit is for writing the plan."""
        return self.limit_s - CLOSING_RESERVE * self.spent.schedule_s

    @property
    def work_left(self) -> float:
        """The work that may still be spent."""
        return work_limit(self.instance.options) - self.spent.work

    @property
    def averages(self) -> int:
        """Upper bound on the plain problems of a question about all plans."""
        return most_solved(Question(None), self.instance.options)

    def is_over(self) -> bool:
        """Whether nothing more is to be searched. If time or Ctrl-C decide that, the clock has decided something."""
        return self.work_left <= 0.0 or self.is_late()

    def is_late(self) -> bool:
        """Whether time or Ctrl-C end the search, which the clock remembers."""
        return self.lacks(0.0)

    def lacks(self, seconds: float) -> bool:
        """Whether less time is left than that, which the clock remembers if it is so."""
        is_short = self.interruption.asked or self.ends_s - time.monotonic() <= seconds
        self.clock.by_clock |= is_short
        return is_short

    @property
    def deadline(self) -> Deadline:
        """When a question is given up: if there is a plan, the search can end without the answer."""
        return Deadline(self.ends_s, self.spent.best is not None, self.interruption)

    def has_no_time(self) -> bool:
        """Whether there is no time left to finish a plan well either, which the clock remembers."""
        return self.is_late() and (self.interruption.asked or time.monotonic() >= self.limit_s)

    def has_to_stop(self) -> bool:
        """Whether there is a plan, and no time to schedule another one or to finish it well."""
        return self.spent.best is not None and self.has_no_time()

    def share(self, parts: float) -> float:
        """The time at which one of `parts` equal parts of the remaining time has passed."""
        now = time.monotonic()
        return now + max(0.0, self.ends_s - now) / parts

    def judged(self, assignments: Sequence[Assigned]) -> list[Candidate]:
        """The plans of assignments, the best first. However late it is, at least one is scheduled, if only roughly, or
        known already."""
        if self.spent.best is not None and self.has_no_time():
            return [self.spent.best]
        before, known = time.monotonic(), len(self.known)

        def is_over() -> bool:
            self._took(before, len(self.known) - known)
            return self.is_late()

        self.spent.report()
        found = judged(
            assignments, self.limit_bytes, self.known, is_over,
            only_best=self.only_best, first_fit=self.has_no_time(), heard=self._heard,
        )  # fmt: skip
        self._took(before, len(self.known) - known)
        return found

    def schedule_first(self, assigned: Assigned) -> None:
        """Schedules an assignment if no plan is known yet: for the progress line, and for an early end."""
        if self.spent.best is None and not self.is_over():
            before = time.monotonic()
            first = first_judged(assigned, self.instance.limit_bytes)
            self._took(before, 1)
            self._heard(first)

    def with_best(self, found: Found) -> Found:
        """After an early end, the better of a plan and of the best that was scheduled: what is known is kept."""
        if self.spent.best is None or not self.clock.by_clock:
            return found
        return found.better([self.spent.best], self.instance.limit_bytes)

    def best_without(self, none: Answer) -> Found:
        """The best plan that was scheduled, with no bound, in place of the answer to a question that was given up.
        Raises `NoPlanError` if there is none."""
        best = self.spent.best
        if best is None or none.solution.outcome == "infeasible":
            raise NoPlanError(none)
        objective = objective_of(best.layouts.built)
        outcome = "interrupted" if self.interruption.asked else "feasible"
        return Found(best, 0.0, objective, tuple(() for _ in objective.sizes), self.instance.limit_bytes, outcome)

    def _heard(self, candidate: Candidate) -> None:
        spent = self.spent
        if candidate.keeps(self.instance.limit_bytes) and candidate.step_s < spent.best_s:
            self.interruption.arm()
            spent.best = candidate
        spent.report()

    def _took(self, before: float, plans: int) -> None:
        """Records the time since `before` in which so many plans were scheduled."""
        self.spent.schedule_s = max(self.spent.schedule_s, (time.monotonic() - before) / max(1, plans))

    def best_of(self, found: Found, assignments: Sequence[Assigned]) -> Found:
        """The best of the known plan and of those of `assignments` that may be better; the others are kept as
        `hopeless`."""
        hopeless = found.hopeless(assignments, self.limit_bytes)
        self.hopeless.update(hopeless)
        hopeful = [one for one in assignments if one[1] not in hopeless]
        return found.better(self.judged(hopeful), self.limit_bytes)
