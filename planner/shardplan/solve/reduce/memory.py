"""Memory over time: moments that can bind, choices that can fit, and profiles of assignments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.constants import PEAKS_SEEN
from shardplan.solve.problem import Bytes, Costs
from shardplan.solve.reduce.core import Indices, spans
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Contradiction, Graph, Groups, Use
from shardplan.solve.reduce.tables import open_rows


def reduce(graph: Graph, limit: int) -> None:
    """All cheap exact reductions: moments, choices that cannot fit, nodes without memory."""
    eliminate(graph)
    while tighten(graph, limit):
        eliminate(graph)


def tighten(graph: Graph, limit: int) -> bool:
    """Drops moments that cannot bind and choices that cannot fit, until nothing changes; returns whether
    anything did."""
    changed = False
    while True:
        moments = len(graph.base_steps)
        drop_moments(graph, limit)
        changed |= len(graph.base_steps) != moments
        if not _drop_choices(graph, limit):
            return changed
        changed = True


def drop_moments(graph: Graph, limit: int) -> None:
    """Keeps only moments at which a maximal set of nodes is live and at which some assignment exceeds the limit."""
    _, starts, ends, largest = _flat(graph)
    base = graph.base
    if (base > limit)[_hard(graph)].any():
        raise Contradiction
    peak = base + np.cumsum(_steps(starts, ends, largest, len(base)))[:-1]
    fixed = np.zeros(len(base) + 1, dtype=bool)
    for group in graph.hinges:
        places = np.array(group)
        live = places[peak[places] > limit]
        if (peak[live] == base[live]).all():  # all is decided there
            graph.const += graph.scale * max([0, *(base[live] - limit).tolist()])
            peak[places] = limit
        fixed[places] = True
    kept = np.flatnonzero(peak > limit)
    while len(kept):
        low, high = np.searchsorted(kept, starts), np.searchsorted(kept, ends)
        live = low < high
        begins = np.bincount(low[live], minlength=len(kept) + 1)[1:-1] > 0  # at the second of two neighbouring moments
        finishes = np.bincount(high[live], minlength=len(kept) + 1)[1:-1] > 0
        rise = np.diff(base[kept])
        covered = np.zeros(len(kept), dtype=bool)
        alike = ~(fixed[kept[1:]] | fixed[kept[:-1]])
        covered[:-1] = ~finishes & (rise >= 0) & alike
        if not covered.any():
            covered[1:] = ~begins & (rise <= 0) & alike
        if not covered.any():
            break
        kept = kept[~covered]
    keep_moments(graph, kept)


def _hard(graph: Graph) -> NDArray[np.bool_]:
    """Which moments have a hard limit."""
    hard = np.ones(len(graph.moments), dtype=bool)
    hard[flat(graph.hinges)] = False
    return hard


def flat(groups: Groups) -> list[int]:
    """All moments of some groups."""
    return [moment for group in groups for moment in group]


def paid_above(excess: Bytes, groups: Groups) -> int:
    """The value of the maxima: the largest excess of each group. The groups' excesses are set to zero."""
    above = sum(max(0, int(excess[list(group)].max())) for group in groups)
    excess[flat(groups)] = 0
    return above


def _flat(graph: Graph) -> tuple[Indices, Indices, Indices, Bytes]:
    """Node, start, end and largest amount of every use; those of one node are adjacent."""
    arrays = graph.tables.arrays
    rows = [(node, *use) for node in graph.alive for use in graph.uses[node]]
    flat = np.array(rows, dtype=np.int64).reshape(-1, 4)
    numbers, place = np.unique(flat[:, 3], return_inverse=True)
    largest = np.array([arrays[number].max() for number in numbers.tolist()], dtype=np.int64)
    return flat[:, 0], flat[:, 1], flat[:, 2], largest[place]


