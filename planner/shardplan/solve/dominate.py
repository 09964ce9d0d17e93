"""Choices that another choice of the same node beats everywhere, whatever the rest of the graph does.

Choice b makes a superfluous when it never uses more memory and
    c(b) - c(a) + sum over neighbours w of max_j [M_w(b, j) - M_w(a, j)]  <=  0.
Of choices that beat each other the first is kept. Nodes that look alike are looked at once.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.graph import Graph
from shardplan.solve.tables import NONE, Tables, open_rows

LARGEST, MOST_WORK = 1e8, 2e9
"""Table entries that the comparison of one node's choices, and of all nodes', may look at."""
BLOCK = 1 << 15
"""Differences that are held at once."""


def dominate(graph: Graph) -> bool:
    """Remove dominated choices of every node; whether there were any. Uses must be disjoint in time (`flatten`)."""
    changed, left = False, float(MOST_WORK)
    for node in list(graph.alive):
        work = graph.sizes[node] ** 2 * sum(graph.sizes[other] for other in graph.neighbours[node])
        if graph.sizes[node] > 1 and work <= min(LARGEST, left):
            matrices = tuple(sorted(graph.neighbours[node].values()))
            amounts = tuple(sorted({use.amount for use in graph.uses[node]}))
            key = ("kept", graph.sizes[node], graph.costs[node], matrices, amounts)
            kept = graph.tables.known(key)
            if kept is None:
                left -= work
                kept = graph.tables.memo(key, functools.partial(_kept, graph.tables, *key[1:]))
            if len(kept) < graph.sizes[node]:
                graph.keep(node, kept)
                changed = True
    return changed


def _kept(
    tables: Tables, size: int, costs: int, matrices: tuple[int, ...], amounts: tuple[int, ...]
) -> tuple[int, ...]:
    own = np.zeros(size) if costs == NONE else tables.arrays[costs]
    loss = own[:, None] - own[None, :]  # [b, a]
    for matrix in matrices:
        loss = loss + excess(tables, matrix)
    beats = loss <= 0
    for amount in amounts:
        used = tables.arrays[amount]
        beats &= used[:, None] <= used[None, :]
    order = np.arange(size)
    killed = (beats & ~(beats.T & (order[:, None] > order[None, :]))).copy()
    np.fill_diagonal(killed, val=False)
    return open_rows(np.asarray(~killed.any(axis=0)))


def excess(tables: Tables, matrix: int) -> NDArray[np.float64]:
    """`[b, a]`: how much dearer row b is than row a at most; a column that forbids a counts for nothing."""
    return tables.memo(("excess", matrix), lambda: _excess(tables.arrays[matrix]))


def _excess(table: NDArray[np.float64]) -> NDArray[np.float64]:
    closed = np.isinf(table)
    rows = len(table)
    out = np.empty((rows, rows))
    step = max(1, BLOCK // table.size)
    with np.errstate(invalid="ignore"):
        for start in range(0, rows, step):
            difference = table[start : start + step, None, :] - table[None, :, :]
            difference[:, closed] = -np.inf
            out[start : start + step] = difference.max(axis=2)
    return out
