"""The core: what the reductions leave, in flat arrays; labels of all nodes in one array, edges in the order of
sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.constants import WAVEFRONT_NODES
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.graph import Graph, Use
from shardplan.solve.reduce.tables import NONE

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=False)
class Core:
    """`nodes[p]` is the graph's node at position p; its labels are `offsets[p]:offsets[p + 1]` of every flat vector.

    Sweeps visit `levels`, in which neighbours differ. Edge e joins positions `first[e] < second[e]`; `tables[e]` has
    the labels of `first[e]` as rows.
    """

    nodes: tuple[int, ...]
    levels: Indices
    offsets: Indices
    costs: Costs
    first: Indices
    second: Indices
    tables: tuple[Costs, ...]
    numbers: tuple[int, ...]
    uses: tuple[tuple[Use, ...], ...]
    const: float

    @cached_property
    def sizes(self) -> Indices:
        """Labels per position."""
        return np.diff(self.offsets)

    @cached_property
    def pairs(self) -> int:
        """Entries of all tables."""
        return sum(table.size for table in self.tables)

    @cached_property
    def around(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Per position: (other position, edge, which end of it this one is: 0 first, 1 second)."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in self.nodes]
        for edge, (a, b) in enumerate(zip(self.first.tolist(), self.second.tolist(), strict=True)):
            found[a].append((b, edge, 0))
            found[b].append((a, edge, 1))
        return tuple(map(tuple, found))

    def row(self, edge: int, end: int, label: int) -> Costs:
        """The costs of the other end's labels if end `end` of an edge takes `label`."""
        table = self.tables[edge]
        return table[label] if end == 0 else table[:, label]

    @cached_property
    def _groups(self) -> tuple[tuple[Costs, Indices], ...]:
        """Edges by table."""
        members: dict[int, list[int]] = {}
        for edge, number in enumerate(self.numbers):
            members.setdefault(number, []).append(edge)
        return tuple((self.tables[edges[0]], np.array(edges)) for edges in members.values())

    def pair_costs(self, first: Indices, second: Indices) -> Costs:
        """Cost of every edge whose ends take the labels `first` and `second`, one per edge."""
        paid = np.empty(len(self.tables))
        for table, edges in self._groups:
            paid[edges] = table[first[edges], second[edges]]
        return paid

    def cost(self, choices: Indices) -> float:
        """Cost of one label per position."""
        own = float(self.costs[self.offsets[:-1] + choices].sum())
        return self.const + own + float(self.pair_costs(choices[self.first], choices[self.second]).sum())


def core_of(graph: Graph) -> Core:
    """The nodes that are alive, in the graph's order."""
    nodes = tuple(sorted(graph.alive))
    position = {node: p for p, node in enumerate(nodes)}
    arrays = graph.tables.arrays
    edges = sorted(
        (position[u], position[v], matrix)
        for u in nodes
        for v, matrix in graph.neighbours[u].items()
        if position[u] < position[v]
    )
    zeros = [np.zeros(graph.sizes[node]) if graph.costs[node] == NONE else arrays[graph.costs[node]] for node in nodes]
    rows: list[list[int]] = [[] for _ in nodes]
    for a, b, _ in edges:
        rows[a].append(b)
        rows[b].append(a)
    return Core(
        nodes=nodes,
        levels=colours(rows) if len(nodes) > WAVEFRONT_NODES else depths(rows),
        offsets=np.cumsum([0, *(graph.sizes[node] for node in nodes)], dtype=np.int64),
        costs=np.concatenate(zeros) if zeros else np.zeros(0),
        first=np.array([a for a, _, _ in edges], dtype=np.int64),
        second=np.array([b for _, b, _ in edges], dtype=np.int64),
        tables=tuple(arrays[matrix] for _, _, matrix in edges),
        numbers=tuple(matrix for _, _, matrix in edges),
        uses=tuple(graph.uses[node] for node in nodes),
        const=graph.const,
    )


def depths(rows: Sequence[Sequence[int]]) -> Indices:
    """Levels that follow the order of positions: the level of a position is one more than the highest of its earlier
    neighbours."""
    levels = [0] * len(rows)
    for position, row in enumerate(rows):
        levels[position] = 1 + max((levels[other] for other in row if other < position), default=-1)
    return np.array(levels, dtype=np.int64)


def colours(rows: Sequence[Sequence[int]]) -> Indices:
    """Few levels, by greedy colouring of positions with many neighbours first."""
    levels = [-1] * len(rows)
    for position in sorted(range(len(rows)), key=lambda position: (-len(rows[position]), position)):
        taken = {levels[other] for other in rows[position]}
        levels[position] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
    return np.array(levels, dtype=np.int64)


def spans(starts: Indices, lengths: Indices) -> Indices:
    """Concatenation of `start .. start + length - 1`."""
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(lengths)
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths), dtype=np.int64)
