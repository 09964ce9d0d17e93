"""Cost lower bounds of runs of units on one submesh: the maximum of their costs at several multipliers.

A phase of a step takes the maximum of several sums. Every convex combination of these is at most the maximum, so the
costs of a run at any multipliers (`Planner.built_at`) are a lower bound, and so is the maximum of several. Without
multipliers the costs are compute and blocking communication, which is the best bound if everything that may overlap
does. The plans of stages provide multipliers at which more is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.layout.layout import Layout
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.bounds.units import AddedCosts
from shardplan.pipeline.constants import MOST_MULTIPLIERS
from shardplan.schedule.objective import Weights
from shardplan.solve.problem import Costs


@dataclass
class WeightedBounds:
    """The maximum over all `runs`, picoseconds per step; layouts are numbered as in the first. `costs_at`: of the same
    runs at given multipliers; `multipliers[i]`: those of `runs[i]`."""

    costs_at: Callable[[Weights], RunCosts]
    runs: tuple[RunCosts, ...] = ()
    multipliers: tuple[Weights, ...] = ((),)

    def __post_init__(self) -> None:
        self.runs = self.runs or tuple(map(self.costs_at, self.multipliers))

    def sharpen(self, multipliers: Weights) -> bool:
        """Adds the costs at these multipliers, unless they are known or there are enough; returns whether it did."""
        if multipliers in self.multipliers or len(self.runs) >= MOST_MULTIPLIERS:
            return False
        self.runs, self.multipliers = (*self.runs, self.costs_at(multipliers)), (*self.multipliers, multipliers)
        return True

    @property
    def first(self) -> RunCosts:
        return self.runs[0]

    @property
    def built(self) -> CostGraph:
        return self.first.built

    @property
    def layouts(self) -> tuple[tuple[Layout, ...], ...]:
        """As `RunCosts.layouts`."""
        return self.first.layouts

    def of(self, first: int, last: int) -> Costs:
        """As `RunCosts.of`."""
        before = self.layouts[first - 1] if first else None
        behind = self.layouts[last - 1] if last < len(self.first.chain) else None
        return self.between(first, last, before, behind)

    def between(self, first: int, last: int, before: Sequence[Layout] | None, behind: Sequence[Layout] | None) -> Costs:
        """As `of`, for these layouts of the value before and of the one behind; 0 where nothing is known of one."""
        tables = []
        for runs in self.runs:
            costs = runs.of(first, last)
            if before is not None:
                costs = _in(costs, runs.layouts[first - 1], before)
            if behind is not None:
                costs = _in(costs.T, runs.layouts[last - 1], behind).T
            tables.append(costs)
        most: Costs = np.maximum.reduce(tables)
        return most

    def leasts(self) -> Costs:
        """As `RunCosts.leasts`."""
        most: Costs = np.maximum.reduce([runs.leasts() for runs in self.runs])
        return most

    def kept_so(self, wanted: Mapping[str, Layout]) -> WeightedBounds:
        """The costs if these values have these layouts."""
        runs = tuple(runs.with_added(AddedCosts(_all_but(runs.built, wanted))) for runs in self.runs)
        return WeightedBounds(self.costs_at, runs, self.multipliers)


def _in(costs: Costs, known: Sequence[Layout], wanted: Sequence[Layout]) -> Costs:
    """Rows for the layouts that are wanted, from rows for those that are known."""
    if tuple(known) == tuple(wanted):
        return costs
    number = {layout: place for place, layout in enumerate(known)}
    nothing = np.zeros(costs.shape[1])
    return np.stack([costs[number[layout]] if layout in number else nothing for layout in wanted])


def _all_but(built: CostGraph, wanted: Mapping[str, Layout]) -> dict[Node, Costs]:
    found: dict[Node, Costs] = {}
    for name, layout in wanted.items():
        space = built.kept[name]
        found["kept", name] = np.array([0.0 if space.layout(n) == layout else np.inf for n in range(len(space))])
    return found
