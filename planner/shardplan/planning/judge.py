"""The judge: simulates the schedule of an assignment's plan and prices all its operators and moves, independently of
the solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardplan.graph.options import UNLIMITED_BYTES
from shardplan.plan.assemble import PricedAssignment, price
from shardplan.plan.step.memory_timeline import bytes_by_moment, peak_of
from shardplan.planning.chain import Assigned
from shardplan.planning.reduction import LayoutProblem


@dataclass(frozen=True)
class Candidate:
    """A plan with its schedule."""

    priced: PricedAssignment
    layouts: LayoutProblem

    @property
    def step_s(self) -> float:
        """The value by which candidates are compared: the seconds of the scheduled step, with penalties of soft
        constraints."""
        return self.priced.step_s + self.priced.penalty_s

    def under(self, limit_bytes: int) -> Candidate:
        """The same assignment, scheduled under another limit on memory."""
        layouts, choices = self.layouts, tuple(self.priced.choice.values())
        return Candidate(price(layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties), layouts)

    def keeps(self, limit_bytes: int) -> bool:
        """Whether the plan keeps within a memory limit."""
        return self.peak_bytes <= limit_bytes

    @property
    def peak_bytes(self) -> int:
        """The peak memory of a device."""
        return self.priced.memory.total

    def is_tight(self, limit_bytes: int, share: float) -> bool:
        """Whether the memory limit shapes the plan: its peak is above this share of the limit, or would be if weights
        were gathered and gradients reduced at the fastest times."""
        return self.peak_bytes > share * limit_bytes or self.priced.scheduled.policy.holds_back


Known = dict[tuple[int, tuple[int, ...]], Candidate]
"""Plans by cost graph and choices: each is scheduled once."""


def judged(
    assignments: Sequence[Assigned],
    limit_bytes: int,
    known: Known | None = None,
    is_over: Callable[[], bool] = bool,
    *,
    only_best: bool = False,
    first_fit: bool = False,
    heard: Callable[[Candidate], None] = lambda _: None,
) -> list[Candidate]:
    """The plans of assignments, the best first: those that fit, by their scheduled steps. `known`: plans scheduled
    earlier; new ones are added to it. If no assignment can fit under any schedule, one of them is scheduled; after
    `is_over`, only one is. With `only_best`, a plan that cannot become the best is not scheduled fully; with
    `first_fit`, none is. `heard` is called with every plan."""
    known = {} if known is None else known
    is_unlimited = limit_bytes >= UNLIMITED_BYTES
    fitting = [one for one in assignments if is_unlimited or _holds_bytes(*one) <= limit_bytes]
    found: list[Candidate] = []
    best_s = math.inf
    if only_best:
        best_s = min((one.step_s for one in known.values() if one.keeps(limit_bytes)), default=math.inf)
    for layouts, choices in fitting or assignments[:1]:
        if found and is_over():
            break
        key = id(layouts.built), choices
        if key not in known:
            priced = price(
                layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties, best_s, first_fit=first_fit
            )
            known[key] = Candidate(priced, layouts)
            if only_best and known[key].keeps(limit_bytes):
                best_s = min(best_s, known[key].step_s)
        heard(known[key])
        found.append(known[key])
    return sorted(found, key=lambda one: (not one.keeps(limit_bytes), one.step_s))


def first_judged(assigned: Assigned, limit_bytes: int) -> Candidate:
    """The plan of an assignment with a schedule that is not optimised."""
    layouts, choices = assigned
    priced = price(layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties, first_fit=True)
    return Candidate(priced, layouts)


def _holds_bytes(layouts: LayoutProblem, choices: tuple[int, ...]) -> int:
    """The peak memory of an assignment without gathered weights and gradients that are in flight."""
    memory = layouts.memory
    return peak_of(bytes_by_moment(memory, layouts.chosen(choices))).total
