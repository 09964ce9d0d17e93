"""Dominated choices: choices that another choice of the same node beats for all choices of the rest of the graph.

Choice b makes a superfluous when it never uses more memory and

    c(b) - c(a) + sum over neighbours w of max_j [M_w(b, j) - M_w(a, j)]  <=  0.

Among choices that beat each other, the first is kept. Nodes with equal costs and tables are tested once, and nodes of
one size together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.constants import DOMINATE_BATCH, DOMINATE_BLOCK, DOMINATE_ENTRIES, DOMINATE_NODE_ENTRIES
from shardplan.solve.reduce.graph import Graph
from shardplan.solve.reduce.tables import NONE, Tables, open_rows


class Look(NamedTuple):
    """What decides which choices of a node are dominated: its size, costs, matrices and amounts. `kind` sets the key of
    its result apart from others."""

    kind: str
    size: int
    costs: int
    matrices: tuple[int, ...]
    amounts: tuple[int, ...]


def dominate(graph: Graph) -> bool:
    """Removes dominated choices of every node; returns whether there were any. Uses must be disjoint in time
    (`flatten`).

    All nodes are tested before any changes, since a choice is dominated for all choices of its neighbours.
    """
    tables, left = graph.tables, float(DOMINATE_ENTRIES)
    looks: dict[int, Look] = {}
    fresh: dict[int, dict[Look, None]] = {}
    for node in graph.alive:
        size = graph.sizes[node]
        work = size**2 * sum(graph.sizes[other] for other in graph.neighbours[node])
        if size > 1 and work <= min(DOMINATE_NODE_ENTRIES, left):
            matrices = tuple(sorted(graph.neighbours[node].values()))
            amounts = tuple(sorted({use.amount for use in graph.uses[node]}))
            looks[node] = look = Look("kept", size, graph.costs[node], matrices, amounts)
            if tables.known(look) is None and look not in fresh.setdefault(size, {}):
                left -= work
                fresh[size][look] = None
    for size, group in fresh.items():
        step = max(1, DOMINATE_BATCH // size**2)
        for some in batched(group, step):
            for look, kept in zip(some, _kept(tables, size, some), strict=True):
                tables.memo(look, functools.partial(tuple, kept))
    changed = False
    for node, look in looks.items():
        kept = tables.known(look)
        if len(kept) < graph.sizes[node]:
            graph.keep(node, kept)
            changed = True
    return changed


def batched(items: Iterable[Look], size: int) -> Iterator[tuple[Look, ...]]:
    """Groups of `size` items; the last group may be smaller."""
    rest = iter(items)
    while group := tuple(islice(rest, size)):
        yield group


def _kept(tables: Tables, size: int, looks: tuple[Look, ...]) -> list[tuple[int, ...]]:
    """The choices to keep for each distinct node, all of one size."""
    arrays = tables.arrays
    own = np.stack([np.zeros(size) if look.costs == NONE else arrays[look.costs] for look in looks])
    loss = own[:, :, None] - own[:, None, :]  # [look, b, a]
    for index, look in enumerate(looks):
        for matrix in look.matrices:
            loss[index] += excess(tables, matrix)
    beats = loss <= 0
    owners = [index for index, look in enumerate(looks) for _ in look.amounts]
    if owners:
        used = np.stack([arrays[amount] for look in looks for amount in look.amounts])
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        more = np.logical_or.reduceat(used[:, :, None] > used[:, None, :], first)
        beats[np.array(owners)[first]] &= ~more
    order = np.arange(size)
    killed = beats & ~(beats.transpose(0, 2, 1) & (order[:, None] > order[None, :]))
    killed[:, order, order] = False
    return [open_rows(row) for row in np.atleast_2d(~killed.any(axis=1))]


def excess(tables: Tables, matrix: int) -> NDArray[np.float64]:
    """`[b, a]`: the largest excess of row b over row a; columns that forbid a do not count."""
    return tables.memo(("excess", matrix), lambda: _excess(tables.arrays[matrix]))


def _excess(table: NDArray[np.float64]) -> NDArray[np.float64]:
    closed = np.isinf(table)
    rows = len(table)
    out = np.empty((rows, rows))
    step = max(1, DOMINATE_BLOCK // table.size)
    with np.errstate(invalid="ignore"):
        for start in range(0, rows, step):
            difference = table[start : start + step, None, :] - table[None, :, :]
            difference[:, closed] = -np.inf
            out[start : start + step] = difference.max(axis=2)
    return out
