"""Local search in assignments of a problem with maxima and without memory: a stretch of nodes of the best assignment
takes the choices that another one has there, as long as that makes it cheaper.

A crossover (`crossover_of_problems.py`) is the special case of a stretch up to the last node. With a stretch of y in x,
a linear function is that of the crossover of x and y at its first node, plus that of y and x after its last node, less
that of y. Only edges from one side of the stretch to the other are counted wrongly: costs are computed anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardplan.solve.constants import STRETCH_GAIN, STRETCH_PLACES
from shardplan.solve.linear_functions import Choices, Functions, Indices, Values
from shardplan.solve.search.crossover_of_problems import Crossovers


def with_stretches_of(functions: Functions, start: Choices, others: Sequence[Choices], rounds: int) -> list[Choices]:
    """Ever cheaper assignments: each is the one before, at first `start`, with a stretch of one of `others`. There are
    at most `rounds`."""
    found, best, cost = list[Choices](), start, float(functions.costs(np.array([start]))[0])
    crossed = Crossovers(functions, [start, *others]) if rounds else None
    for _ in range(rounds):
        assert crossed is not None
        tried = _promising(crossed, best, others)
        if not tried:
            break
        costs = functions.costs(np.array(tried))
        place = int(costs.argmin())
        if not costs[place] < cost * (1.0 - STRETCH_GAIN):
            break
        best, cost = tried[place], float(costs[place])
        found.append(best)
        crossed.replace_first(best)
    return found


def _promising(crossed: Crossovers, best: Choices, others: Sequence[Choices]) -> list[Choices]:
    """`best`, the first of the assignments of `crossed`, with the stretch of each of the others that costs least by the
    formula above, where one is allowed."""
    each = np.arange(1, len(others) + 1)
    first = np.zeros_like(each)
    begins, ends = crossed.values(first, each), crossed.values(each, first)
    begin_places, end_places = _places(crossed.functions, begins), _places(crossed.functions, ends)
    found = dict[Choices, None]()
    for row, other in enumerate(others):
        begin, end = begin_places[row], end_places[row]
        barred, base, *sums = (
            one[row][begin][:, None] + (two[row][end] - one[row][0])[None, :]
            for one, two in zip(begins, ends, strict=True)
        )
        costs = crossed.functions.with_maxima(base, sums)
        costs[(barred > 0.5) | (begin[:, None] >= end[None, :])] = np.inf
        at = np.unravel_index(int(costs.argmin()), costs.shape)
        if np.isfinite(costs[at]):
            i, j = int(begin[at[0]]), int(end[at[1]])
            found[*best[:i], *other[i:j], *best[j:]] = None
    found.pop(best, None)
    return list(found)


def _places(functions: Functions, values: Sequence[Values]) -> Indices:
    """By crossover, the cheapest place of each part of the problem: pairs x parts."""
    barred, base, *sums = values
    costs = np.where(barred > 0.5, np.inf, functions.with_maxima(base, sums))
    last = costs.shape[1]
    bounds = np.unique(np.linspace(0, last, min(STRETCH_PLACES, last) + 1).round().astype(np.int64))
    parts = [begin + costs[:, begin:end].argmin(axis=1) for begin, end in itertools.pairwise(bounds)]
    return np.stack(parts, axis=1)