def _steps(starts: Indices, ends: Indices, amounts: Bytes, moments: int) -> Bytes:
    steps = np.zeros(moments + 1, dtype=np.int64)
    np.add.at(steps, starts, amounts)
    np.subtract.at(steps, ends, amounts)
    return steps


def keep_moments(graph: Graph, kept: Indices) -> None:
    """Renumbers moments so that only `kept` remain; uses that cover none of them vanish."""
    base = graph.base
    new = np.searchsorted(kept, np.arange(len(base) + 1)).tolist()
    for node in graph.alive:
        uses = graph.uses[node]
        if uses:
            moved = (Use(new[use.start], new[use.end], use.amount) for use in uses)
            graph.uses[node] = _merged([use for use in moved if use.start < use.end])
            graph.touched[node] = None
    graph.base_steps = np.diff(base[kept], prepend=0, append=0)
    graph.moments = graph.moments[kept]


def _merged(uses: list[Use]) -> tuple[Use, ...]:
    """Adjacent uses of one amount, merged."""
    merged: list[Use] = []
    for use in sorted(uses):
        before = merged[-1] if merged else None
        if before is not None and before.end == use.start and before.amount == use.amount:
            merged[-1] = Use(before.start, use.end, use.amount)
        else:
            merged.append(use)
    return tuple(merged)


def _drop_choices(graph: Graph, limit: int) -> bool:
    """Removes choices that exceed the limit even if every other node uses its minimum; returns whether there
    were any."""
    left = np.where(_hard(graph), limit - graph.base, np.iinfo(np.int64).max)
    room = RangeMinimum(left)
    arrays = graph.tables.arrays
    dropped = False
    for node in _suspects(graph, room):
        uses = graph.uses[node]
        fits = np.ones(graph.sizes[node], dtype=bool)
        for use in uses:
            fits &= arrays[use.amount] <= room(use.start, use.end)
        if len(uses) > 1:
            fits &= _joint_fits(uses, arrays, left, fits)
        if not fits.all():
            graph.keep(node, open_rows(fits))
            dropped = True
    return dropped


def _suspects(graph: Graph, room: RangeMinimum) -> list[int]:
    """Nodes whose largest amounts together exceed the least room over the time that they cover."""
    owners, starts, ends, largest = _flat(graph)
    if not len(owners):
        return []
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    low, high = np.minimum.reduceat(starts, first), np.maximum.reduceat(ends, first)
    over = np.add.reduceat(largest, first) > room.of(low, high)
    return list(map(int, owners[first][over]))


