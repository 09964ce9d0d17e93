"""The judge: an assignment -> its plan's schedule, and the price of all it does, independent of the solver's."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.plan.assemble import Priced, price
from shardplan.planning.chain import Answer
from shardplan.planning.reduction import Layouts


@dataclass(frozen=True)
class Candidate:
    """A plan with its schedule."""

    priced: Priced
    layouts: Layouts

    @property
    def step_s(self) -> float:
        """What candidates are compared by: the scheduled step, penalties of soft constraints included."""
        return self.priced.step_s + self.priced.penalty_s

    def keeps(self, limit_bytes: int) -> bool:
        """Whether the plan keeps a limit on memory."""
        return self.priced.memory.total <= limit_bytes


def judged(answer: Answer, limit_bytes: int) -> list[Candidate]:
    """The plans of an answer's assignments, the best first: those that fit, by their scheduled steps."""
    found = [
        Candidate(price(layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties), layouts)
        for layouts, choices in answer.candidates
    ]
    return sorted(found, key=lambda one: (not one.keeps(limit_bytes), one.step_s))
