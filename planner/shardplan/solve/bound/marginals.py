"""Min-marginals: the extra cost of forcing a choice, or a pair of choices, for every node, in one backward pass.

Elimination minimised node v out of `A(a, v) + c(v) + B(v, b)` and left `J(a, b)` behind. In the backward pass, the
least cost with (a, b) fixed is known; less J it is the cost of the rest of the graph, and with A, c and B added again
it gives the least cost for every choice of v and for every pair of v with a neighbour. If a pair of neighbours is not
known, the larger of the two known parts is taken: a lower bound, which is enough for pruning. Entries above `room` are
dropped at once, so that the pass handles only what can be part of an assignment that good.
"""

from __future__ import annotations

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.constants import MARGINAL_CELLS
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.graph import Gone, Graph, Take
from shardplan.solve.reduce.tables import NONE


class Marginals:
    """`node[v]` and `pair[v][w]`: excess over the bound, infinite beyond `room`."""

    def __init__(self, reduced: Graph, dual: Dual | None, room: float) -> None:
        self.graph = reduced
        self.room = room
        self.node: dict[int, Costs] = {}
        self.pair: dict[int, dict[int, Costs]] = {}
        if dual is not None:
            self._from_dual(dual)
        for step in reversed(reduced.postsolve):
            if isinstance(step, Gone):
                self._gone(step)
            elif isinstance(step, Take):
                self._take(step)

    def _from_dual(self, dual: Dual) -> None:
        core = dual.core
        excess = dual.theta - np.repeat(dual.least(), core.sizes)
        for position, node in enumerate(core.nodes):
            self._set_node(node, excess[core.offsets[position] : core.offsets[position + 1]])
        for edge in range(len(core.tables)):
            u, v = core.nodes[core.first[edge]], core.nodes[core.second[edge]]
            self._set_pair(u, v, dual.slack(edge) + self.node[u][:, None] + self.node[v][None, :])

    def _set_node(self, node: int, excess: Costs) -> None:
        self.node[node] = np.where(excess <= self.room, excess, np.inf)

    def _set_pair(self, u: int, v: int, excess: Costs) -> None:
        kept = np.where(excess <= self.room, excess, np.inf)
        self.pair.setdefault(u, {})[v] = kept
        self.pair.setdefault(v, {})[u] = kept.T

    def _take(self, step: Take) -> None:
        """Dropped choices cost infinity."""
        rows, size = np.array(step.rows), step.size
        self.node[step.node] = _spread(self.node[step.node], rows, size)
        for other, table in self.pair.get(step.node, {}).items():
            self.pair[step.node][other] = wide = _spread(table, rows, size)
            self.pair[other][step.node] = wide.T

    def _gone(self, step: Gone) -> None:
        arrays = self.graph.tables.arrays
        costs = 0.0 if step.costs == NONE else arrays[step.costs]
        if not step.neighbours:
            self._set_node(step.node, costs + np.zeros(self.graph.sizes[step.node]))
        elif len(step.neighbours) == 1:
            self._leaf(step, costs)
        else:
            self._between(step, costs)

    def _leaf(self, step: Gone, costs: Costs | float) -> None:
        """O(a) = E(a) - J(a); then E(v, a) = c + A + O."""
        (a,) = step.neighbours
        joint = self.graph.tables.arrays[step.tables[0]] + np.expand_dims(costs, -1)
        least = joint.min(axis=0)
        pair = joint + np.where(np.isfinite(least), self.node[a] - np.where(np.isfinite(least), least, 0.0), np.inf)
        self._set_pair(step.node, a, pair)
        self._set_node(step.node, pair.min(axis=1))

    def _between(self, step: Gone, costs: Costs | float) -> None:
        a, b = step.neighbours
        arrays = self.graph.tables.arrays
        left, right = arrays[step.tables[0]] + np.expand_dims(costs, -1), arrays[step.tables[1]]
        rows, columns = np.flatnonzero(np.isfinite(self.node[a])), np.flatnonzero(np.isfinite(self.node[b]))
        known = self.pair.get(a, {}).get(b)
        if known is None:
            outer = np.maximum(self.node[a][rows, None], self.node[b][None, columns])
        else:
            outer = known[np.ix_(rows, columns)]
        to_a = np.full(left.shape, np.inf)
        to_b = np.full(right.shape, np.inf)
        narrow = np.ascontiguousarray(right[:, columns])
        step_rows = max(1, MARGINAL_CELLS // max(1, narrow.size))
        for start in range(0, len(rows), step_rows):
            part = rows[start : start + step_rows]
            joint = left[:, part, None] + narrow[:, None, :]  # (v, a, b)
            least = joint.min(axis=0)
            closed = ~np.isfinite(least)
            rest = np.where(closed, np.inf, outer[start : start + step_rows] - np.where(closed, 0.0, least))
            joint += rest
            to_a[:, part] = joint.min(axis=2)
            to_b[:, columns] = np.minimum(to_b[:, columns], joint.min(axis=1))
        self._set_pair(step.node, a, to_a)
        self._set_pair(step.node, b, to_b)
        self._set_node(step.node, to_a.min(axis=1))


def _spread(table: Costs, rows: np.ndarray, size: int) -> Costs:
    wide = np.full((size, *table.shape[1:]), np.inf)
    wide[rows] = table
    return wide
