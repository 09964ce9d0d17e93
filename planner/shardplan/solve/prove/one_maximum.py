"""Several maxima: all but one are replaced by their averages at the best multipliers; the remaining one is solved
exactly.

For multipliers w_g of every maximum g except h,

    min over x of  cost(x) + sum over g, k of w_gk s_gk(x) + max(0, max_k s_hk(x))

is a lower bound too, at least the Lagrangian one, in which maximum h is averaged as well. It is a problem with one
maximum: if that has one sum, branch and bound with Pareto fronts (`branch_and_bound.py`) solves it. Often only one
maximum has multipliers that are neither 0 nor 1; then nothing is lost as long as the sums of the others keep their
signs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardplan.solve.bound.lagrange import Relaxation
from shardplan.solve.bound.multipliers import Multipliers, lagrangian
from shardplan.solve.incumbent import Incumbent, Pool
from shardplan.solve.reduce.graph import Graph
from shardplan.solve.reduce.memory import flat, keep_moments, paid_above

Prove = Callable[[Relaxation, Incumbent, float], None]
"""Raises the bound of a problem with one maximum and offers what it finds, from the best multiplier of all
averages on."""


def one_by_one(relaxation: Relaxation, best: Incumbent, enough: float, prove: Prove) -> None:
    """Bounds and assignments of the problems in which one maximum alone is left, starting with the most fractional
    multipliers."""
    known = relaxation.known.multipliers
    for group in sorted(relaxation.hinges, key=lambda group: -_undecided(relaxation, group)):
        if best.within(enough) or relaxation.budget.expired() or _undecided(relaxation, group) <= 0:
            return
        others = {m: known[m] for m in flat(relaxation.hinges) if m not in group and m in known}
        scale = relaxation.graph.scale
        whole = all(multiplier % scale == 0 for multiplier in others.values())
        trial = Incumbent(best.scale, pool=_Judge(relaxation, best))
        left = Relaxation(_averaged(relaxation, group, others), relaxation.limit, relaxation.budget, relaxation.whole)
        prove(left, trial, known.get(group[0], 0.0))
        # costs at fractional multipliers are no integers, but an incumbent is rounded as if they were
        best.prove(trial.bound if whole else trial.bound - scale)


def _undecided(relaxation: Relaxation, group: tuple[int, ...]) -> float:
    """The total distance of a maximum's multipliers from 0 and 1."""
    multipliers = [relaxation.known.multipliers.get(moment, 0.0) / relaxation.graph.scale for moment in group]
    return max(min(multiplier, 1.0 - multiplier) for multiplier in multipliers)


def _averaged(relaxation: Relaxation, group: tuple[int, ...], others: Multipliers) -> Graph:
    """The graph whose costs include the averages of all other maxima."""
    graph = lagrangian(relaxation.graph, others)
    graph.postsolve = relaxation.graph.postsolve.copy()
    graph.const -= relaxation.constant(others)
    gone = set(flat(relaxation.hinges)) - set(group)
    keep_moments(graph, np.array([m for m in range(len(graph.moments)) if m not in gone], dtype=np.int64))
    return graph


class _Judge(Pool):
    """Computes the cost with true maxima for assignments of a problem with averages, and offers them."""

    def __init__(self, relaxation: Relaxation, best: Incumbent) -> None:
        super().__init__()
        self.relaxation, self.best = relaxation, best

    def add(self, cost: float, choices: tuple[int, ...]) -> None:
        """Offers an assignment; `cost` is that with averages."""
        del cost
        core = self.relaxation.core
        labels = np.array(self.relaxation.graph.apply(choices, core.nodes), dtype=np.int64)
        if labels.min(initial=0) < 0:
            return
        excess = self.relaxation.profiles.of(labels) - self.relaxation.limit
        above = self.relaxation.graph.scale * paid_above(excess, self.relaxation.hinges)
        paid = core.cost(labels) + above
        if excess.max(initial=0) <= 0:
            if self.best.pool is not None:
                self.best.pool.add(paid, choices)
            self.best.offer(paid, lambda: choices)
