"""Removal of choices and pairs that no assignment at or below a target can take, by reduced cost."""

from __future__ import annotations

import numpy as np

from shardplan.solve.dual import Dual
from shardplan.solve.graph import Contradiction, Graph
from shardplan.solve.tables import open_rows


def prune(graph: Graph, dual: Dual, target: float) -> int:
    """Forbid in `graph` (of which `dual.core` was taken) what costs more than `target`; how many pairs went.

    With a label fixed, every other node and edge still costs at least its least entry, so the bound grows by the
    label's own excess and by the least excess of its row in every edge around it. Raises `Contradiction` when nothing
    is left: then no assignment costs `target` or less.
    """
    core = dual.core
    least = dual.least()
    bound = core.const + float(least.sum())
    if bound > target:
        raise Contradiction
    excess = dual.theta - np.repeat(least, core.sizes)
    slacks = [dual.slack(edge) for edge in range(len(core.tables))]
    total = excess.copy()
    for edge, slack in enumerate(slacks):
        a, b = int(core.first[edge]), int(core.second[edge])
        total[core.offsets[a] : core.offsets[a + 1]] += slack.min(axis=1)
        total[core.offsets[b] : core.offsets[b + 1]] += slack.min(axis=0)
    room = target - bound
    removed = 0
    for position, node in enumerate(core.nodes):
        graph.replace_costs(node, dual.theta[core.offsets[position] : core.offsets[position + 1]])
    for edge, slack in enumerate(slacks):
        a, b = int(core.first[edge]), int(core.second[edge])
        rows, columns = (excess[core.offsets[p] : core.offsets[p + 1]] for p in (a, b))
        closed = (slack + rows[:, None] + columns[None, :] > room) & np.isfinite(slack)
        removed += int(closed.sum())
        graph.replace_edge(core.nodes[a], core.nodes[b], np.where(closed, np.inf, slack))
    for position, node in enumerate(core.nodes):
        fits = total[core.offsets[position] : core.offsets[position + 1]] <= room
        if not fits.all():
            graph.keep(node, open_rows(fits))
    return removed
