"""Linear functions of many assignments at once: equal rows and equal tables are looked up together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.problem import Costs, Problem

Choices = tuple[int, ...]
Indices = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearFunction:
    """`rows`, `tables`: each distinct array once, with the nodes, or edges, that have it."""

    rows: Sequence[tuple[Costs, Indices]]
    tables: Sequence[tuple[Costs, Indices]]

    @classmethod
    def of(cls, costs: Sequence[Costs], tables: Sequence[Costs]) -> LinearFunction:
        return cls(_grouped(costs), _grouped(tables))

    def map(self, change: Callable[[Costs], Costs]) -> LinearFunction:
        """The function of changed costs."""
        rows, tables = ([(change(array), at) for array, at in parts] for parts in (self.rows, self.tables))
        return LinearFunction(rows, tables)

    def of_nodes(self, choices: Indices) -> Values:
        """Values by assignment and node; `choices`: assignments x nodes."""
        values = np.zeros(choices.shape)
        for row, nodes in self.rows:
            values[:, nodes] = row[choices[:, nodes]]
        return values

    def of_edges(self, first: Indices, second: Indices) -> Values:
        """Values by assignment and edge, for the choices of the edges' ends: assignments x edges."""
        values = np.zeros(first.shape)
        for table, edges in self.tables:
            values[:, edges] = table[first[:, edges], second[:, edges]]
        return values


@dataclass(frozen=True)
class Functions:
    """The linear functions of a problem: the costs without maxima (`inf` if forbidden), and the sums of all maxima;
    `groups[k]`: the number of the maximum of sum k. `u`, `v`: the ends of every edge."""

    base: LinearFunction
    sums: tuple[LinearFunction, ...]
    groups: tuple[int, ...]
    u: Indices
    v: Indices

    @classmethod
    def of(cls, problem: Problem) -> Functions:
        sums = [(number, one) for number, maximum in enumerate(problem.maxima) for one in maximum.sums]
        return cls(
            LinearFunction.of(problem.costs, [edge.table for edge in problem.edges]),
            tuple(LinearFunction.of(one.costs, one.tables) for _, one in sums),
            tuple(number for number, _ in sums),
            np.array([edge.u for edge in problem.edges], dtype=np.int64),
            np.array([edge.v for edge in problem.edges], dtype=np.int64),
        )

    def costs(self, choices: Indices) -> Values:
        """Costs with maxima by assignment; `inf` if forbidden. `choices`: assignments x nodes."""
        return self.with_maxima(self.total(self.base, choices), (self.total(one, choices) for one in self.sums))

    def with_maxima(self, base: Values, sums: Iterable[Values]) -> Values:
        """Total costs from the costs without maxima and the values of all `sums`."""
        most = np.zeros((max(self.groups, default=-1) + 1, *base.shape))
        for group, values in zip(self.groups, sums, strict=True):
            np.maximum(most[group], values, out=most[group])
        return np.asarray(base + most.sum(axis=0))

    def total(self, function: LinearFunction, choices: Indices) -> Values:
        """Values by assignment; `choices`: assignments x nodes."""
        edges = function.of_edges(choices[:, self.u], choices[:, self.v])
        return np.asarray(function.of_nodes(choices).sum(axis=1) + edges.sum(axis=1))


def _grouped(arrays: Sequence[Costs]) -> list[tuple[Costs, Indices]]:
    """The arrays that are not all zero, each once, with the indices at which they occur."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, array in enumerate(arrays):
        places[id(array)].append(place)
    return [(arrays[at[0]], np.array(at, dtype=np.int64)) for at in places.values() if np.any(arrays[at[0]])]
