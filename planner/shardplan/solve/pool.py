"""Different assignments that a search met, the cheapest of them, for a caller that judges them by a finer model."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardplan.solve.constants import POOL_SIZE


@dataclass
class Pool:
    """The cheapest assignments met, each once, with their costs."""

    found: dict[tuple[int, ...], float] = field(default_factory=dict)

    def add(self, cost: float, choices: tuple[int, ...]) -> None:
        """Keep an assignment of the whole problem, if it is among the cheapest."""
        self.found.setdefault(choices, cost)
        if len(self.found) > POOL_SIZE:
            del self.found[max(self.found, key=lambda each: self.found[each])]

    def ranked(self) -> list[tuple[int, ...]]:
        """The assignments, the cheapest first; equal ones as they came."""
        return sorted(self.found, key=lambda each: self.found[each])
