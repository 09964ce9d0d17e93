"""Reduced-cost fixing: removal of choices and pairs that no assignment with a cost up to a target can take.

With a label fixed, every other node and edge still costs at least its minimum. So the bound grows by the label's own
excess and by the least excess of its row in every edge of the node; with a pair fixed, by the excess of the pair and of
both labels.
"""

from __future__ import annotations

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.graph import Contradiction, Graph


def prune(graph: Graph, dual: Dual, target: float, *, adopt: bool = True) -> None:
    """Forbids in `graph`, of which `dual.core` was taken, choices and pairs that cost more than `target`.

    With `adopt`, the graph takes over the dual's messages: its costs become theta and its tables r, so that the next
    dual starts from this bound. Raises `Contradiction` when nothing is left: then no assignment costs `target` or less.
    """
    core = dual.core
    room = target - dual.bound()
    if room < 0:
        raise Contradiction
    excess = dual.theta - np.repeat(dual.least(), core.sizes)
    fits = label_excess(dual) <= room
    kept = [np.flatnonzero(fits[core.offsets[p] : core.offsets[p + 1]]) for p in range(len(core.nodes))]
    cut: dict[int, Costs] = {}
    for edge in range(len(core.tables)):
        a, b = int(core.first[edge]), int(core.second[edge])
        rows, columns = (excess[core.offsets[p] + kept[p]] for p in (a, b))
        slack = dual.slack(edge, kept[a], kept[b])
        closed = slack + rows[:, None] + columns[None, :] > room
        if adopt or (closed & np.isfinite(slack)).any():
            graph.unlink(core.nodes[a], core.nodes[b])
            cut[edge] = np.where(closed, np.inf, slack if adopt else core.tables[edge][np.ix_(kept[a], kept[b])])
    for position, node in enumerate(core.nodes):
        if adopt:
            graph.replace_costs(node, dual.theta[core.offsets[position] : core.offsets[position + 1]])
        if len(kept[position]) < core.sizes[position]:
            graph.keep(node, tuple(kept[position].tolist()))
    for edge, table in cut.items():
        graph.set_edge(core.nodes[core.first[edge]], core.nodes[core.second[edge]], table)


def surviving(dual: Dual, target: float) -> int:
    """The number of pairs that `prune` would leave."""
    room = target - dual.bound()
    core = dual.core
    excess = dual.theta - np.repeat(dual.least(), core.sizes)
    left = 0
    for edge in range(len(core.tables)):
        a, b = int(core.first[edge]), int(core.second[edge])
        rows, columns = (excess[core.offsets[p] : core.offsets[p + 1]] for p in (a, b))
        left += int((dual.slack(edge) + rows[:, None] + columns[None, :] <= room).sum())
    return left


def label_excess(dual: Dual) -> Costs:
    """A lower bound on the excess of every label above the bound."""
    core = dual.core
    total = np.asarray(dual.theta - np.repeat(dual.least(), core.sizes))
    for edge in range(len(core.tables)):
        slack = dual.slack(edge)
        a, b = int(core.first[edge]), int(core.second[edge])
        total[core.offsets[a] : core.offsets[a + 1]] += slack.min(axis=1)
        total[core.offsets[b] : core.offsets[b + 1]] += slack.min(axis=0)
    return total
