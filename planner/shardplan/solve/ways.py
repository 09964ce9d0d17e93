"""What prices leave to decide: ways to fix the nodes that elimination leaves, and what no good assignment takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.decode import condition, hubs
from shardplan.solve.eliminate import eliminate
from shardplan.solve.exact import COMBINATIONS, Incumbent, combinations
from shardplan.solve.graph import Graph, Take
from shardplan.solve.lagrange import Relaxation
from shardplan.solve.marginals import Marginals
from shardplan.solve.prune import prune
from shardplan.solve.tables import open_rows

WAYS = 6
"""So many ways to fix the hubs are followed one by one."""


def ways_to_fix(relaxation: Relaxation, best: Incumbent) -> list[dict[int, tuple[int, ...]]]:
    """Choices to keep for the nodes that elimination leaves; together the ways hold everything better than the
    incumbent.

    One way per surviving assignment of the hubs when they are few, else a single way with the choices that survive.
    """
    reduced, dual = relaxation.reduction
    if dual is None:
        return [{}]
    held = relaxation.held(relaxation.known.prices)
    trial = reduced.copy()
    prune(trial, dual, best.target + held)
    eliminate(trial)
    left = {node: tuple(range(relaxation.graph.sizes[node])) for node in dual.core.nodes}
    for step in trial.trail:
        if isinstance(step, Take) and step.node in left:
            left[step.node] = tuple(left[step.node][row] for row in step.rows)
    fixed = hubs(trial)
    if combinations(trial) > COMBINATIONS:
        return [left]
    ways = []
    for labels in product(*(range(trial.sizes[node]) for node in fixed)):
        found = condition(trial, dict(zip(fixed, labels, strict=True)))
        if found is not None and found[0] - held <= best.target:
            ways.append(left | {node: (left[node][label],) for node, label in zip(fixed, labels, strict=True)})
    if len(ways) <= WAYS:
        return ways
    return [left | {node: tuple(sorted({way[node][0] for way in ways})) for node in fixed}]


def forbid(
    graph: Graph, views: Sequence[Marginals], kept: Mapping[int, NDArray[np.bool_]] = MappingProxyType({})
) -> None:
    """Take from a graph the choices and pairs that exceed the room of any of the views of it, and the choices of nodes
    that are not `kept`. Raises `Contradiction` where that leaves nothing."""
    tables = graph.tables
    for u in graph.alive:
        for v in [v for v in graph.neighbours[u] if u < v]:
            seen = [view.pair[u][v] for view in views if v in view.pair.get(u, {})]
            table = tables.arrays[graph.neighbours[u][v]]
            closed = np.any([np.isinf(excess) for excess in seen], axis=0) if seen else np.isinf(table)
            if (closed & np.isfinite(table)).any():
                graph.replace_edge(u, v, np.where(closed, np.inf, table))
    for node in graph.alive:
        fits = np.all([np.isfinite(view.node[node]) for view in views], axis=0) & kept.get(node, True)
        if not fits.all():
            graph.keep(node, open_rows(fits))
