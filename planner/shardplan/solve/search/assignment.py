"""An assignment of a core under improvement: its memory over time, the cost of changes, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.constants import POLISH_ROUNDS
from shardplan.solve.problem import Bytes, Costs
from shardplan.solve.reduce.core import Core
from shardplan.solve.reduce.memory import Profiles

OPEN = -1


class Space:
    """The constants of a search: costs, tables from either side, uses, limit."""

    def __init__(self, core: Core, profiles: Profiles, limit: int) -> None:
        self.core = core
        self.profiles = profiles
        self.limit = limit
        bounds = zip(core.offsets.tolist(), core.offsets[1:].tolist(), strict=False)
        self.costs = [core.costs[a:b] for a, b in bounds]
        self.around = core.around
        self.rows: list[tuple[Costs, Costs]] = []
        self.open: list[tuple[NDArray[np.bool_], NDArray[np.bool_]] | None] = []
        turned: dict[int, Costs] = {}
        for table, number in zip(core.tables, core.numbers, strict=True):
            if number not in turned:
                turned[number] = np.ascontiguousarray(table.T)
            self.rows.append((table, turned[number]))
            finite = np.isfinite(table)
            self.open.append(None if finite.all() else (finite, finite.T))
        self.uses: list[list[tuple[int, int, Bytes]]] = [[] for _ in core.nodes]
        amounts = profiles.amounts.astype(np.int64)
        spans = zip(profiles.offsets.tolist(), profiles.offsets[1:].tolist(), strict=False)
        times = zip(profiles.owner.tolist(), profiles.start.tolist(), profiles.end.tolist(), spans, strict=True)
        for owner, start, end, (a, b) in times:
            self.uses[owner].append((start, end, amounts[a:b]))
        self.order = np.argsort(np.array(core.nodes)).tolist()


class Assignment:
    """One label per position, or `OPEN`; `level[t]` is the memory of all labels that are set."""

    def __init__(self, space: Space, labels: Sequence[int] | None = None) -> None:
        self.space = space
        self.level = space.profiles.base.copy()
        self.labels = [OPEN] * len(space.costs)
        for position, label in enumerate(labels or ()):
            self.set(position, int(label))

    def copy(self) -> Assignment:
        """An independent copy."""
        twin = Assignment.__new__(Assignment)
        twin.space, twin.level, twin.labels = self.space, self.level.copy(), self.labels.copy()
        return twin

    def set(self, position: int, label: int) -> None:
        """Gives an open position a label."""
        self.labels[position] = label
        for start, end, amount in self.space.uses[position]:
            if amount[label]:
                self.level[start:end] += amount[label]

    def clear(self, position: int) -> None:
        """Removes a position's label."""
        label = self.labels[position]
        for start, end, amount in self.space.uses[position]:
            if amount[label]:
                self.level[start:end] -= amount[label]
        self.labels[position] = OPEN

    def fits(self, position: int) -> NDArray[np.bool_]:
        """The mask of labels that an open position may take within the limit."""
        space = self.space
        fits = np.ones(len(space.costs[position]), dtype=bool)
        for start, end, amount in space.uses[position]:
            room = space.limit - int(self.level[start:end].max())
            fits &= amount <= room
        return fits

    def score(self, position: int) -> Costs:
        """The cost of each label with all neighbours that are set."""
        space = self.space
        score = space.costs[position].copy()
        for other, edge, end in space.around[position]:
            label = self.labels[other]
            if label >= 0:
                score += space.rows[edge][1 - end][label]
        return score

    def choices(self) -> NDArray[np.int64]:
        """The labels as an array."""
        return np.array(self.labels, dtype=np.int64)

    def cost(self) -> float:
        """The cost of the labels; all are set."""
        return self.space.core.cost(self.choices())

    def feasible(self) -> bool:
        """Whether all labels are set, allowed, and fit."""
        fits = int(self.level.max(initial=0)) <= self.space.limit
        return OPEN not in self.labels and fits and bool(np.isfinite(self.cost()))


def completed(space: Space, labels: Sequence[int]) -> Assignment | None:
    """The partial assignment completed with the cheapest labels that fit; `None` if that fails."""
    assignment = Assignment(space)
    for position, label in enumerate(labels):
        if label >= 0:
            assignment.set(position, label)
    for position, label in enumerate(labels):
        if label < 0:
            score = np.where(assignment.fits(position), assignment.score(position), np.inf)
            assignment.set(position, int(score.argmin()))
    return assignment if assignment.feasible() else None


def polish(assignment: Assignment, rounds: int = POLISH_ROUNDS) -> None:
    """Changes single labels while that lowers the cost and fits."""
    for _ in range(rounds):
        changed = False
        for position in assignment.space.order:
            score = assignment.score(position)
            label = assignment.labels[position]
            if score.min() >= score[label]:
                continue
            assignment.clear(position)
            best = int(np.where(assignment.fits(position), score, np.inf).argmin())
            changed |= best != label
            assignment.set(position, best if score[best] < score[label] else label)
        if not changed:
            return
