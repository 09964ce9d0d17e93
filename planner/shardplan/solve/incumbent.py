"""The incumbent: the best assignment, the proven bound, and a pool of different assignments for the caller to
compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardplan.solve.constants import COST_TOLERANCE, POOL_SIZE
from shardplan.solve.reduce.core import Core, Indices
from shardplan.solve.reduce.graph import Graph


@dataclass
class Pool:
    """The cheapest assignments met, each once, with their costs."""

    found: dict[tuple[int, ...], float] = field(default_factory=dict)

    def add(self, cost: float, choices: tuple[int, ...]) -> None:
        """Keeps an assignment of the whole problem if it is among the cheapest."""
        self.found.setdefault(choices, cost)
        if len(self.found) > POOL_SIZE:
            del self.found[max(self.found, key=lambda each: self.found[each])]

    def ranked(self) -> list[tuple[int, ...]]:
        """The assignments, the cheapest first; equal ones as they came."""
        return sorted(self.found, key=lambda each: self.found[each])


@dataclass(slots=True)
class Incumbent:
    """The best assignment and the proven bound, in costs of the problem times `scale`. `multipliers`: those of the best
    bound, for the moments that stand for sums, and for memory at the others; `pool`: other assignments met; `below`: an
    assignment that costs this much or more is of no use."""

    scale: float
    cost: float = np.inf
    bound: float = -np.inf
    choices: tuple[int, ...] | None = None
    multipliers: dict[int, float] = field(default_factory=dict)
    pool: Pool | None = None
    below: float = np.inf
    report: Callable[[], None] = lambda: None

    def offer(self, cost: float, choices: Callable[[], tuple[int, ...]]) -> bool:
        """Takes an assignment of the whole problem if it is better."""
        if cost >= self.cost:
            return False
        self.cost, self.choices = cost, choices()
        if self.pool is not None:
            self.pool.add(cost, self.choices)
        self.report()
        return True

    def take(self, other: Incumbent) -> None:
        """Takes the assignment of another incumbent if it is better."""
        choices = other.choices
        if choices is not None:
            self.offer(other.cost, lambda: choices)

    def prove(self, bound: float) -> None:
        """Takes a bound if it is better; costs are integers, so it is rounded up."""
        rounded = self.step_up(bound)
        if min(rounded, self.cost) > self.bound:
            self.bound = min(rounded, self.cost)
            self.report()

    def step_up(self, cost: float) -> float:
        """The next higher cost that an assignment can have; a program with a target below that would prove nothing."""
        return float(np.ceil(cost / self.scale - COST_TOLERANCE) * self.scale) if np.isfinite(cost) else cost

    @property
    def target(self) -> float:
        """The largest cost of a better assignment."""
        return self.cost - self.scale

    def within(self, share: float) -> bool:
        """Whether the gap is at most a share of the cost; with share 0, whether the incumbent is proven optimal."""
        return self.closed or (self.choices is not None and self.cost - self.bound <= share * abs(self.cost))

    @property
    def closed(self) -> bool:
        """Whether the incumbent is proven optimal, or it is proven that nothing costs less than `below`."""
        return self.bound >= min(self.cost, self.below)


def offer(graph: Graph, core: Core, choices: Indices, best: Incumbent, above: float = 0.0) -> None:
    """Offer labels of a core as an assignment of the whole problem; `above`: what maxima add."""
    cost = core.cost(choices) + above
    best.offer(cost, lambda: graph.invert(dict(zip(core.nodes, choices.tolist(), strict=True))))


def meet(graph: Graph, core: Core, choices: Indices, best: Incumbent, above: float) -> None:
    """Remember labels of a core as an assignment of the whole problem, if the incumbent has a pool."""
    if best.pool is not None:
        best.pool.add(core.cost(choices) + above, graph.invert(dict(zip(core.nodes, choices.tolist(), strict=True))))
