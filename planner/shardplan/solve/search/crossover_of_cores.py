"""Crossover of two assignments of a core with memory: one up to a node of the graph's order, the other from there on.

`crossover_of_problems.py` has the same for many assignments at once, with maxima and without memory.

At the best multiplier of memory, two assignments often cost the same, one too large and one with room to spare, and
identical layers all differ between them. A crossover at the right layer fits, and costs more than the bound by one seam
only.
"""

from __future__ import annotations

import numpy as np

from shardplan.solve.problem import Costs
from shardplan.solve.reduce.core import Core, Indices


def crossover_costs(core: Core, head: Indices, tail: Indices) -> Costs:
    """The cost of every crossover: entry t has the labels `head` on the first t nodes of the graph's order, `tail` on
    the rest."""
    rank, count = ranks(core), len(core.nodes)
    start = core.offsets[:-1]
    steps = np.zeros(count + 1)
    barred = np.zeros(count + 1, dtype=np.int64)
    np.add.at(steps, rank + 1, core.costs[start + head] - core.costs[start + tail])
    a, b = rank[core.first], rank[core.second]
    low, high = np.minimum(a, b) + 1, np.maximum(a, b) + 1
    before = core.pair_costs(tail[core.first], tail[core.second])
    after = core.pair_costs(head[core.first], head[core.second])
    seam = core.pair_costs(
        np.where(a < b, head[core.first], tail[core.first]), np.where(a < b, tail[core.second], head[core.second])
    )
    closed = np.isinf(seam)
    np.add.at(barred, low[closed], 1)
    np.subtract.at(barred, high[closed], 1)
    seam = np.where(closed, before, seam)
    np.add.at(steps, low, seam - before)
    np.add.at(steps, high, after - seam)
    return np.where(np.cumsum(barred) > 0, np.inf, core.cost(tail) + np.cumsum(steps))


def ranks(core: Core) -> Indices:
    """The index of every position in the graph's order."""
    rank = np.empty(len(core.nodes), dtype=np.int64)
    rank[np.argsort(core.nodes)] = np.arange(len(core.nodes))
    return rank


def crossover(core: Core, head: Indices, tail: Indices, at: int) -> Indices:
    """`head` on the first `at` nodes of the graph's order, `tail` on the rest."""
    return np.where(ranks(core) < at, head, tail)


def crossover_bytes(core: Core, labels: Indices, amounts: Costs, head: Indices, tail: Indices) -> Costs:
    """Bytes of every crossover at one moment, whose row is `labels` and `amounts`, above the base."""
    row = np.zeros(len(core.costs))
    row[labels] = amounts
    start, order = core.offsets[:-1], np.argsort(core.nodes)
    ours, theirs = row[start + head][order], row[start + tail][order]
    return np.asarray(np.concatenate([[0.0], np.cumsum(ours - theirs)]) + theirs.sum())
