"""Plans that take a part of their layouts from another plan, judged by their schedules.

The sums of an objective are within some percent of the schedule, and so are those of many assignments. So the best plan
takes a part of each of the other assignments that a search has met, the results with the least sums are scheduled, and
the best of them is where this begins anew. A part is a stretch of nodes in the order of the graph; or, where blocks are
repeated, a stretch of the block in some copies that follow one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from shardplan.planning.constants import (
    RECOMBINED_COPIES,
    RECOMBINED_FAILURES,
    RECOMBINED_FROM,
    RECOMBINED_GAP,
    RECOMBINED_JUDGED,
    RECOMBINED_KEPT,
    RECOMBINED_OF_BLOCK,
    RECOMBINED_PLACES,
    RECOMBINED_WORK,
)
from shardplan.planning.crossovers import choices_of, met_by
from shardplan.planning.equal_layers import MergedCopies, Places, first_copies
from shardplan.planning.search import Found, Questions, Search
from shardplan.solve.linear_functions import Choices, Functions, Indices, LinearFunction, Values
from shardplan.units import PS_PER_S

Mask = NDArray[np.bool_]


def recombined(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those that take parts of other assignments met."""
    yield from ()
    whole = found.whole
    if whole is None or found.candidate.layouts.built is not whole.built or found.gap <= RECOMBINED_GAP:
        return found
    copies = MergedCopies.of(whole, merges=search.instance.options.equal_layers)
    sizes = [cost.size for cost in whole.problem.costs]
    divisions = divisions_of(len(copies.functions.nodes), () if copies.places else first_copies(whole.built, sizes))
    others = list(dict.fromkeys(map(copies.merged, met_by(search, whole))))
    tried, failures = set(others), 0
    most = min(RECOMBINED_FROM, int(RECOMBINED_WORK / (copies.functions.numbers * len(divisions))))
    while failures < RECOMBINED_FAILURES and not search.is_over():
        best, below = copies.merged(choices_of(found.candidate)), found.candidate.step_s * PS_PER_S
        made = promising(copies.functions, divisions, best, others[:most], below, tried)
        if not made:
            break
        tried.update(made)
        plans = search.judged([(found.candidate.layouts, copies.unmerged(one)) for one in made])
        better = found.better(plans, search.limit_bytes)
        failures = 0 if better.candidate.step_s < found.candidate.step_s else failures + 1
        others = others if better is found else list(dict.fromkeys([best, *others]))
        found = better
    return found


def promising(
    functions: Functions,
    divisions: Sequence[Division],
    best: Choices,
    others: Iterable[Choices],
    below: float,
    tried: set[Choices],
) -> list[Choices]:
    """Assignments that are `best` but for a part of one of the others, those with the least sums first. Their sums are
    less than `below`, and they were not `tried`."""
    found: dict[Choices, float] = {}
    for other in others:
        costs = np.concatenate([each.costs(functions, best, other) for each in divisions])
        parts = [(each, part) for each in divisions for part in each.parts]
        different, rows = np.unique(costs, return_index=True)  # parts of the same nodes have the same costs
        for cost, row in zip(different[:RECOMBINED_KEPT].tolist(), rows.tolist(), strict=False):
            division, part = parts[row]
            choices = division.joined(part, best, other)
            if cost < below and choices not in tried:
                found[choices] = cost
    return sorted(found, key=lambda choices: (found[choices], choices))[:RECOMBINED_JUDGED]


@dataclass(frozen=True)
class Division:
    """A division of the nodes into cells. `cells`: by node, -1 for those that are in none; `parts`: parts x cells,
    which cells are in each part."""

    cells: Indices
    parts: Mask

    def joined(self, part: Mask, one: Choices, other: Choices) -> Choices:
        """The assignment `one` with the choices of `other` in that part."""
        inside = np.append(part, False)[self.cells]  # cell -1, the last, is in no part
        return tuple(np.where(inside, other, one).tolist())

    def costs(self, functions: Functions, one: Choices, other: Choices) -> Values:
        """By part, the costs of what `joined` gives, from sums over the nodes of each cell and over the edges between
        each two cells."""
        count = self.parts.shape[1] + 1
        cells = np.where(self.cells < 0, count - 1, self.cells)
        inside = np.pad(self.parts, ((0, 0), (0, 1))).astype(np.float64)
        sides, pairs = (1.0 - inside, inside), cells[functions.u] * count + cells[functions.v]
        given = np.array([one, other])
        nodes = functions.of_nodes(given)
        ends = [(first, second) for first in (0, 1) for second in (0, 1)]
        edges = [functions.of_edges(given[first, functions.u], given[second, functions.v]) for first, second in ends]

        def total(function: LinearFunction) -> Values:
            found = np.zeros(len(inside))
            for side, places in zip(sides, nodes, strict=True):
                found += side @ np.bincount(cells, function.take(places), count)
            for (first, second), places in zip(ends, edges, strict=True):
                between = np.bincount(pairs, function.take(places), count * count).reshape(count, count)
                found += np.einsum("pc,pc->p", sides[first] @ between, sides[second])
            return found

        barred, base, *sums = map(total, functions.finite)
        return np.where(barred > 0.5, np.inf, functions.with_maxima(base, sums))


def divisions_of(count: int, places: Places) -> tuple[Division, ...]:
    """The divisions of so many nodes. `places`: by node the number of the first copy; empty if there are no copies."""
    cells = _stretches(np.arange(count), RECOMBINED_PLACES)
    in_graph = Division(cells, _in_a_row(int(cells.max(initial=0)) + 1))
    times, seen = Counter(places), Counter[int]()
    copies = np.full(count, -1)
    for node, place in enumerate(places):
        if times[place] > 1:
            copies[node], seen[place] = seen[place], seen[place] + 1
    if copies.max(initial=-1) < 0:
        return (in_graph,)
    is_copied = copies >= 0
    _, numbers = np.unique(np.array(places)[is_copied], return_inverse=True)
    rows, columns = _stretches(copies[is_copied], RECOMBINED_COPIES), _stretches(numbers, RECOMBINED_OF_BLOCK)
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    in_blocks = np.full(count, -1)
    in_blocks[is_copied] = rows * width + columns
    return in_graph, Division(
        in_blocks, np.array([np.kron(*both) for both in product(_in_a_row(height), _in_a_row(width))])
    )


def _stretches(numbers: Indices, most: int) -> Indices:
    """In which of at most so many stretches of equal length each number is."""
    last = int(numbers.max(initial=0)) + 1
    return np.asarray(numbers * min(most, last) // last)


def _in_a_row(count: int) -> Mask:
    """All parts of one or more neighbouring cells: parts x cells."""
    numbers = np.arange(count)
    rows = [(numbers >= begin) & (numbers < end) for begin, end in combinations(range(count + 1), 2)]
    return np.array(rows)
