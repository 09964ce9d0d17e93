"""Crossover of many assignments of a problem with maxima and without memory: one up to a node, the other from there on.

`crossover_of_cores.py` has the same for two assignments of a core, with their bytes at moments.

Identical layers make an average of maxima (`bound/averages.py`) jump from one extreme to the other: every layer
computes more, or every layer sends more. Between the extremes are the assignments in which some layers do one and some
the other; their sums, which are linear, run from those of one extreme to those of the other, plus the cost of one seam.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardplan.solve.linear_functions import Choices, Functions, Indices, Values


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
    crossed = Crossovers(functions, assignments)
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


class Crossovers:
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
        self.alone = self._alone(self.whole)

    def replace_first(self, choices: Choices) -> None:
        """Puts another assignment in the place of the first one."""
        self.whole[0] = choices
        for (before, after), (first, rest) in zip(self.alone, self._alone(self.whole[:1]), strict=True):
            before[0], after[0] = first[0], rest[0]

    def _alone(self, whole: Indices) -> list[tuple[Values, Values]]:
        """For every linear function, by assignment and t: the costs of the first t nodes alone, and those of the other
        nodes."""
        nodes = self.functions.of_nodes(whole)
        edges = self.functions.of_edges(whole[:, self.u], whole[:, self.v])
        found = []
        for function in self.functions.finite:
            first = np.pad(function[nodes].cumsum(axis=1), ((0, 0), (1, 0)))
            values = function[edges]
            reached = self.reached.sums(values)
            found.append((first + self.passed.sums(values), first[:, -1:] - first + reached[:, -1:] - reached))
        return found

    def costs(self, heads: Indices, tails: Indices) -> Values:
        """Entry (p, t): assignment `heads[p]` on the first t nodes, `tails[p]` on the rest; t is below the number of
        nodes."""
        values = self.values(heads, tails)
        is_barred, base = next(values) > 0.0, next(values)
        return np.asarray(np.where(is_barred, np.inf, self.functions.with_maxima(base, values))[:, :-1])

    def values(self, heads: Indices, tails: Indices) -> Iterator[Values]:
        """The numbers of forbidden pairs, the costs without maxima, and the values of all sums, one after the other:
        entry (p, t) of each as above, t up to the number of nodes."""
        head, tail = self.whole[heads], self.whole[tails]
        low = np.where(self.rising, head[:, self.u], tail[:, self.u])
        high = np.where(self.rising, tail[:, self.v], head[:, self.v])
        seams = self.functions.of_edges(low, high)

        for function, (before, after) in zip(self.functions.finite, self.alone, strict=True):
            seam = function[seams]
            yield before[heads] + after[tails] + self.reached.sums(seam) - self.passed.sums(seam)


class _Running:
    """Running sums over edges: entry t has those whose key is at most t."""

    def __init__(self, keys: Indices, last: int) -> None:
        self.order = np.argsort(keys, kind="stable")
        self.counts = np.searchsorted(keys[self.order], np.arange(last + 1), side="right")

    def sums(self, values: Values) -> Values:
        """By assignment and t, the sums of values by assignment and edge."""
        running = np.pad(values[:, self.order].cumsum(axis=1), ((0, 0), (1, 0)))
        return np.asarray(running[:, self.counts])
