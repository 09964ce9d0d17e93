"""State of the search on a large core: graph, multipliers and messages; and its reduction by the cost of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.multipliers import Multipliers
from shardplan.solve.bound.subgradient import SubgradientAscent
from shardplan.solve.constants import STATE_BISECTIONS, STATE_SHRINKS, STATE_SHRUNK
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.core import Core, Indices, core_of, depths
from shardplan.solve.reduce.fixing import label_excess, prune, surviving
from shardplan.solve.reduce.graph import Graph
from shardplan.solve.reduce.memory import Profiles
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.search.assignment import Space


class SearchState:
    """A presolved graph, its core, its multipliers, and a second dual that sweeps in the graph's order."""

    def __init__(self, graph: Graph, limit: int) -> None:
        self.graph = graph
        self.limit = limit
        self.core: Core = core_of(graph)
        profiles = Profiles(self.core.uses, self.core.offsets, graph.tables.arrays, graph.base)
        self.duals = SubgradientAscent(self.core, profiles, limit)
        rows = [[other for other, _, _ in row] for row in self.core.around]
        self.wave = Dual(self.core, depths(rows), self.duals.dual)
        self.space = Space(self.core, profiles, limit)

    @property
    def paid(self) -> list[Costs]:
        """The cost of memory at the current multipliers for every label, per position."""
        return [self.duals.paid[a:b] for a, b in pairwise(self.core.offsets.tolist())]

    @property
    def multipliers(self) -> Multipliers:
        """The best multipliers, by moment."""
        best = self.duals.best.multipliers
        return {int(moment): float(best[moment]) for moment in np.flatnonzero(best)}

    def begin(self, known: Mapping[int, float], scale: float) -> None:
        """Starts from multipliers by numbers of moments, in costs of the problem; the graph's costs are `scale` times
        those."""
        multipliers = np.array([scale * known.get(int(number), 0.0) for number in self.graph.moments])
        if multipliers.any():
            self.duals.set_multipliers(multipliers)
            self.duals.active |= multipliers > 0

    def numbered(self, scale: float) -> Multipliers:
        """The best multipliers in the form that `begin` takes."""
        return {int(self.graph.moments[moment]): multiplier / scale for moment, multiplier in self.multipliers.items()}

    def restore_best(self) -> float:
        """Returns to the best state, ready for pruning; returns what the dual's bound exceeds the Lagrangian by:
        the multipliers times the available room."""
        self.duals.back()
        self.duals.dual.sweep()
        return self.duals.dual.bound() - self.duals.bound()

    def smaller(self, ceiling: float) -> SearchState | None:
        """The state without what costs more than `ceiling`, if that is much; everything that costs less is still in it.

        Raises `Contradiction` when nothing is left.
        """
        target = ceiling + self.restore_best()
        if surviving(self.duals.dual, target) >= STATE_SHRINKS * self.core.pairs:
            return None
        graph = self.pruned(target)
        if graph.pairs >= STATE_SHRUNK * self.core.pairs:
            return None
        state = SearchState(graph, self.limit)
        state._inherit(self)
        return state

    def pruned(self, target: float) -> Graph:
        """The graph without what costs more than `target` in the dual's costs, reduced. Valid right after
        `restore_best`."""
        graph = self.graph.copy()
        prune(graph, self.duals.dual, target, adopt=False)
        presolve(graph, self.limit)
        return graph

    def _inherit(self, other: SearchState) -> None:
        """Takes over the multipliers of a state with more moments."""
        self.begin(other.numbered(1.0), 1.0)
        self.duals.length = other.duals.length

    def likeliest(self, choices: Indices, width: float) -> list[tuple[int, ...]]:
        """The labels with the lowest reduced costs, those of an assignment among them, as many as make `width`
        pairs."""
        self.restore_best()
        excess = label_excess(self.duals.dual)
        offsets = self.core.offsets
        excess[offsets[:-1] + choices] = 0.0
        owner = np.repeat(np.arange(len(self.core.nodes)), self.core.sizes)
        low, high = 0.0, float(excess[np.isfinite(excess)].max())
        for _ in range(STATE_BISECTIONS):
            middle = (low + high) / 2
            counts = np.bincount(owner[excess <= middle], minlength=len(self.core.nodes))
            many = float((counts[self.core.first] * counts[self.core.second] - 1).sum()) > width
            low, high = (low, middle) if many else (middle, high)
        fits = excess <= low
        return [tuple(np.flatnonzero(fits[a:b]).tolist()) for a, b in pairwise(offsets.tolist())]
