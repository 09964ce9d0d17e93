"""From a dual solution to assignments: greedy decoding label by label, and elimination after a cutset is fixed."""

from __future__ import annotations

import numpy as np

from shardplan.solve.bound.dual import Dual
from shardplan.solve.reduce.core import Indices
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Contradiction, Graph


def greedy(dual: Dual, *, backward: bool = False) -> Indices | None:
    """Labels in sweep order: each is the best for its fixed neighbours; open neighbours are represented by their
    messages.

    `None` at a dead end: a position of which neighbours forbid every label.
    """
    core = dual.core
    choices = np.full(len(core.nodes), -1, dtype=np.int64)
    order = range(len(core.nodes) - 1, -1, -1) if backward else range(len(core.nodes))
    for position in order:
        score = core.costs[core.offsets[position] : core.offsets[position + 1]].copy()
        for other, edge, end in core.around[position]:
            fixed = choices[other]
            score += dual.message(edge, end) if fixed < 0 else core.row(edge, 1 - end, int(fixed))
        choices[position] = best = int(np.argmin(score))
        if not np.isfinite(score[best]):
            return None
    return choices


def cutset(graph: Graph) -> list[int]:
    """A few nodes after whose removal elimination removes all others: greedily the node with the most neighbours."""
    rows = {node: set(graph.neighbours[node]) for node in graph.alive}
    chosen: list[int] = []
    while True:
        _shrink(rows)
        if not rows:
            return sorted(chosen)
        separator = max(rows, key=lambda node: (len(rows[node]), -graph.sizes[node], -node))
        chosen.append(separator)
        for other in rows.pop(separator):
            rows[other].discard(separator)


def _shrink(rows: dict[int, set[int]]) -> None:
    """Removes nodes with at most two neighbours, and joins these two."""
    ready = [node for node in rows if len(rows[node]) <= 2]
    while ready:
        node = ready.pop()
        if node not in rows or len(rows[node]) > 2:
            continue
        around = rows.pop(node)
        for other in around:
            rows[other].discard(node)
            rows[other] |= around - {other}
        ready += [other for other in around if len(rows[other]) <= 2]


def condition(graph: Graph, fixed: dict[int, int]) -> tuple[float, tuple[int, ...]] | None:
    """The best assignment of the graph's nodes if some of them are fixed and elimination can remove the rest; `None` if
    none is allowed.

    Returns the cost and a choice for every node alive in `graph`, in the order of `graph.alive`.
    """
    trial = graph.copy()
    trial.postsolve = []
    for node in trial.alive:
        trial.uses[node] = ()
    try:
        for node, choice in fixed.items():
            trial.keep(node, (choice,))
        eliminate(trial)
    except Contradiction:
        return None
    assert not trial.alive, "the fixed nodes must leave nothing that elimination cannot remove"
    choices = trial.invert({})
    return trial.const, tuple(choices[node] for node in graph.alive)
