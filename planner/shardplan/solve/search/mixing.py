"""Mixing the assignments that plain problems gave: one before some node of the problem's order, another from there on.

Identical layers make an average of maxima (`bound/averages.py`) change from one extreme to the other at once: every
layer computes more, or every layer sends more. In between are the assignments in which some layers do this and some
that; their sums, which are linear, run from those of the one to those of the other, and cost one seam more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.problem import Costs, Problem

Choices = tuple[int, ...]
Indices = NDArray[np.int64]
Values = NDArray[np.float64]


def mixed(problem: Problem, assignments: Sequence[Choices], most: int) -> list[Choices]:
    """The cheapest crossing of every ordered pair of assignments, those with the lowest costs, at most so many; memory
    is not looked at."""
    crossing = _Crossing(problem)
    whole = np.array(assignments, dtype=np.int64)
    found: dict[Choices, float] = {}
    for first, second in permutations(range(len(assignments)), 2):
        costs = crossing.costs(whole[first], whole[second])
        place = int(costs.argmin())
        if np.isfinite(costs[place]):
            choices = tuple(np.concatenate([whole[first][:place], whole[second][place:]]).tolist())
            found.setdefault(choices, float(costs[place]))
    for choices in assignments:
        found.pop(choices, None)
    return sorted(found, key=lambda choices: (found[choices], choices))[:most]


def crossing_costs(problem: Problem, head: Indices, tail: Indices) -> Values:
    """The cost of every crossing of two assignments: entry t has `head` on the first t nodes, `tail` on the rest."""
    return _Crossing(problem).costs(head, tail)


@dataclass(frozen=True, slots=True)
class _Function:
    """A linear function of an assignment, its equal rows and tables together: (array, nodes or edges that have it)."""

    rows: Sequence[tuple[Costs, Indices]]
    tables: Sequence[tuple[Costs, Indices]]

    def of_nodes(self, choices: Indices) -> Values:
        values = np.zeros(len(choices))
        for row, nodes in self.rows:
            values[nodes] = row[choices[nodes]]
        return values

    def of_edges(self, first: Indices, second: Indices) -> Values:
        """By edge, for the choices of its ends."""
        values = np.zeros(len(first))
        for table, edges in self.tables:
            values[edges] = table[first[edges], second[edges]]
        return values


class _Crossing:
    """The cost of every crossing of two assignments."""

    def __init__(self, problem: Problem) -> None:
        self.count = len(problem.costs)
        self.u = np.array([edge.u for edge in problem.edges], dtype=np.int64)
        self.v = np.array([edge.v for edge in problem.edges], dtype=np.int64)
        sums = [one for maximum in problem.maxima for one in maximum.sums]
        self.base = _Function(_grouped(problem.costs), _grouped([edge.table for edge in problem.edges]))
        self.sums = [_Function(_grouped(one.costs), _grouped(one.tables)) for one in sums]
        self.groups = [number for number, maximum in enumerate(problem.maxima) for _ in maximum.sums]

    def costs(self, head: Indices, tail: Indices) -> Values:
        """Entry t: `head` on the first t nodes, `tail` on the rest."""
        costs = self._along(self.base, head, tail)
        most = np.zeros((max(self.groups, default=-1) + 1, self.count + 1))
        for group, one in zip(self.groups, self.sums, strict=True):
            most[group] = np.maximum(most[group], self._along(one, head, tail))
        return np.asarray(costs + most.sum(axis=0))

    def _along(self, function: _Function, head: Indices, tail: Indices) -> Values:
        """A linear function at every crossing: an edge is tail's until the first of its ends is reached, then a seam,
        then head's."""
        u, v = self.u, self.v
        low, high = np.minimum(u, v) + 1, np.maximum(u, v) + 1
        seam = function.of_edges(np.where(u < v, head[u], tail[u]), np.where(u < v, tail[v], head[v]))
        nodes, end = np.arange(self.count), self.count + 1
        spans: list[tuple[Values, Indices | int, Indices | int]] = [
            (function.of_nodes(tail), 0, nodes + 1),
            (function.of_nodes(head), nodes + 1, end),
            (function.of_edges(tail[u], tail[v]), 0, low),
            (seam, low, high),
            (function.of_edges(head[u], head[v]), high, end),
        ]
        steps, barred = np.zeros(end + 1), np.zeros(end + 1)
        for values, start, stop in spans:
            closed = np.isinf(values)
            for change, amounts in ((steps, np.where(closed, 0.0, values)), (barred, closed.astype(np.float64))):
                np.add.at(change, np.broadcast_to(start, amounts.shape), amounts)
                np.subtract.at(change, np.broadcast_to(stop, amounts.shape), amounts)
        return np.asarray(np.where(np.cumsum(barred) > 0, np.inf, np.cumsum(steps))[:-1])


def _grouped(arrays: Sequence[Costs]) -> list[tuple[Costs, Indices]]:
    """Those arrays that are not zero everywhere, each once, with the places where they stand."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, array in enumerate(arrays):
        places[id(array)].append(place)
    return [(arrays[at[0]], np.array(at, dtype=np.int64)) for at in places.values() if np.any(arrays[at[0]])]
