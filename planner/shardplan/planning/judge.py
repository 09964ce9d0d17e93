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

    def under(self, limit_bytes: int) -> Candidate:
        """The same assignment, scheduled under another limit on memory."""
        layouts, choices = self.layouts, tuple(self.priced.choice.values())
        return Candidate(price(layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties), layouts)

    def keeps(self, limit_bytes: int) -> bool:
        """Whether the plan keeps a limit on memory."""
        return self.priced.memory.total <= limit_bytes


Known = dict[tuple[int, tuple[int, ...]], Candidate]
"""Plans by cost graph and choices: each is laid out once."""


def judged(answer: Answer, limit_bytes: int, known: Known | None = None) -> list[Candidate]:
    """The plans of an answer's assignments, the best first: those that fit, by their scheduled steps. `known`: plans
    that were laid out before; those that are new are added."""
    known = {} if known is None else known
    found = []
    for layouts, choices in answer.candidates:
        key = id(layouts.built), choices
        if key not in known:
            priced = price(layouts.built, layouts.memory, choices, limit_bytes, layouts.penalties)
            known[key] = Candidate(priced, layouts)
        found.append(known[key])
    return sorted(found, key=lambda one: (not one.keeps(limit_bytes), one.step_s))
