"""An assignment that fits, read off the messages and prices of a dual: position by position, never over the limit."""

from __future__ import annotations

import numpy as np

from shardplan.solve.multipliers import Multipliers
from shardplan.solve.search import Assignment, Space, polish

REPAIRS = 3


def place(space: Space, duals: Multipliers, *, backward: bool = False) -> Assignment | None:
    """Labels in the graph's order (or against it), each the cheapest that fits; `None` at a dead end that polishing does not mend.

    A label is scored by its priced cost, its pairs with labels already set, and the messages of edges to open positions.
    Memory that open positions need in any case is in the base, so what fits now still fits at the end.
    """
    assignment = Assignment(space)
    dual, offsets = duals.dual, space.core.offsets
    order = space.order[::-1] if backward else space.order
    dead: list[int] = []
    for position in order:
        score = assignment.score(position) + duals.paid[offsets[position] : offsets[position + 1]]
        for other, edge, end in space.around[position]:
            if assignment.labels[other] < 0:
                score += dual.message(edge, end)
        allowed = np.where(assignment.fits(position), score, np.inf)
        label = int(allowed.argmin())
        if not np.isfinite(allowed[label]):
            dead.append(position)
            label = _least_harm(assignment, position)
        assignment.set(position, label)
    if dead:
        _mend(assignment)
    return assignment if assignment.feasible() else None


def _least_harm(assignment: Assignment, position: int) -> int:
    """At a dead end: a label that fits if there is one, with the fewest forbidden pairs."""
    space = assignment.space
    blocked = np.zeros(len(space.costs[position]))
    for other, edge, end in space.around[position]:
        if assignment.labels[other] >= 0:
            blocked += np.isinf(space.rows[edge][1 - end][assignment.labels[other]])
    return int((blocked + 1e3 * ~assignment.fits(position)).argmin())


def _mend(assignment: Assignment) -> None:
    """Let neighbours of forbidden pairs choose again."""
    for _ in range(REPAIRS):
        broken = {p for p in assignment.space.order if not np.isfinite(assignment.score(p)[assignment.labels[p]])}
        if not broken:
            return
        for position in sorted(broken):
            assignment.clear(position)
            score = np.where(assignment.fits(position), assignment.score(position), np.inf)
            label = int(score.argmin())
            assignment.set(position, label if np.isfinite(score[label]) else _least_harm(assignment, position))
    polish(assignment)
