"""Tree moves: the best change of the labels of a random induced tree, by dynamic programming within the memory limit.

A tree grows by neighbours that touch it in exactly one node, so that everything around it is fixed. The dynamic program
is exact if memory is slack; on the way back from the root each node takes the best label that still fits.
"""

from __future__ import annotations

import math
import random

import numpy as np

from shardplan.solve.constants import TREE_LARGEST, TREE_SMALLEST
from shardplan.solve.problem import Costs
from shardplan.solve.search.assignment import Assignment, Space

Branch = tuple[int, int, int, int]
"""(position, parent, edge to it, which end of that edge the position is); the root has parent -1."""


def grow(space: Space, rng: random.Random, size: int, root: int | None = None) -> list[Branch]:
    """A random induced tree of at most `size` positions, parents first; from a random root if none is given."""
    root = rng.randrange(len(space.costs)) if root is None else root
    tree: list[Branch] = []
    touches: dict[int, int] = {}
    inside: set[int] = set()
    frontier: list[Branch] = [(root, -1, -1, 0)]
    touches[root] = 1
    while frontier and len(tree) < size:
        pick = rng.randrange(len(frontier))
        frontier[pick], frontier[-1] = frontier[-1], frontier[pick]
        branch = frontier.pop()
        position = branch[0]
        if position in inside or touches[position] != 1:
            continue
        inside.add(position)
        tree.append(branch)
        for other, edge, end in space.around[position]:
            if other not in inside:
                touches[other] = touches.get(other, 0) + 1
                if touches[other] == 1:
                    frontier.append((other, position, edge, 1 - end))
    return tree


def improve(assignment: Assignment, tree: list[Branch], weight: float, paid: list[Costs], slack: float = 0.0) -> float:
    """Replaces the labels of a tree by better ones; returns the change of cost, 0 if it was undone.

    `weight` weighs the memory costs `paid` in the choice; a change that costs more than `slack` is undone.
    """
    space = assignment.space
    inside = {branch[0] for branch in tree}
    before = [assignment.labels[branch[0]] for branch in tree]
    own = {position: _own(assignment, position, inside) for position, _, _, _ in tree}
    old = _tree_cost(space, tree, own, before)
    values = {p: costs + weight * paid[p] if weight else costs.copy() for p, costs in own.items()}
    for position, parent, edge, end in reversed(tree):
        if parent >= 0:
            values[parent] += (values[position][:, None] + space.rows[edge][end]).min(axis=0)
    for position, _, _, _ in tree:
        assignment.clear(position)
    after: list[int] = []
    for position, parent, edge, end in tree:
        score = values[position]
        if parent >= 0:
            score = score + space.rows[edge][1 - end][assignment.labels[parent]]
        label = int(np.where(assignment.fits(position), score, np.inf).argmin())
        assignment.set(position, label)
        after.append(label)
    change = _tree_cost(space, tree, own, after) - old
    if change <= slack and assignment.level.max(initial=0) <= space.limit:
        return change
    for (position, _, _, _), label in zip(tree, before, strict=True):
        assignment.clear(position)
        assignment.set(position, label)
    return 0.0


def _own(assignment: Assignment, position: int, inside: set[int]) -> Costs:
    """Costs of a position's labels with its neighbours outside of the tree."""
    space = assignment.space
    costs = space.costs[position].copy()
    for other, edge, end in space.around[position]:
        if other not in inside:
            costs += space.rows[edge][1 - end][assignment.labels[other]]
    return costs


def _tree_cost(space: Space, tree: list[Branch], own: dict[int, Costs], labels: list[int]) -> float:
    place = {branch[0]: label for branch, label in zip(tree, labels, strict=True)}
    total = 0.0
    for position, parent, edge, end in tree:
        total += own[position][place[position]]
        if parent >= 0:
            total += space.rows[edge][end][place[position], place[parent]]
    return float(total)


def random_size(rng: random.Random) -> int:
    """A tree size, log-uniform between the smallest and the largest."""
    return round(math.exp(rng.uniform(math.log(TREE_SMALLEST), math.log(TREE_LARGEST))))
