"""The problem during reduction: nodes, tables by number, memory, and the postsolve stack of what was removed.

Every step below keeps the least cost (`const` + what is left) and every memory profile that an assignment can have.
`invert` goes through the postsolve stack backwards and turns choices of what is left into choices of the whole
problem, at the same cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from shardplan.solve.constants import COST_DIGITS, COST_SPARE
from shardplan.solve.problem import Bytes, Costs, Problem
from shardplan.solve.reduce.tables import NONE, Split, Tables, open_rows

Groups = tuple[tuple[int, ...], ...]
"""Moments that stand for sums, by the maximum that they belong to."""


class Contradiction(Exception):  # noqa: N818 - not an error: a proof that nothing is allowed
    """No assignment is left."""


class Use(NamedTuple):
    """A node's memory from `start` to `end`: table `amount` over its choices, with minimum 0."""

    start: int
    end: int
    amount: int


class Take(NamedTuple):
    """The node `node` kept the choices `rows` of `size`."""

    node: int
    rows: tuple[int, ...]
    size: int


class Follow(NamedTuple):
    """The node `node` takes choice `image[i]` when `leader` takes i."""

    node: int
    leader: int
    image: tuple[int, ...]


class Gone(NamedTuple):
    """The node `node` was minimised out: its best choice depends on at most two neighbours. `tables` have its choices
    as rows."""

    node: int
    costs: int
    neighbours: tuple[int, ...]
    tables: tuple[int, ...]


