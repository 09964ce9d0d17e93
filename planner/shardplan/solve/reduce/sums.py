"""Maxima of sums: the tables of the sums become nodes, so that every sum looks like one more moment of memory.

    minimise    cost(x) + sum_g max(0, max_k s_gk(x))

If a table's entries are not separable, the pair that is taken becomes a node of its own between the two ends, with a
choice for every distinct row and column. Each sum is then a sum over nodes and can be treated as the memory of one more
moment, whose excess costs one per unit; of the moments of one maximum, the largest excess is paid. For multipliers w_gk
>= 0 with sum_k w_gk <= 1,

    min over x of  cost(x) + sum_gk w_gk s_gk(x)    <=    min over x of  cost(x) + sum_g max(0, max_k s_gk(x))

as every maximum is at least any such average of its sums and zero. So these multipliers give a lower bound and an
assignment, as those of memory do; a choice that dominates in cost and in every sum dominates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.solve.problem import Costs, Edge, LinearSum, Problem
from shardplan.solve.reduce.graph import Groups

Amounts = list[tuple[int, int, Costs]]


@dataclass(frozen=True, slots=True)
class SumsOnNodes:
    """`problem` has more nodes and no maxima; `amounts`: a node, a sum, and what the node's choices add to it;
    `groups`: the sums of every maximum. Node v has become node `places[v]`. `pairs`: an added node, its ends by their
    old numbers, and its choice for every pair of theirs."""

    problem: Problem
    amounts: Amounts
    groups: Groups
    places: tuple[int, ...]
    pairs: tuple[tuple[int, int, int, Costs], ...]

    def apply(self, choices: Sequence[int]) -> tuple[int, ...]:
        """An assignment of the original problem, as an assignment of `problem`."""
        wide = [0] * (len(choices) + len(self.pairs))
        for place, choice in zip(self.places, choices, strict=True):
            wide[place] = choice
        for node, u, v, number in self.pairs:
            wide[node] = int(number[choices[u], choices[v]])
        return tuple(wide)

    def invert(self, choices: Sequence[int]) -> tuple[int, ...]:
        """An assignment of `problem`, as an assignment of the original problem."""
        return tuple(choices[place] for place in self.places)


def sums_to_nodes(problem: Problem) -> SumsOnNodes:
    """A problem whose sums are sums over nodes. An added node comes right before the later one of its ends."""
    sums = [one for maximum in problem.maxima for one in maximum.sums]
    if not sums:
        return SumsOnNodes(problem, [], (), tuple(range(len(problem.costs))), ())
    parts = _parts(problem, sums)
    later = [max(edge.u, edge.v) for edge, part in zip(problem.edges, parts, strict=True) if part is not None]
    added = np.bincount(np.array(later, dtype=np.int64), minlength=len(problem.costs))
    places = np.arange(len(problem.costs)) + np.cumsum(added)
    free = places - added  # the first node to be added before a node, then the next
    costs: list[Costs] = [np.zeros(1)] * (len(places) + len(later))
    amounts: Amounts = []
    for node, place in enumerate(places.tolist()):
        costs[place] = problem.costs[node]
        amounts += [(place, number, one.costs[node]) for number, one in enumerate(sums) if one.costs[node].any()]
    edges: list[Edge] = []
    pairs: list[tuple[int, int, int, Costs]] = []
    for edge, part in zip(problem.edges, parts, strict=True):
        u, v = int(places[edge.u]), int(places[edge.v])
        if part is None:
            edges.append(edge._replace(u=u, v=v))
            continue
        end = max(edge.u, edge.v)
        node, free[end] = int(free[end]), free[end] + 1
        costs[node] = part.costs
        amounts += [(node, number, row) for number, row in enumerate(part.amounts) if row.any() or len(sums) == 1]
        edges += [Edge(u, node, part.rows), Edge(node, v, part.columns)]
        pairs.append((node, edge.u, edge.v, part.numbers))
    usages = tuple(usage._replace(node=int(places[usage.node])) for usage in problem.usages)
    wide = replace(problem, costs=tuple(costs), edges=tuple(edges), usages=usages, maxima=())
    return SumsOnNodes(wide, amounts, _numbered(problem), tuple(places.tolist()), tuple(pairs))


def _numbered(problem: Problem) -> Groups:
    """The numbers of the sums of every maximum, counted from the first maximum on."""
    ends = np.cumsum([len(maximum.sums) for maximum in problem.maxima]).tolist()
    return tuple(tuple(range(end - len(maximum.sums), end)) for end, maximum in zip(ends, problem.maxima, strict=True))


def breadth(problem: Problem) -> int:
    """An upper bound on the table entries that `sums_to_nodes` adds: as if every allowed pair needed its own choice."""
    known: dict[tuple[int, ...], int] = {}
    total = 0
    sums = [one for maximum in problem.maxima for one in maximum.sums]
    for number, edge in enumerate(problem.edges):
        tables = [one.tables[number] for one in sums]
        key = tuple(map(id, tables))
        if key not in known:
            pairs = int(np.isfinite(edge.table).sum()) if any(table.any() for table in tables) else 0
            known[key] = min(pairs, _distinct(tables) * len(edge.table)) * sum(edge.table.shape)
        total += known[key]
    return total


def _distinct(tables: list[Costs]) -> int:
    """The number of columns that differ in any of the tables."""
    return len(np.unique(np.concatenate(tables), axis=1).T)


def _parts(problem: Problem, sums: list[LinearSum]) -> list[_Pair | None]:
    """The table of every edge as a node, if it adds to a sum."""
    known: dict[tuple[int, ...], _Pair | None] = {}
    parts = []
    for number, edge in enumerate(problem.edges):
        tables = [one.tables[number] for one in sums]
        key = id(edge.table), *map(id, tables)
        if key not in known:
            known[key] = _pair(edge.table, tables) if any(table.any() for table in tables) else None
        parts.append(known[key])
    return parts


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table as a node: its choices' costs, what they add to every sum, and which of them go with a row and with a
    column."""

    costs: Costs
    amounts: tuple[Costs, ...]
    rows: Costs
    columns: Costs
    numbers: Costs


def _pair(table: Costs, amounts: list[Costs]) -> _Pair:
    """A choice for every distinct row and column, as far as the pair is allowed."""
    row_of, rows = _classes(table, amounts)
    column_of, columns = _classes(table.T, [added.T for added in amounts])
    cells = [(r, c) for r in range(len(rows)) for c in range(len(columns)) if np.isfinite(table[rows[r], columns[c]])]
    cells = cells or [(0, 0)]  # which is forbidden, as all are
    number = {cell: index for index, cell in enumerate(cells)}
    r, c = (np.array([cell[side] for cell in cells], dtype=np.int64) for side in (0, 1))
    numbers = np.array([[number.get((a, b), 0) for b in column_of] for a in row_of], dtype=np.float64)
    return _Pair(
        costs=table[rows[r], columns[c]],
        amounts=tuple(added[rows[r], columns[c]] for added in amounts),
        rows=np.where(row_of[:, None] == r[None, :], 0.0, np.inf),
        columns=np.where(c[:, None] == column_of[None, :], 0.0, np.inf),
        numbers=numbers,
    )


def _classes(table: Costs, amounts: list[Costs]) -> tuple[np.ndarray, np.ndarray]:
    """The class of every row, and the first row of every class."""
    both = np.concatenate([np.where(np.isinf(table), -1.0, table), *amounts], axis=1)
    _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return inverse.ravel(), first
