"""Crossover of many assignments of a problem with maxima and without memory: one up to a node, the other from there on.

`crossover_of_cores.py` has the same for two assignments of a core, with their bytes at moments.

Identical layers make an average of maxima (`bound/averages.py`) jump from one extreme to the other: every layer
computes more, or every layer sends more. Between the extremes are the assignments in which some layers do one and some
the other; their sums, which are linear, run from those of one extreme to those of the other, plus the cost of one seam.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardplan.solve.linear_functions import Choices, Functions, Indices, LinearFunction, Values


def crossovers(functions: Functions, assignments: Sequence[Choices], most: int) -> list[Choices]:
    """The cheapest crossover of every ordered pair of assignments, limited to those with the lowest costs; memory is
    ignored."""
    every = np.arange(len(assignments))
    return _cheapest(functions, assignments, [(np.full_like(every, first), every) for first in every], most)


def crossovers_with(
    functions: Functions, parents: int, assignments: Sequence[Choices], most: int, below: float = np.inf
) -> list[Choices]:
    """Crossovers of each of the first `parents` of some assignments with all others, in both orders, if they cost less
    than `below`."""
    every = np.arange(len(assignments))
    firsts = [np.full_like(every, first) for first in every[:parents]]
    pairs = [pair for first in firsts for pair in ((first, every), (every, first))]
    return _cheapest(functions, assignments, pairs, most, below)


def _cheapest(
    functions: Functions,
    assignments: Sequence[Choices],
    pairs: Sequence[tuple[Indices, Indices]],
    most: int,
    below: float = np.inf,
) -> list[Choices]:
    """At most `most` new assignments: the cheapest crossover of every pair."""
    crossed = _Crossovers(functions, assignments)
    found: dict[Choices, float] = {}
    for heads, tails in pairs:
        costs = crossed.costs(heads, tails)
        places = costs.argmin(axis=1).tolist()
        for row, (head, tail, place) in enumerate(zip(heads.tolist(), tails.tolist(), places, strict=True)):
            if costs[row, place] < below:
                found.setdefault((*assignments[head][:place], *assignments[tail][place:]), float(costs[row, place]))
    for choices in assignments:
        found.pop(choices, None)
    return sorted(found, key=lambda choices: (found[choices], choices))[:most]


class _Crossovers:
    """The costs of all crossovers of some assignments.

    With the first t nodes from one assignment and the rest from the other, an edge has the other's cost until the first
    of its ends is reached, then that of the seam, then that of the one. Every linear function is thus a difference of
    running sums in the order of the nodes; forbidden pairs are counted in the same way.
    """

    def __init__(self, functions: Functions, assignments: Sequence[Choices]) -> None:
        self.whole = np.array(assignments, dtype=np.int64)
        self.functions, self.u, self.v = functions, functions.u, functions.v
        self.rising = self.u < self.v
        count = self.whole.shape[1]
        self.reached = _Running(np.minimum(self.u, self.v) + 1, count)
        self.passed = _Running(np.maximum(self.u, self.v) + 1, count)
        nodes = functions.of_nodes(self.whole)
        edges = functions.of_edges(self.whole[:, self.u], self.whole[:, self.v])
        is_barred = np.isinf(functions.base)
        self.barred = self._alone(is_barred.astype(np.float64), nodes, edges)
        self.base = self._alone(np.where(is_barred, 0.0, functions.base), nodes, edges)
        self.sums = [self._alone(one, nodes, edges) for one in functions.sums]

    def _alone(self, function: LinearFunction, nodes: Indices, edges: Indices) -> tuple[LinearFunction, Values, Values]:
        """By assignment and t, the costs of the first t nodes alone, and those of the other nodes. `nodes`, `edges`:
        the places of their numbers."""
        first = np.pad(function[nodes].cumsum(axis=1), ((0, 0), (1, 0)))
        values = function[edges]
        reached = self.reached.sums(values)
        return function, first + self.passed.sums(values), first[:, -1:] - first + reached[:, -1:] - reached

    def costs(self, heads: Indices, tails: Indices) -> Values:
        """Entry (p, t): assignment `heads[p]` on the first t nodes, `tails[p]` on the rest; t is below the number of
        nodes."""
        head, tail = self.whole[heads], self.whole[tails]
        low = np.where(self.rising, head[:, self.u], tail[:, self.u])
        high = np.where(self.rising, tail[:, self.v], head[:, self.v])
        seams = self.functions.of_edges(low, high)

        def along(alone: tuple[LinearFunction, Values, Values]) -> Values:
            function, before, after = alone
            seam = function[seams]
            return np.asarray(before[heads] + after[tails] + self.reached.sums(seam) - self.passed.sums(seam))

        costs = self.functions.with_maxima(along(self.base), map(along, self.sums))
        return np.asarray(np.where(along(self.barred) > 0.0, np.inf, costs)[:, :-1])


class _Running:
    """Running sums over edges: entry t has those whose key is at most t."""

    def __init__(self, keys: Indices, last: int) -> None:
        self.order = np.argsort(keys, kind="stable")
        self.counts = np.searchsorted(keys[self.order], np.arange(last + 1), side="right")

    def sums(self, values: Values) -> Values:
        """By assignment and t, the sums of values by assignment and edge."""
        running = np.pad(values[:, self.order].cumsum(axis=1), ((0, 0), (1, 0)))
        return np.asarray(running[:, self.counts])
