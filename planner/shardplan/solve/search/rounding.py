"""Primal rounding of a dual solution: a feasible assignment from messages and multipliers, position by position."""

from __future__ import annotations

import random

import numpy as np

from shardplan.solve.bound.subgradient import SubgradientAscent
from shardplan.solve.constants import ROUNDING_REPAIR_TREE, ROUNDING_REPAIRS, ROUNDING_UNFIT
from shardplan.solve.search.assignment import Assignment, Space
from shardplan.solve.search.tree import grow, improve


def round_primal(space: Space, duals: SubgradientAscent, rng: random.Random) -> Assignment | None:
    """Labels in the graph's order, each the cheapest that fits; `None` at dead ends that cannot be repaired.

    The score of a label is its cost with multipliers, its pairs with labels already set, and the messages of edges to
    open positions; it must leave every open neighbour a label. Memory that open positions need in any case is in the
    base, so what fits now still fits at the end.
    """
    assignment = Assignment(space)
    dual, offsets = duals.dual, space.core.offsets
    allowed = [np.ones(len(costs), dtype=bool) for costs in space.costs]
    for position in space.order:
        score = assignment.score(position) + duals.paid[offsets[position] : offsets[position + 1]]
        for other, edge, end in space.around[position]:
            if assignment.labels[other] < 0:
                score += dual.message(edge, end)
                pairs = space.open[edge]
                if pairs is not None:
                    score[~pairs[end][:, allowed[other]].any(axis=1)] = np.inf
        label = int(np.where(assignment.fits(position), score, np.inf).argmin())
        if not np.isfinite(score[label]) or not assignment.fits(position)[label]:
            label = _least_harm(assignment, position)
        assignment.set(position, label)
        for other, edge, end in space.around[position]:
            pairs = space.open[edge]
            if pairs is not None and assignment.labels[other] < 0:
                left = allowed[other] & pairs[end][label]
                allowed[other] = left if left.any() else allowed[other]
    _mend(assignment, rng)
    return assignment if assignment.feasible() else None


def _least_harm(assignment: Assignment, position: int) -> int:
    """For a dead end: a label with the fewest forbidden pairs, one that fits if there is any."""
    space = assignment.space
    blocked = np.isinf(space.costs[position]).astype(np.float64)
    for other, edge, end in space.around[position]:
        if assignment.labels[other] >= 0:
            blocked += np.isinf(space.rows[edge][1 - end][assignment.labels[other]])
    return int((blocked + ROUNDING_UNFIT * ~assignment.fits(position)).argmin())


def _mend(assignment: Assignment, rng: random.Random) -> None:
    """Re-solves trees around forbidden pairs until there are none."""
    space = assignment.space
    broken = [p for p in space.order if not np.isfinite(assignment.score(p)[assignment.labels[p]])]
    for _ in range(ROUNDING_REPAIRS):
        if not broken:
            return
        root = broken[rng.randrange(len(broken))]
        improve(assignment, grow(space, rng, ROUNDING_REPAIR_TREE, root), 0.0, [])
        broken = [p for p in broken if not np.isfinite(assignment.score(p)[assignment.labels[p]])]
