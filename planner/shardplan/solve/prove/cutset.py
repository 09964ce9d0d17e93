"""Conditioning on a cutset: branches of its assignments that may be better than the incumbent; and reduced-cost fixing
of choices and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.bound.decoding import condition, cutset
from shardplan.solve.bound.lagrange import Relaxation
from shardplan.solve.bound.marginals import Marginals
from shardplan.solve.constants import CUTSET_BRANCHES, CUTSET_COMBINATIONS
from shardplan.solve.incumbent import Incumbent
from shardplan.solve.prove.exact import combinations
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.fixing import prune
from shardplan.solve.reduce.graph import Graph, Take
from shardplan.solve.reduce.tables import open_rows

Branch = tuple[float, dict[int, tuple[int, ...]]]
"""A lower bound, and the choices to keep for some nodes."""


def cutset_branches(relaxation: Relaxation, best: Incumbent, most: int = CUTSET_BRANCHES) -> list[Branch]:
    """Choices to keep for the nodes of the cutset; together, the branches contain everything better than the incumbent.

    One branch per surviving assignment of the cutset if there are at most `CUTSET_BRANCHES`, else a single branch with
    all surviving choices.
    """
    reduced, dual = relaxation.reduction
    bound = relaxation.known.bound
    if dual is None:
        return [(bound, {})]
    constant = relaxation.constant(relaxation.known.multipliers)
    trial = reduced.copy()
    prune(trial, dual, best.target + constant)
    eliminate(trial)
    left = {node: tuple(range(relaxation.graph.sizes[node])) for node in dual.core.nodes}
    for step in trial.postsolve:
        if isinstance(step, Take) and step.node in left:
            left[step.node] = tuple(left[step.node][row] for row in step.rows)
    fixed = cutset(trial)
    if combinations(trial) > CUTSET_COMBINATIONS:
        return [(bound, left)]
    branches: list[Branch] = []
    for labels in product(*(range(trial.sizes[node]) for node in fixed)):
        found = condition(trial, dict(zip(fixed, labels, strict=True)))
        if found is not None and found[0] - constant <= best.target:
            kept = {node: (left[node][label],) for node, label in zip(fixed, labels, strict=True)}
            branches.append((max(bound, found[0] - constant), left | kept))
    if len(branches) <= most:
        return branches
    return [(bound, left | {node: tuple(sorted({branch[node][0] for _, branch in branches})) for node in fixed})]


def forbid(
    graph: Graph, views: Sequence[tuple[Marginals, float]], kept: Mapping[int, NDArray[np.bool_]] = MappingProxyType({})
) -> None:
    """Removes from a graph the choices and pairs whose excess is above the room in any of its views, and the choices of
    nodes that are not `kept`. Raises `Contradiction` if nothing is left."""
    tables = graph.tables
    for u in graph.alive:
        for v in [v for v in graph.neighbours[u] if u < v]:
            closed = [view.pair[u][v] > room for view, room in views if v in view.pair.get(u, {})]
            table = tables.arrays[graph.neighbours[u][v]]
            if closed and (np.any(closed, axis=0) & np.isfinite(table)).any():
                graph.unlink(u, v)
                graph.set_edge(u, v, np.where(np.any(closed, axis=0), np.inf, table))
    for node in graph.alive:
        fits = np.all([view.node[node] <= room for view, room in views], axis=0) & kept.get(node, True)
        if not fits.all():
            graph.keep(node, open_rows(fits))
