"""Linear functions of many assignments at once: nodes with equal costs, and edges with equal tables, share the places
at which they are looked up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.problem import Costs, Problem

Choices = tuple[int, ...]
Indices = NDArray[np.int64]
Values = NDArray[np.float64]
LinearFunction: TypeAlias = Values
"""The numbers of all choices, and of all pairs of choices, at their places."""


@dataclass(frozen=True)
class Functions:
    """The linear functions of a problem: `base`, the costs without maxima (`inf` if forbidden), and `sums`, those of
    all maxima; `groups[k]`: the number of the maximum of sum k. `u`, `v`: the ends of every edge. `nodes`, `edges`: the
    places of their first numbers; `sizes`: the number of choices of every node."""

    base: LinearFunction
    sums: tuple[LinearFunction, ...]
    groups: tuple[int, ...]
    u: Indices
    v: Indices
    nodes: Indices
    edges: Indices
    sizes: Indices

    @classmethod
    def of(cls, problem: Problem) -> Functions:
        sums = [(number, one) for number, maximum in enumerate(problem.maxima) for one in maximum.sums]
        tables = [edge.table for edge in problem.edges]
        places = _Places()
        nodes = places.of(zip(problem.costs, *(one.costs for _, one in sums), strict=True))
        edges = places.of(zip(tables, *(one.tables for _, one in sums), strict=True))
        base, *others = places.functions(1 + len(sums))
        return cls(
            base,
            tuple(others),
            tuple(number for number, _ in sums),
            _indices(edge.u for edge in problem.edges),
            _indices(edge.v for edge in problem.edges),
            nodes,
            edges,
            _indices(cost.size for cost in problem.costs),
        )

    @cached_property
    def finite(self) -> tuple[LinearFunction, ...]:
        """What counts forbidden choices and pairs, the costs without maxima, 0 where forbidden, and all sums."""
        is_barred = np.isinf(self.base)
        return is_barred.astype(np.float64), np.where(is_barred, 0.0, self.base), *self.sums

    @property
    def numbers(self) -> int:
        """How many numbers are looked up for all functions of one assignment."""
        return (self.nodes.size + self.u.size) * (1 + len(self.sums))

    def of_nodes(self, choices: Indices) -> Indices:
        """Places by assignment and node; `choices`: assignments x nodes."""
        return np.asarray(self.nodes + choices)

    def of_edges(self, first: Indices, second: Indices) -> Indices:
        """Places by assignment and edge, for the choices of the edges' ends: assignments x edges."""
        return np.asarray(self.edges + first * self.sizes[self.v] + second)

    def arrays(self, function: LinearFunction) -> tuple[tuple[Costs, ...], tuple[Costs, ...]]:
        """The costs of all nodes and the tables of all edges; those at the same place are the same object."""
        made: dict[int, Costs] = {}

        def array(start: int, *shape: int) -> Costs:
            if start not in made:
                made[start] = function[start : start + math.prod(shape)].reshape(shape)
            return made[start]

        rows, columns = self.sizes[self.u].tolist(), self.sizes[self.v].tolist()
        return (
            tuple(map(array, self.nodes.tolist(), self.sizes.tolist())),
            tuple(map(array, self.edges.tolist(), rows, columns)),
        )

    def costs(self, choices: Indices) -> Values:
        """Costs with maxima by assignment; `inf` if forbidden. `choices`: assignments x nodes."""
        base, *sums = self.totals(choices)
        return self.with_maxima(base, sums)

    def totals(self, choices: Indices) -> Iterator[Values]:
        """Values by assignment, of the costs without maxima and of all sums; `choices`: assignments x nodes."""
        nodes, edges = self.of_nodes(choices), self.of_edges(choices[:, self.u], choices[:, self.v])
        for function in (self.base, *self.sums):
            yield np.asarray(function[nodes].sum(axis=1) + function[edges].sum(axis=1))

    def with_maxima(self, base: Values, sums: Iterable[Values]) -> Values:
        """Total costs from the costs without maxima and the values of all `sums`."""
        most = np.zeros((max(self.groups, default=-1) + 1, *base.shape))
        for group, values in zip(self.groups, sums, strict=True):
            np.maximum(most[group], values, out=most[group])
        return np.asarray(base + most.sum(axis=0))


class _Places:
    """Places for arrays that several functions have at the same nodes or edges: the same for the same arrays."""

    def __init__(self) -> None:
        self._starts: dict[tuple[int, ...], int] = {}
        self._arrays: list[tuple[Costs, ...]] = []
        self._end = 0

    def of(self, arrays: Iterable[tuple[Costs, ...]]) -> Indices:
        """The first place of each entry: one array of every function."""
        return _indices(map(self._start, arrays))

    def _start(self, arrays: tuple[Costs, ...]) -> int:
        key = tuple(map(id, arrays))
        if key not in self._starts:
            self._starts[key] = self._end
            self._arrays.append(arrays)
            self._end += arrays[0].size
        return self._starts[key]

    def functions(self, count: int) -> list[LinearFunction]:
        """The numbers of every function at all places."""
        nothing = [np.zeros(0)]
        return [np.concatenate([*(each[number].ravel() for each in self._arrays), *nothing]) for number in range(count)]


def _indices(numbers: Iterable[int]) -> Indices:
    return np.fromiter(numbers, dtype=np.int64)