class Graph:
    """Mutable working copy of a problem. `neighbours[v][w]` is the number of a matrix whose rows are v's choices."""

    def __init__(self, tables: Tables, sizes: list[int], moments: int) -> None:
        self.tables = tables
        self.sizes = sizes
        self.costs = [NONE] * len(sizes)
        self.neighbours: list[dict[int, int]] = [{} for _ in sizes]
        self.uses: list[tuple[Use, ...]] = [()] * len(sizes)
        self.alive = dict.fromkeys(range(len(sizes)))
        self.const = 0.0
        self.scale = 1.0
        self.base_steps = np.zeros(moments + 1, dtype=np.int64)
        self.moments = np.arange(moments)
        self.groups: Groups = ()
        self.postsolve: list[Take | Follow | Gone] = []
        self.touched: dict[int, None] = {}

    def copy(self) -> Graph:
        """An independent copy over the same store of tables."""
        twin = Graph.__new__(Graph)
        twin.tables = self.tables
        twin.sizes = self.sizes.copy()
        twin.costs = self.costs.copy()
        twin.neighbours = [dict(row) if row else {} for row in self.neighbours]
        twin.uses = self.uses.copy()
        twin.alive = self.alive.copy()
        twin.const = self.const
        twin.scale = self.scale
        twin.base_steps = self.base_steps.copy()
        twin.moments = self.moments
        twin.groups = self.groups
        twin.postsolve = self.postsolve.copy()
        twin.touched = self.touched.copy()
        return twin

    @property
    def base(self) -> Bytes:
        """Bytes per moment that every assignment uses."""
        return np.cumsum(self.base_steps[:-1])

    @property
    def hinges(self) -> Groups:
        """For every maximum that may be above zero, the moments that stand for its sums that may be. The largest excess
        at them is paid."""
        if not self.groups:
            return ()
        place = {number: index for index, number in enumerate(self.moments.tolist())}
        left = (tuple(place[number] for number in group if number in place) for group in self.groups)
        return tuple(group for group in left if group)

    @property
    def hinge(self) -> int | None:
        """The moment of the only sum s that may be above zero, of the hinge term max(0, s); `None` if there are none or
        several."""
        hinges = self.hinges
        return hinges[0][0] if len(hinges) == 1 and len(hinges[0]) == 1 else None

    @property
    def pairs(self) -> int:
        """Entries of the tables of all edges."""
        return sum(self.tables.arrays[matrix].size for row in self.neighbours for matrix in row.values()) // 2

    def add_cost(self, node: int, const: float, vector: int) -> None:
        """Add `const + vector[i]` to the cost of the node's choices."""
        if const == np.inf:
            raise Contradiction
        self.const += const
        if vector == NONE:
            return
        more, self.costs[node] = self.tables.sum_vectors(self.costs[node], vector)
        if more == np.inf:
            raise Contradiction
        self.const += more
        self.touched[node] = None

    def add_edge(self, u: int, v: int, split: Split) -> None:
        """Add a matrix in normal form between two nodes; parallel edges become one."""
        self.add_cost(u, split.const, split.row)
        self.add_cost(v, 0.0, split.column)
        if split.rest == NONE:
            return
        held = self.neighbours[u].get(v)
        self.touched[u] = self.touched[v] = None
        if held is None:
            self._link(u, v, split.rest)
            return
        both = self.tables.sum_matrices(held, split.rest)
        self.unlink(u, v)
        self.add_cost(u, both.const, both.row)
        self.add_cost(v, 0.0, both.column)
        if both.rest != NONE:
            self._link(u, v, both.rest)

    def _link(self, u: int, v: int, matrix: int) -> None:
        self.neighbours[u][v] = matrix
        self.neighbours[v][u] = matrix ^ 1

    def unlink(self, u: int, v: int) -> None:
        """Removes the edge between two nodes."""
        del self.neighbours[u][v]
        del self.neighbours[v][u]

    def set_edge(self, u: int, v: int, table: Costs) -> None:
        """Adds an edge with a new matrix."""
        self.add_edge(u, v, self.tables.split(self.tables.add(table)))

    def replace_costs(self, node: int, costs: Costs) -> None:
        """Replaces the costs of a node."""
        self.costs[node] = NONE
        self.add_cost(node, *self.tables.vector(costs))

    def add_uses(self, node: int, uses: Iterable[Use]) -> None:
        """Adds memory to a node; the part that all its choices use goes to the base."""
        more = []
        for start, end, amount in uses:
            least, rest = self.tables.normal(amount)
            self.base_steps[start] += int(least)
            self.base_steps[end] -= int(least)
            if rest != NONE:
                more.append(Use(start, end, rest))
        self.uses[node] = (*self.uses[node], *more)

    def keep(self, node: int, rows: tuple[int, ...]) -> None:
        """Restricts a node to the choices `rows`."""
        if not rows:
            raise Contradiction
        self.postsolve.append(Take(node, rows, self.sizes[node]))
        self._index(node, rows)

    def _index(self, node: int, rows: tuple[int, ...]) -> None:
        """Makes choice i of a node what choice `rows[i]` was."""
        tables = self.tables
        self.sizes[node] = len(rows)
        costs = self.costs[node]
        if costs != NONE:
            self.costs[node] = NONE
            self.add_cost(node, *tables.normal(tables.take(costs, rows)))
        uses, self.uses[node] = self.uses[node], ()
        self.add_uses(node, (Use(use.start, use.end, tables.take(use.amount, rows)) for use in uses))
        for other, matrix in list(self.neighbours[node].items()):
            self.unlink(node, other)
            self.add_edge(node, other, tables.split(tables.take(matrix, rows)))
        self.touched[node] = None

    def drop_infinite(self, node: int) -> bool:
        """Removes choices that cost infinity; returns whether there were any."""
        costs = self.costs[node]
        if not self.tables.has_infinity(costs):
            return False
        self.keep(node, open_rows(np.isfinite(self.tables.arrays[costs])))
        return True

    def propagate(self) -> None:
        """Constraint propagation: removes infinite choices until there are none at any node."""
        while self.touched:
            touched, self.touched = self.touched, {}
            for node in touched:
                if node in self.alive:
                    self.drop_infinite(node)

    def minimise(self, node: int) -> None:
        """Removes a node that uses no memory and has at most two neighbours, with its best choice for each of
        theirs."""
        around = self.neighbours[node]
        costs = self.costs[node]
        others = tuple(around)
        matrices = tuple(around.values())
        self.postsolve.append(Gone(node, costs, others, matrices))
        for other in others:
            del self.neighbours[other][node]
            self.touched[other] = None
        self.neighbours[node] = {}
        del self.alive[node]
        if len(others) == 1:
            self.add_cost(others[0], *self.tables.project(costs, matrices[0]))
        elif others:
            self.add_edge(others[0], others[1], self.tables.join(matrices[0] ^ 1, costs, matrices[1]))

    def apply(self, choices: tuple[int, ...], nodes: Sequence[int]) -> list[int]:
        """The labels of the remaining nodes in an assignment of the original problem; -1 for labels that were
        removed."""
        left = dict(zip(nodes, (choices[node] for node in nodes), strict=True))
        for step in self.postsolve:
            if isinstance(step, Take) and left.get(step.node, -1) >= 0:
                label = left[step.node]
                left[step.node] = step.rows.index(label) if label in step.rows else -1
        return [left[node] for node in nodes]

    def invert(self, core: dict[int, int]) -> tuple[int, ...]:
        """Choices of all nodes of the original problem from the choices of the nodes that are alive."""
        choices = [0] * len(self.sizes)
        for node, choice in core.items():
            choices[node] = choice
        best: dict[tuple[object, ...], int] = {}
        arrays = self.tables.arrays
        for step in reversed(self.postsolve):
            if isinstance(step, Gone):
                key = (step.costs, *((m, choices[w]) for w, m in zip(step.neighbours, step.tables, strict=True)))
                if key not in best:
                    parts = [arrays[m ^ 1][choices[w]] for w, m in zip(step.neighbours, step.tables, strict=True)]
                    parts += [arrays[step.costs]] if step.costs != NONE else []
                    best[key] = int(reduce(add, parts).argmin()) if parts else 0
                choices[step.node] = best[key]
            elif isinstance(step, Take):
                choices[step.node] = step.rows[choices[step.node]]
            else:
                choices[step.node] = step.image[choices[step.leader]]
        return tuple(choices)


