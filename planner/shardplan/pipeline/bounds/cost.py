"""Cost lower bounds of runs of units under the memory limit, by Lagrangian relaxation.

With m the bytes of a device at the turn from forward to backward and L the limit, every plan of a run that fits costs
at least

    min over layouts of (cost + p m)  -  p L        for any multiplier p >= 0 of a byte,

and both sums are made unit by unit, so the minimum is again a (min, +) product (`pipeline.bounds.run_costs`). The bytes
are weights with their gradients and optimizer state, and what is saved for backward, once for every microbatch in
flight (`pipeline.bounds.memory`). The bound is concave in p; the p of the greatest bound of one run is searched, and
bounds all runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardplan.pipeline.bounds.memory import MemoryBound, memory_bound
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.constants import CEILING, FIRST_MULTIPLIER, LEAST_MULTIPLIER, MULTIPLIER_STEPS, WORTH_RAISING
from shardplan.solve.problem import Costs


@dataclass
class CostBounds:
    """Cost lower bounds of all runs of units of `runs`, on devices that may hold `limit_bytes`."""

    runs: RunCosts
    limit_bytes: int
    _memory: MemoryBound = field(init=False)
    _tables: dict[int, Costs] = field(init=False, default_factory=dict)
    _priced: dict[tuple[int, float], RunCosts] = field(init=False, default_factory=dict)
    _best: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._memory = memory_bound(self.runs.built, self.runs.chain)

    def table(self, waiting: int) -> Costs | None:
        """The bounds known so far with so many microbatches in flight, or fewer (less memory never costs more).

        Shape (first unit, last), picoseconds.
        """
        known = [table for fewer, table in self._tables.items() if fewer <= waiting]
        return np.maximum.reduce(known) if known else None

    def raise_for(self, first: int, last: int, waiting: int, cost: float) -> bool:
        """Searches the multiplier with the greatest bound for units `first` .. `last` - 1, which cost at least `cost`.

        Returns whether it raised the bound.
        """
        if not self._binds(first, last, waiting, cost):
            return False
        before = self.table(waiting)
        least = cost if before is None else max(cost, float(before[first, last]))
        multiplier, best = self._best_multiplier(first, last, waiting, cost)
        self._best[waiting] = multiplier
        if best <= least * (1.0 + WORTH_RAISING):
            return False
        bounds = np.where(np.isfinite(table := self._at(waiting, multiplier).leasts()), table, -np.inf)
        bounds -= multiplier * self.limit_bytes
        known = self._tables.get(waiting)
        self._tables[waiting] = bounds if known is None else np.maximum(known, bounds)
        return True

    def _binds(self, first: int, last: int, waiting: int, cost: float) -> bool:
        """Whether memory makes a run more expensive: bounds are concave in the multiplier, and start at `cost`."""
        low = LEAST_MULTIPLIER * cost / self.limit_bytes
        return self._at(waiting, low).least(first, last) - low * self.limit_bytes > cost

    def _best_multiplier(self, first: int, last: int, waiting: int, cost: float) -> tuple[float, float]:
        """The best multiplier that was found, and the bound of a run at that multiplier."""

        def bound(multiplier: float) -> float:
            return self._at(waiting, multiplier).least(first, last) - multiplier * self.limit_bytes

        nearest = min(self._best, key=lambda other: (abs(other - waiting), other), default=None)
        multiplier = FIRST_MULTIPLIER * cost / self.limit_bytes if nearest is None else self._best[nearest]
        best = bound(multiplier)
        for step in MULTIPLIER_STEPS:
            for factor in (step, 1.0 / step):
                while best < CEILING * cost and (found := bound(multiplier * factor)) > best:
                    best, multiplier = found, multiplier * factor
        return multiplier, best

    def _at(self, waiting: int, multiplier: float) -> RunCosts:
        """Costs of all runs when a byte has this multiplier."""
        key = (waiting, multiplier)
        if key not in self._priced:
            self._priced[key] = self.runs.with_added(self._memory.added_costs(waiting, multiplier))
        return self._priced[key]
