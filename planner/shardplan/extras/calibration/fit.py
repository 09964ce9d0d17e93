"""Non-negative least squares over few terms, and a simplex search, in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from shardplan.cost.types import Floats

_LARGE = float(1 << 20)


def fit_curve(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(a, b, c) >= 0 of `a + b S + c sqrt(S)` with the least squares of *relative* errors over (bytes, seconds).

    Relative, so that microseconds at the small end count as much as milliseconds at the other.
    """
    size, seconds = np.array(points, dtype=np.float64).T
    terms = np.stack([np.ones_like(size), size, np.sqrt(size)], axis=1) / seconds[:, None]
    a, b, c = non_negative(terms, np.ones_like(seconds))
    return float(a), float(b), float(c)


def non_negative(terms: Floats, wanted: Floats) -> Floats:
    """The x >= 0 that minimises |terms x - wanted|: the best of all choices of which x are 0 (few columns only)."""
    count = terms.shape[1]
    best, least = np.zeros(count), float(np.sum(wanted**2))
    scale = np.abs(terms).max(axis=0)
    for used in itertools.chain.from_iterable(itertools.combinations(range(count), n) for n in range(1, count + 1)):
        columns = list(used)
        found = np.linalg.lstsq(terms[:, columns] / scale[columns], wanted, rcond=None)[0] / scale[columns]
        error = float(np.sum((terms[:, columns] @ found - wanted) ** 2))
        if (found >= 0).all() and error < least:
            least = error
            best = np.zeros(count)
            best[columns] = found
    return best


def mean_error(predicted: Floats, measured: Floats) -> float:
    """Mean absolute relative error."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def large(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points from 1 MiB up, where bandwidth decides; all where there are none."""
    return [point for point in points if point[0] >= _LARGE] or list(points)


def simplex(cost: Callable[[Floats], float], start: Floats, step: float = 0.3, rounds: int = 600) -> Floats:
    """The point that Nelder and Mead's search ends at: reflect, expand, contract, shrink. Deterministic."""
    count = len(start)
    corners = [start, *(start + step * axis for axis in np.eye(count))]
    values = [cost(corner) for corner in corners]
    for _ in range(rounds):
        order = np.argsort(values, kind="stable")
        corners, values = [corners[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] <= 1e-10 * max(abs(values[0]), 1e-12):
            break
        centre = np.mean(corners[:-1], axis=0)
        _move_worst(cost, corners, values, centre)
    best: Floats = corners[int(np.argmin(values))]
    return best


def _move_worst(cost: Callable[[Floats], float], corners: list[Floats], values: list[float], centre: Floats) -> None:
    def at(factor: float) -> tuple[Floats, float]:
        point = centre + factor * (corners[-1] - centre)
        return point, cost(point)

    point, value = at(-1.0)
    if value < values[0]:
        farther, lower = at(-2.0)
        if lower < value:
            point, value = farther, lower
    elif value >= values[-2]:
        point, value = at(-0.5 if value < values[-1] else 0.5)
        if value >= values[-1]:
            for place in range(1, len(corners)):
                corners[place] = corners[0] + 0.5 * (corners[place] - corners[0])
                values[place] = cost(corners[place])
            return
    corners[-1], values[-1] = point, value
