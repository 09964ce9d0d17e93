"""The best partition of a chain of units into stages on submeshes, by dynamic programming over stage costs.

A step takes the sum of the stages' costs times 1 / (M V), the slowest stage times 1 - 1 / (M V), and the exposed
transfers (`shardplan.pipeline.schedule`). For a limit on the slowest stage the sum is minimised exactly, stage by stage
from the end. Limits are searched with bounds over the finitely many stage costs (Alpa's enumeration of t_max; the sum
that the largest limit of an interval allows excludes the interval).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardplan.pipeline.constants import ROUGH_TOLERANCE
from shardplan.pipeline.cut_bounds import sums_before, work_before
from shardplan.pipeline.cut_choices import Choices, Cut
from shardplan.solve.problem import Costs

OnBound = Callable[[float], None]
_ROUNDINGS = 1e-9
_LARGEST = 1 << 20
"""Elements of a temporary array, which then stays in the cache."""


@dataclass(frozen=True, slots=True)
class FoundCuts:
    """`cuts` in order, `None` where there is no way; `cost` of it, and a lower bound on that of any. `work`: of the
    search, in millions of table entries; `is_cut`: time has ended it."""

    cuts: tuple[Cut, ...] | None
    cost: float
    bound: float
    work: float = 0.0
    is_cut: bool = False


def search(
    choices: Choices,
    tolerance: float = 0.0,
    worth: float = math.inf,
    ends_s: float = math.inf,
    on_bound: OnBound | None = None,
) -> FoundCuts:
    """The cheapest cut, within a relative `tolerance`; none if none costs less than `worth`. After `ends_s`
    (`time.monotonic`) the best known, with a weaker bound. `on_bound` is called with the proven lower bound during the
    search."""
    tables = {id(table): table for table in (*choices.costs, *choices.costs_behind.values())}
    values = np.unique(np.concatenate([cost[np.isfinite(cost)] for cost in tables.values()]))
    least = (1.0 - choices.share) * float(values[min(_first(choices, values), len(values) - 1)]) if len(values) else 0.0
    if on_bound is not None:
        on_bound(least)
    equal = _of_equal_stages(choices, ends_s)
    best = min(FoundCuts(None, worth, worth), equal, key=lambda found: found.cost)
    bound, work, is_cut = math.inf, equal.work, equal.is_cut
    for left, ending in zip(reversed(range(len(choices.endings))), choices.endings, strict=True):
        others = least if left else bound  # endings that wait may cost as little as anything
        best = _best_ending_on(choices, ending, values, best, tolerance, ends_s, on_bound, others)
        bound, work, is_cut = min(bound, best.bound), work + best.work, is_cut or best.is_cut
    return replace(best, bound=min(bound, best.cost), work=work, is_cut=is_cut)


def _first(choices: Choices, values: Costs) -> int:
    """The place of the least value that the slowest stage may cost: all the work, shared by all devices."""
    work = float(work_before(choices, float(values[-1]))[-1])
    return int(np.searchsorted(values, work / choices.devices * (1.0 - _ROUNDINGS)))


def _best_ending_on(
    choices: Choices,
    ending: frozenset[int],
    values: Costs,
    best: FoundCuts,
    tolerance: float,
    ends_s: float,
    on_bound: OnBound | None,
    most: float,
) -> FoundCuts:
    """The better of `best` and the best cut whose last stage runs on one of `ending`; bound and work are of these cuts
    only. At most `most` is reported as proven on the way."""
    best = replace(best, work=0.0)
    values = values[values <= best.cost]
    if not len(values):
        return replace(best, bound=math.inf)
    slow = 1.0 - choices.share
    first = _first(choices, values)
    bound, entries, is_cut = best.cost, 0.0, False
    waiting = [(first, len(values) - 1, 0.0)]
    if best.cuts is not None:  # dearer stages are tried when it is known how little they may save
        known = min(max(first, _place(choices, values, best)), len(values) - 1)
        waiting = [(first, known, 0.0), (known + 1, len(values) - 1, 0.0)]
    while waiting:
        waiting.sort(
            key=lambda part: part[2] + slow * values[part[0]] if part[0] <= part[1] else math.inf, reverse=True
        )
        low, high, least = waiting.pop()
        if high < low:
            continue
        lower = least + slow * float(values[low])
        is_late = bool(entries) and time.monotonic() >= ends_s
        is_cut = is_cut or (is_late and lower < best.cost * (1.0 - tolerance))
        if lower >= best.cost * (1.0 - tolerance) or is_late:
            bound = min(bound, lower)
            continue
        if on_bound is not None:
            on_bound(min(lower, bound, most))
        middle = high if not least else (low + high) // 2
        trial = _limited(choices, ending, float(values[middle]), best.cost - slow * float(values[low]))
        entries += trial.work
        waiting.append((middle + 1, high, least))
        if trial.cuts is not None:
            if (cost := _total(choices, trial)) < best.cost:
                best = FoundCuts(trial.cuts, cost, cost)
            waiting.append((low, _place(choices, values, trial) - 1, trial.cost))
    return replace(best, bound=min(bound, best.cost), work=entries, is_cut=is_cut)


def _of_equal_stages(choices: Choices, ends_s: float) -> FoundCuts:
    """The best cut into stages of one size, roughly: no stage of a better one costs more than all of that."""
    found, work, is_cut = FoundCuts(None, math.inf, math.inf), 0.0, False
    for number, size in reversed([*enumerate(choices.sizes)]):
        ends = (choices.costs[number][0, :-1], choices.costs[number][1:, -1])
        if len(choices.sizes) > 1 and choices.devices % size == 0 and all(np.isfinite(end).any() for end in ends):
            alone = replace(
                choices,
                costs=[choices.costs[number]],
                sizes=[size],
                handing=[[choices.handing[number][number]]],
                most_behind=[choices.most_behind[number]],
                apart=None if choices.apart is None else choices.apart[[number]][:, [number]],
                costs_behind={
                    (behind, 0): cost for (behind, other), cost in choices.costs_behind.items() if other == number
                },
            )
            best = search(alone, ROUGH_TOLERANCE, found.cost, ends_s)
            work, is_cut = work + best.work, is_cut or best.is_cut
            if best.cuts is not None:
                found = replace(best, cuts=tuple(replace(cut, submesh=number) for cut in best.cuts))
    return replace(found, work=work, is_cut=is_cut)


def _slowest(choices: Choices, found: FoundCuts) -> float:
    assert found.cuts is not None
    last = len(found.cuts) - 1
    return max(
        float(choices.cost(cut.submesh, last - place)[cut.first, cut.last, cut.enters, cut.leaves])
        for place, cut in enumerate(found.cuts)
    )


def _total(choices: Choices, found: FoundCuts) -> float:
    return found.cost + (1.0 - choices.share) * _slowest(choices, found)


def _place(choices: Choices, values: Costs, found: FoundCuts) -> int:
    return int(np.searchsorted(values, _slowest(choices, found)))


def _limited(choices: Choices, ending: frozenset[int], limit: float, most: float) -> FoundCuts:
    """The least sum of shares and transfers, at most `most`, when no stage costs more than `limit` and the last runs on
    one of `ending`; `cost` is that sum."""
    run = _Run(choices, ending, limit, most)
    if run.before.of_all(choices.devices) <= most * (1.0 + _ROUNDINGS):
        run.fill()
    return run.best()


class _Stage(NamedTuple):
    """A stage's share of the sum, and the same as a band: `band[a, i, l, j]` of units a .. a + l. Whether any begins
    with the first unit, or with a later one."""

    cost: Costs
    band: Costs
    begins: bool
    comes_later: bool


def _stage(cost: Costs) -> _Stage:
    possible = np.isfinite(cost.min(axis=(2, 3)))
    units = len(cost) - 1
    firsts, lasts = np.nonzero(possible)
    longest = int((lasts - firsts).max()) if len(firsts) else 1
    band = np.full((units, cost.shape[2], longest, cost.shape[3]), np.inf)
    for length in range(1, longest + 1):
        starts = np.arange(units + 1 - length)
        band[starts, :, length - 1] = cost[starts, starts + length]
    return _Stage(cost, band, bool(possible[0].any()), bool(possible[1:].any()))


class _Level(NamedTuple):
    """Ways to run the last units in so many stages. `devices`: the numbers of devices that they may have, ascending;
    `rest[s][n]`: least cost of units a .. end on `devices[n]` if the first of the stages runs on submesh s, shape (a,
    layouts in), `inf` if impossible."""

    devices: tuple[int, ...]
    rest: dict[int, Costs]

    def on(self, devices: int) -> list[tuple[int, Costs]]:
        """By submesh of the first stage: the costs on so many devices."""
        if devices not in self.devices:
            return []
        place = self.devices.index(devices)
        return [(number, rest[place]) for number, rest in self.rest.items() if np.isfinite(rest[place]).any()]


def _level(found: Mapping[int, tuple[list[int], Costs]]) -> _Level:
    """The level of what was found by submesh: numbers of devices, and the costs on each."""
    devices = tuple(sorted({each for own, _ in found.values() for each in own}))
    place = {each: at for at, each in enumerate(devices)}
    rest = {}
    for number, (own, costs) in found.items():
        rest[number] = np.full((len(devices), *costs.shape[1:]), np.inf)
        rest[number][[place[each] for each in own]] = costs
    return _Level(devices, rest)


class _Run:
    """Tables of one limit. `levels[k]`: the ways to run what comes last in k stages."""

    def __init__(self, choices: Choices, ending: frozenset[int], limit: float, most: float) -> None:
        self.choices, self.ending = choices, ending
        self.limit, self.most = limit, most
        self.limited: dict[tuple[int, bytes], _Stage] = {}
        self.levels: list[_Level] = [_Level((), {})]
        self.work = work_before(choices, limit)
        self.before = sums_before(choices, limit)
        self.entries = 0.0

    def costs(self, number: int, behind: int) -> _Stage:
        """A stage's share of the sum, `inf` where it costs more than the limit or may not have so many behind it."""
        cost, most_behind = self.choices.cost(number, behind), self.choices.most_behind[number]
        allowed = most_behind >= behind
        key = (id(cost), b"" if allowed.all() else allowed.tobytes())
        if key not in self.limited:
            possible = (cost <= self.limit) & allowed[:, :, None, None]
            self.limited[key] = _stage(np.where(possible, self.choices.share * cost, np.inf))
        return self.limited[key]

    def fill(self) -> None:
        choices = self.choices
        for count in range(1, (choices.stages or choices.most_stages) + 1):
            found = {}
            for number in sorted(self.ending if count == 1 else choices.hands_on):
                stage, size = self.costs(number, count - 1), choices.sizes[number]
                if count == 1:
                    ways = self._kept([size], stage.cost[None, :, -1, :, 0])
                else:
                    ways = self._longer(stage, number, size)
                if ways[0]:
                    found[number] = ways
            if not found:
                break
            self.levels.append(_level(found))

    def _longer(self, stage: _Stage, number: int, size: int) -> tuple[list[int], Costs]:
        """A stage before those of the last level: numbers of devices, and for each the least cost, shape (a, layouts
        in); of what begins with the first unit where no devices are left, else of the others."""
        level, whole = self.levels[-1], self.choices.devices
        left = [whole - devices - size for devices in level.devices]
        rows = [n for n, rest in enumerate(left) if rest >= 0 and (stage.comes_later if rest else stage.begins)]
        units, inside = stage.cost.shape[0], stage.cost.shape[2]
        least = np.full((len(rows), units, inside), np.inf)
        if rows:
            least[:, :-1] = _before(stage, self.behind(level, number)[rows])
            self.entries += len(rows) * stage.band.size / 1e6
            ends = [place for place, row in enumerate(rows) if not left[row]]
            least[ends, 1:] = np.inf
        return self._kept([level.devices[row] + size for row in rows], least)

    def _kept(self, devices: list[int], least: Costs) -> tuple[list[int], Costs]:
        """The ways that leave enough devices for the remaining units and cost no more than the limit of the search."""
        left = self.choices.devices - np.array(devices, dtype=np.float64)
        enough = self.work[None, :] <= self.limit * left[:, None] * (1.0 + _ROUNDINGS)
        enough[left > 0, 0] = False
        possible = self.most * (1.0 + _ROUNDINGS) - self.before.sums(left)
        least = np.where(enough[:, :, None] & (least <= possible[:, :, None]), least, np.inf)
        rows = np.flatnonzero(np.isfinite(least).any(axis=(1, 2)))
        return [devices[row] for row in rows], least[rows]

    def behind(self, level: _Level, number: int) -> Costs:
        """Least costs of everything behind a stage on submesh `number`, with its transfer: shape (numbers of devices,
        b, layouts out)."""
        least: Costs | None = None
        for other, rest in sorted(level.rest.items()):
            handing = self.choices.handing[number][other]
            costs = (handing[None] + rest[:, :, None, :]).min(axis=3)
            least = costs if least is None else np.minimum(least, costs)
        assert least is not None
        return least

    def best(self) -> FoundCuts:
        choices = self.choices
        wanted = [choices.stages] if choices.stages else range(1, len(self.levels))
        ends = [
            (float(rest[0, 0]) + (choices.between(number, min(self.ending)) if count > 1 else 0.0), count, number)
            for count in wanted
            if count < len(self.levels)
            for number, rest in sorted(self.levels[count].on(choices.devices))
            if np.isfinite(rest[0, 0])
        ]
        if not ends:
            return FoundCuts(None, math.inf, math.inf, self.entries)
        cost, count, number = min(ends)
        return FoundCuts(tuple(self._trace(count, number)), cost, cost, self.entries)

    def _trace(self, count: int, number: int) -> list[Cut]:
        """The stages of a best way, walking the tables once more."""
        choices, devices, first, enters = self.choices, self.choices.devices, 0, 0
        found = []
        while True:
            cost = self.costs(number, count - 1).cost[first, :, enters, :]
            devices -= choices.sizes[number]
            if count == 1:
                found.append(Cut(first, choices.units, number, enters, 0))
                return found
            behind = self.levels[count - 1].on(devices)
            total = cost + self.behind(_Level((devices,), {other: rest[None] for other, rest in behind}), number)[0]
            last, leaves = (int(place) for place in np.unravel_index(int(total.argmin()), total.shape))
            found.append(Cut(first, last, number, enters, leaves))
            ways = [
                (float(least), other, int(entered))
                for other, rest in sorted(behind, key=lambda way: way[0])
                for sums in [choices.handing[number][other][last, leaves] + rest[last]]
                for entered, least in [(int(sums.argmin()), sums.min())]
            ]
            _, number, enters = min(ways)
            first, count = last, count - 1


def _before(stage: _Stage, behind: Costs) -> Costs:
    """Least costs of a stage from unit a on and what is behind it, shape (numbers of devices, a, layouts in): a
    (min, +) product with the band of possible stages. `behind`: shape (numbers of devices, b, layouts out)."""
    units, inside, longest, outside = stage.band.shape
    beyond = np.full((len(behind), longest, outside), np.inf)
    padded = np.concatenate([behind[:, 1:], beyond], axis=1).reshape(len(behind), -1)
    windows = sliding_window_view(padded, longest * outside, axis=1)[:, : units * outside : outside]
    flat = stage.band.reshape(units, inside, longest * outside)
    least = np.empty((len(behind), units, inside))
    chunk = max(1, _LARGEST // flat.size)
    for start in range(0, len(behind), chunk):
        rows = slice(start, start + chunk)
        least[rows] = (windows[rows, :, None, :] + flat[None]).min(axis=3)
    return least


def balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Positions that cut a row into so many nonempty parts with the least maximum cost."""
    sums = [0.0, *itertools.accumulate(costs)]
    count = len(costs)
    least = [0.0] + [float("inf")] * count
    ways: list[list[int]] = []
    for _ in range(parts):
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
