"""The best cut of a chain of units into stages with a submesh each, by dynamic programming over what stages cost.

A step takes the sum of the stages' costs times 1 / (M V), the slowest stage times 1 - 1 / (M V), and the exposed
transfers (`shardplan.stages.schedule`). For a limit on the slowest stage the sum is minimised exactly, stage by stage
from the end; which limits are worth trying is a search with bounds over the finitely many costs that stages have
(Alpa's enumeration of t_max, with intervals of limits excluded at once by the sum that the largest of them allows).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.problem import Costs

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """One stage: units `first` .. `last` - 1 on submesh number `submesh`; `enters`, `leaves`: number of the layout at
    either end."""

    first: int
    last: int
    submesh: int
    enters: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Found:
    """`cuts` in order, `None` where there is no way; `cost` of it, and a lower bound on that of any."""

    cuts: tuple[Cut, ...] | None
    cost: float
    bound: float


@dataclass(frozen=True)
class Choices:
    """What may be chosen. `costs[s]`: of units a .. b - 1 on submesh s, shape (a, b, layouts in, layouts out), `inf`
    where impossible; `sizes[s]`: devices of submesh s. `handing[s][t]`: exposed transfers from a stage on s to one on t
    at unit b, shape (b, layouts out, layouts in). `most_behind[s][a, b]`: a stage may have so many stages behind it at
    most, for memory (-1: none fits)."""

    costs: Sequence[Costs]
    sizes: Sequence[int]
    handing: Sequence[Sequence[Costs]]
    most_behind: Sequence[Counts]
    devices: int
    share: float
    """1 / (M V)."""
    stages: int | None = None
    costs_behind: Mapping[tuple[int, int], Costs] = field(default_factory=dict)
    """By how many stages come behind and submesh: the costs there, where they are not those of `costs`; equal ones are
    the same array."""
    apart: float = 0.0
    """What several stages cost besides, whichever they are."""

    @property
    def units(self) -> int:
        return int(self.costs[0].shape[1]) - 1

    def cost(self, submesh: int, behind: int) -> Costs:
        """Costs of a stage on a submesh with so many stages behind it."""
        return self.costs_behind.get((behind, submesh), self.costs[submesh])

    @property
    def most_stages(self) -> int:
        return min(self.units, self.devices // min(self.sizes))


def search(choices: Choices, tolerance: float = 0.0) -> Found:
    """The cheapest cut, within a relative `tolerance`."""
    tables = {id(table): table for table in (*choices.costs, *choices.costs_behind.values())}
    values = np.unique(np.concatenate([cost[np.isfinite(cost)] for cost in tables.values()]))
    if not len(values):
        return Found(None, math.inf, math.inf)
    slow = 1.0 - choices.share
    best, best_cost, bound = _limited(choices, float(values[-1])), math.inf, math.inf
    if best.cuts is None:
        return Found(None, math.inf, math.inf)
    best_cost = _total(choices, best)
    waiting = [(0, _place(choices, values, best) - 1, best.cost)]
    while waiting:
        waiting.sort(key=lambda part: part[2] + slow * values[part[0]], reverse=True)
        low, high, least = waiting.pop()
        if high < low:
            continue
        floor = least + slow * float(values[low])
        if floor >= best_cost * (1.0 - tolerance):
            bound = min(bound, floor)
            continue
        middle = (low + high) // 2
        trial = _limited(choices, float(values[middle]))
        if trial.cuts is None:
            waiting.append((middle + 1, high, least))
            continue
        cost = _total(choices, trial)
        if cost < best_cost:
            best, best_cost = trial, cost
        waiting += [(low, _place(choices, values, trial) - 1, trial.cost), (middle + 1, high, least)]
    return Found(best.cuts, best_cost, min(bound, best_cost))


def _slowest(choices: Choices, found: Found) -> float:
    assert found.cuts is not None
    last = len(found.cuts) - 1
    return max(
        float(choices.cost(cut.submesh, last - place)[cut.first, cut.last, cut.enters, cut.leaves])
        for place, cut in enumerate(found.cuts)
    )


def _total(choices: Choices, found: Found) -> float:
    return found.cost + (1.0 - choices.share) * _slowest(choices, found)


def _place(choices: Choices, values: Costs, found: Found) -> int:
    return int(np.searchsorted(values, _slowest(choices, found)))


def _limited(choices: Choices, limit: float) -> Found:
    """The least sum of shares and transfers when no stage costs more than `limit`; `cost` is that sum."""
    run = _Run(choices, limit)
    run.fill()
    return run.best()


class _Run:
    """Tables of one limit. `rest[k][d][s]`: least cost of units a .. end in k stages on d devices when the first of
    them runs on submesh s, shape (a, layouts in); absent where impossible."""

    def __init__(self, choices: Choices, limit: float) -> None:
        self.choices = choices
        self.limit = limit
        self.limited: dict[int, Costs] = {}
        self.rest: list[dict[int, dict[int, Costs]]] = [{}]
        self.behind: dict[tuple[int, int, int], Costs] = {}

    def costs(self, number: int, behind: int) -> Costs:
        """A stage's share of the sum, `inf` where it costs more than the limit."""
        cost = self.choices.cost(number, behind)
        if id(cost) not in self.limited:
            self.limited[id(cost)] = np.where(cost <= self.limit, self.choices.share * cost, np.inf)
        return self.limited[id(cost)]

    def fill(self) -> None:
        choices = self.choices
        for count in range(1, (choices.stages or choices.most_stages) + 1):
            level: dict[int, dict[int, Costs]] = {}
            for number, size in enumerate(choices.sizes):
                allowed = (choices.most_behind[number] >= count - 1)[:, :, None, None]
                cost = np.where(allowed, self.costs(number, count - 1), np.inf)
                if count == 1:
                    self._put(level, size, number, cost[:, -1, :, 0])
                    continue
                flat = cost.transpose(0, 2, 1, 3).reshape(cost.shape[0] * cost.shape[2], -1)
                for devices in sorted(self.rest[count - 1]):
                    if devices + size <= choices.devices:
                        after = self.after(count - 1, devices, number)
                        least = (flat + after.reshape(1, -1)).min(axis=1).reshape(cost.shape[0], cost.shape[2])
                        self._put(level, devices + size, number, least)
            self.rest.append(level)
            if not level:
                break

    @staticmethod
    def _put(level: dict[int, dict[int, Costs]], devices: int, number: int, least: Costs) -> None:
        if np.isfinite(least).any():
            level.setdefault(devices, {})[number] = least

    def after(self, count: int, devices: int, number: int) -> Costs:
        """Least cost of all behind a stage on submesh `number`, its transfer included: shape (b, layouts out)."""
        key = (count, devices, number)
        if key not in self.behind:
            options = [
                (self.choices.handing[number][other] + rest[:, None, :]).min(axis=2)
                for other, rest in sorted(self.rest[count][devices].items())
            ]
            self.behind[key] = np.minimum.reduce(options)
        return self.behind[key]

    def best(self) -> Found:
        choices = self.choices
        wanted = [choices.stages] if choices.stages else range(1, len(self.rest))
        ends = [
            (float(rest[0, 0]) + (choices.apart if count > 1 else 0.0), count, number)
            for count in wanted
            if count < len(self.rest)
            for number, rest in sorted(self.rest[count].get(choices.devices, {}).items())
            if np.isfinite(rest[0, 0])
        ]
        if not ends:
            return Found(None, math.inf, math.inf)
        cost, count, number = min(ends)
        return Found(tuple(self._trace(count, number)), cost, cost)

    def _trace(self, count: int, number: int) -> list[Cut]:
        """The stages of a best way, walking the tables once more."""
        choices, devices, first, enters = self.choices, self.choices.devices, 0, 0
        found = []
        while True:
            allowed = (choices.most_behind[number][first] >= count - 1)[:, None]
            cost = np.where(allowed, self.costs(number, count - 1)[first, :, enters, :], np.inf)
            devices -= choices.sizes[number]
            if count == 1:
                found.append(Cut(first, choices.units, number, enters, 0))
                return found
            total = cost + self.after(count - 1, devices, number)
            last, leaves = (int(place) for place in np.unravel_index(int(total.argmin()), total.shape))
            found.append(Cut(first, last, number, enters, leaves))
            ways = [
                (float(least), other, int(entered))
                for other, rest in sorted(self.rest[count - 1][devices].items())
                for sums in [choices.handing[number][other][last, leaves] + rest[last]]
                for entered, least in [(int(sums.argmin()), sums.min())]
            ]
            _, number, enters = min(ways)
            first, count = last, count - 1


def balanced(costs: Sequence[float], pieces: int) -> list[int]:
    """Places that cut a row into so many pieces, none empty, the dearest as cheap as can be."""
    sums = [0.0, *itertools.accumulate(costs)]
    count = len(costs)
    least = [0.0] + [float("inf")] * count
    ways: list[list[int]] = []
    for _ in range(pieces):
        options = [
            min(((max(least[low], sums[high] - sums[low]), low) for low in range(high)), default=(float("inf"), 0))
            for high in range(count + 1)
        ]
        least = [cost for cost, _ in options]
        ways.append([low for _, low in options])
    edges = [count]
    for way in reversed(ways):
        edges.append(way[edges[-1]])
    return edges[::-1]