def _joint_fits(
    uses: Sequence[Use], arrays: Sequence[Costs], room: Bytes, fits: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Choices whose uses fit together, for nodes with overlapping uses."""
    if all(a.end <= b.start for a, b in pairwise(uses)):
        return fits
    marks, levels = stacked(uses, arrays)
    spare = np.minimum.reduceat(room[marks[0] : marks[-1]], marks[:-1] - marks[0])
    return fits & np.asarray((levels[:-1] <= spare[:, None]).all(axis=0))


def stacked(uses: Sequence[Use], arrays: Sequence[Costs]) -> tuple[Indices, Costs]:
    """Moments at which a node's memory changes, and its memory from there on: a row per moment, a column per choice."""
    marks = np.unique(np.array([(use.start, use.end) for use in uses], dtype=np.int64))
    place = {mark: index for index, mark in enumerate(marks.tolist())}
    steps = np.zeros((len(marks), len(arrays[uses[0].amount])))
    for use in uses:
        steps[place[use.start]] += arrays[use.amount]
        steps[place[use.end]] -= arrays[use.amount]
    return marks, np.cumsum(steps, axis=0)


class RangeMinimum:
    """Least entry of any interval in constant time, from a table of minima over powers of two."""

    def __init__(self, values: Bytes) -> None:
        self.rows = [values]
        width = 1
        while 2 * width <= len(values):
            last = self.rows[-1]
            self.rows.append(np.minimum(last[:-width], last[width:]))
            width *= 2

    def __call__(self, start: int, end: int) -> int:
        """Minimum of `values[start:end]`, start < end."""
        row = (end - start).bit_length() - 1
        return int(min(self.rows[row][start], self.rows[row][end - (1 << row)]))

    def of(self, starts: Indices, ends: Indices) -> Bytes:
        """Minima of many intervals."""
        least = np.empty(len(starts), dtype=np.int64)
        scale = np.frexp((ends - starts).astype(np.float64))[1] - 1
        for row in np.unique(scale).tolist():
            mine = np.flatnonzero(scale == row)
            values = self.rows[row]
            least[mine] = np.minimum(values[starts[mine]], values[ends[mine] - (1 << row)])
        return least


class Profiles:
    """Uses of a core in flat arrays: for profiles of assignments, whole or fractional, and for memory rows of
    moments."""

    def __init__(self, uses: Sequence[Sequence[Use]], offsets: Indices, arrays: Sequence[Costs], base: Bytes) -> None:
        flat = [(p, use) for p, row in enumerate(uses) for use in row]
        self.base = base
        self.owner = np.array([p for p, _ in flat], dtype=np.int64)
        self.start = np.array([use.start for _, use in flat], dtype=np.int64)
        self.end = np.array([use.end for _, use in flat], dtype=np.int64)
        amounts = [arrays[use.amount] for _, use in flat]
        self.offsets = np.cumsum([0, *map(len, amounts)], dtype=np.int64)
        self.amounts = np.concatenate(amounts) if amounts else np.zeros(0)
        self.labels = offsets[self.owner]  # flat number of the owner's first label

    def excess(self, choices: Indices, limit: int, hinges: Groups) -> tuple[Bytes, int]:
        """Bytes above the limit per moment, zero at those that stand for sums, and the value of the maxima."""
        over = self.of(choices) - limit
        return over, paid_above(over, hinges)

    def of(self, choices: Indices) -> Bytes:
        """Bytes per moment of one label per position."""
        amounts = self.amounts[self.offsets[:-1] + choices[self.owner]].astype(np.int64)
        return np.asarray(self.base + np.cumsum(_steps(self.start, self.end, amounts, len(self.base)))[:-1])

    def of_weights(self, weights: Costs) -> Costs:
        """Bytes per moment of weights over all labels (an LP's point)."""
        if not len(self.owner):
            return self.base.astype(np.float64)
        owner = np.repeat(np.arange(len(self.owner)), np.diff(self.offsets))
        label = self.labels[owner] + np.arange(len(self.amounts)) - self.offsets[:-1][owner]
        amounts = np.add.reduceat(self.amounts * weights[label], self.offsets[:-1])
        steps = np.zeros(len(self.base) + 1)
        np.add.at(steps, self.start, amounts)
        np.subtract.at(steps, self.end, amounts)
        return np.asarray(self.base + np.cumsum(steps)[:-1])

    def row(self, moment: int) -> tuple[Indices, Costs]:
        """Labels that use memory at a moment, and how much."""
        covers = np.flatnonzero((self.start <= moment) & (moment < self.end))
        sizes = self.offsets[covers + 1] - self.offsets[covers]
        labels, amounts = spans(self.labels[covers], sizes), self.amounts[spans(self.offsets[covers], sizes)]
        unique, inverse = np.unique(labels, return_inverse=True)
        return unique, np.bincount(inverse, weights=amounts).astype(np.float64)


def peaks(excess: Costs, count: int, separation: int) -> list[int]:
    """Up to `count` moments of largest positive excess, at least `separation` apart, largest first."""
    chosen: list[int] = []
    order = np.argsort(-excess, kind="stable")
    for moment in order[: PEAKS_SEEN * count].tolist():
        if excess[moment] <= 0 or len(chosen) == count:
            break
        if all(abs(moment - other) >= separation for other in chosen):
            chosen.append(moment)
    return chosen
