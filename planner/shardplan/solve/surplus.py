"""A second sum, of which only what is above zero is paid: its tables as nodes, so that it looks like one more moment.

    minimise    cost(x) + max(0, surplus(x))

Of a table whose entries do not separate, the pair that is taken becomes a node of its own between the two ends, with a
choice for every row and every column that differs from the others. The sum is then one over nodes, and can be treated
as the memory of one more moment, which may be exceeded at a price of one. A price between zero and one gives a lower
bound and an assignment, as prices of memory do; what dominates in cost and sum dominates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.solve.problem import Costs, Edge, Problem, Surplus

Amounts = list[tuple[int, Costs]]


@dataclass(frozen=True, slots=True)
class Spread:
    """`problem` has more nodes and no surplus; `amounts`: what the choices of a node add to the sum. Node v has become
    node `places[v]`. `pairs`: a node that was added, its ends as they were numbered, its choice for every pair of
    theirs."""

    problem: Problem
    amounts: Amounts
    places: tuple[int, ...]
    pairs: tuple[tuple[int, int, int, Costs], ...]

    def lifted(self, choices: Sequence[int]) -> tuple[int, ...]:
        """An assignment of the problem as it was given as one of `problem`."""
        wide = [0] * (len(choices) + len(self.pairs))
        for place, choice in zip(self.places, choices, strict=True):
            wide[place] = choice
        for node, u, v, number in self.pairs:
            wide[node] = int(number[choices[u], choices[v]])
        return tuple(wide)

    def lowered(self, choices: Sequence[int]) -> tuple[int, ...]:
        """And back."""
        return tuple(choices[place] for place in self.places)


def spread(problem: Problem) -> Spread:
    """A problem whose surplus is a sum over nodes. A node that is added comes right before the later one of its
    ends."""
    surplus = problem.surplus
    if surplus is None:
        return Spread(problem, [], tuple(range(len(problem.costs))), ())
    parts = _parts(problem, surplus)
    later = [max(edge.u, edge.v) for edge, part in zip(problem.edges, parts, strict=True) if part is not None]
    added = np.bincount(np.array(later, dtype=np.int64), minlength=len(problem.costs))
    places = np.arange(len(problem.costs)) + np.cumsum(added)
    free = places - added  # the first node to be added before a node, then the next
    costs: list[Costs] = [np.zeros(1)] * (len(places) + len(later))
    amounts: Amounts = []
    for node, place in enumerate(places.tolist()):
        costs[place] = problem.costs[node]
        if surplus.costs[node].any():
            amounts.append((place, surplus.costs[node]))
    edges: list[Edge] = []
    pairs: list[tuple[int, int, int, Costs]] = []
    for edge, part in zip(problem.edges, parts, strict=True):
        u, v = int(places[edge.u]), int(places[edge.v])
        if part is None:
            edges.append(replace(edge, u=u, v=v))
            continue
        end = max(edge.u, edge.v)
        node, free[end] = int(free[end]), free[end] + 1
        costs[node] = part.costs
        amounts.append((node, part.amounts))
        edges += [Edge(u, node, part.rows), Edge(node, v, part.columns)]
        pairs.append((node, edge.u, edge.v, part.numbers))
    usages = tuple(replace(usage, node=int(places[usage.node])) for usage in problem.usages)
    wide = replace(problem, costs=tuple(costs), edges=tuple(edges), usages=usages, surplus=None)
    return Spread(wide, amounts, tuple(places.tolist()), tuple(pairs))


def breadth(problem: Problem) -> int:
    """Entries of the tables that `spread` adds, at most: a choice of its own for every pair that is allowed."""
    assert problem.surplus is not None
    known: dict[int, int] = {}
    for edge, table in zip(problem.edges, problem.surplus.tables, strict=True):
        if id(table) not in known:
            pairs = int(np.isfinite(edge.table).sum()) if table.any() else 0
            known[id(table)] = min(pairs, _distinct(table) * len(table)) * sum(table.shape)
    return sum(known[id(table)] for table in problem.surplus.tables)


def _distinct(table: Costs) -> int:
    """How many columns differ."""
    return len(np.unique(table, axis=1).T)


def _parts(problem: Problem, surplus: Surplus) -> list[_Pair | None]:
    """The table of every edge as a node, where it adds to the sum."""
    known: dict[tuple[int, int], _Pair | None] = {}
    parts = []
    for edge, table in zip(problem.edges, surplus.tables, strict=True):
        key = id(edge.table), id(table)
        if key not in known:
            known[key] = _pair(edge.table, table) if table.any() else None
        parts.append(known[key])
    return parts


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table as a node: its choices' costs and amounts, and which of them go with a row and with a column."""

    costs: Costs
    amounts: Costs
    rows: Costs
    columns: Costs
    numbers: Costs


def _pair(table: Costs, amounts: Costs) -> _Pair:
    """A choice for every row and every column that differs from the others, as far as the pair is allowed."""
    row_of, rows = _classes(table, amounts)
    column_of, columns = _classes(table.T, amounts.T)
    cells = [(r, c) for r in range(len(rows)) for c in range(len(columns)) if np.isfinite(table[rows[r], columns[c]])]
    number = {cell: index for index, cell in enumerate(cells)}
    r, c = (np.array([cell[side] for cell in cells], dtype=np.int64) for side in (0, 1))
    numbers = np.array([[number.get((a, b), 0) for b in column_of] for a in row_of], dtype=np.float64)
    return _Pair(
        costs=table[rows[r], columns[c]],
        amounts=amounts[rows[r], columns[c]],
        rows=np.where(row_of[:, None] == r[None, :], 0.0, np.inf),
        columns=np.where(c[:, None] == column_of[None, :], 0.0, np.inf),
        numbers=numbers,
    )


def _classes(table: Costs, amounts: Costs) -> tuple[np.ndarray, np.ndarray]:
    """The class of every row, and the first row of every class."""
    both = np.concatenate([np.where(np.isinf(table), -1.0, table), amounts], axis=1)
    _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return inverse.ravel(), first


def between(first: Problem, second: Problem) -> Problem:
    """The problem of the larger of two sums: those of two problems that differ in nothing but their finite costs."""
    made: dict[tuple[int, int], Costs] = {}

    def rise(low: Costs, high: Costs) -> Costs:
        key = id(low), id(high)
        if key not in made:
            closed = np.isinf(low)
            made[key] = np.where(closed, 0.0, high) - np.where(closed, 0.0, low)
        return made[key]

    return replace(
        first,
        surplus=Surplus(
            tuple(map(rise, first.costs, second.costs)),
            tuple(rise(a.table, b.table) for a, b in zip(first.edges, second.edges, strict=True)),
        ),
    )