def build(
    problem: Problem, tables: Tables, amounts: Sequence[tuple[int, int, Costs]] = (), groups: Groups = ()
) -> Graph:
    """The working copy of a checked problem without maxima. `amounts`: node, sum, and what the node's choices add to
    the sum; `groups`: the sums of every maximum. Sum k becomes moment `problem.moments + k`.

    Its costs are those of the problem times `scale`: a power of two, so the product is exact, and large enough that a
    fraction of a cost can be an integer too.
    """
    sums = sum(map(len, groups))
    graph = Graph(tables, [len(costs) for costs in problem.costs], problem.moments + sums)
    costs = [tables.intern(vector) for vector in problem.costs]
    edges = [tables.intern(edge.table) for edge in problem.edges]
    added = [tables.intern(row) for _, _, row in amounts]
    graph.scale = _scale(max(_total(tables, [*costs, *edges]), _total(tables, added) / COST_SPARE))
    for node, vector in enumerate(costs):
        graph.add_cost(node, *tables.normal(tables.scaled(vector, graph.scale)))
    for edge, matrix in zip(problem.edges, edges, strict=True):
        graph.add_edge(edge.u, edge.v, tables.split(tables.scaled(matrix, graph.scale)))
    if problem.limit is not None:
        _add_usages(graph, problem, problem.limit)
    if sums:
        first = problem.moments
        graph.groups = tuple(tuple(first + number for number in group) for group in groups)
        graph.base_steps[first] += problem.limit or 0
        for (node, number, _), row in zip(amounts, added, strict=True):
            graph.add_uses(node, [Use(first + number, first + number + 1, row)])
    return graph


def _total(tables: Tables, numbers: list[int]) -> float:
    """An upper bound on the sum of all tables."""
    counts = np.bincount(np.array(numbers, dtype=np.int64), minlength=1)
    return sum(
        float(count) * float(np.abs(table[np.isfinite(table)]).max(initial=0.0))
        for number, count in enumerate(counts.tolist())
        if count
        for table in [tables.arrays[number]]
    )


def _scale(total: float) -> float:
    return float(2.0 ** max(0, min(30, COST_DIGITS - int(np.ceil(np.log2(total + 1))))))


def _add_usages(graph: Graph, problem: Problem, limit: int) -> None:
    clipped: dict[int, int] = {}
    for usage in problem.usages:
        if usage.end > usage.start:
            number = clipped.get(id(usage.amount))
            if number is None:  # more than the limit is all the same
                amount = np.minimum(usage.amount, limit + 1).astype(np.float64)
                number = clipped[id(usage.amount)] = graph.tables.add(amount)
            graph.add_uses(usage.node, [Use(usage.start, usage.end, number)])
