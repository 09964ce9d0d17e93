"""Price curves in closed form: a collective takes `a + b S + c sqrt(S)` seconds for S bytes with its fastest algorithm.

`a` is latency, `b` the inverse bandwidth, `c` the ramp towards full bandwidth. Running one after another, or scaling S,
gives such a triple again; so an algorithm composed of stages is one too, and a price is the lower envelope of a few of
them. The laws that the planner relies on (increasing, concave, hence subadditive in S) follow from this form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from shardplan.cost.types import Floats

Price = tuple[float, float, float]
Envelope = tuple[Price, ...]

_FEW = 6
_ROUNDING = 1e-12
_FARTHEST = 1e10
"""sqrt of the largest payload considered, 1e20 bytes."""


def then(first: Iterable[Price], second: Iterable[Price]) -> list[Price]:
    """The prices of one of `first` followed by one of `second`, for all pairs."""
    return [(a + d, b + e, c + f) for a, b, c in first for d, e, f in second]


def scaled(prices: Iterable[Price], factor: float) -> list[Price]:
    """The same prices when the payload is `factor` times S."""
    root = math.sqrt(factor)
    return [(a, b * factor, c * root) for a, b, c in prices]


def envelope(prices: Iterable[Price]) -> Envelope:
    """Those of `prices` that are cheapest for some S, in a fixed order."""
    kept: list[Price] = []
    for price in sorted(set(prices)):
        if not any(b <= price[1] and c <= price[2] for _, b, c in kept):
            kept.append(price)
    return tuple(kept) if len(kept) <= _FEW else _lowest(kept)


def _lowest(prices: Sequence[Price]) -> Envelope:
    """The prices on the lower envelope: as functions of u = sqrt(S) they are parabolas, whose order changes only where
    two meet."""
    a, b, c = np.array(prices).T
    kept = []
    for number, price in enumerate(prices):
        meetings = _meetings(a - price[0], b - price[1], c - price[2])
        points = (np.append(0.0, meetings) + np.append(meetings, 4 * meetings[-1] + 1)) / 2
        values = a[:, None] + c[:, None] * points + b[:, None] * points**2
        if np.any(values[number] <= values.min(axis=0) * (1 + _ROUNDING)):
            kept.append(price)
    return tuple(kept)


def _meetings(a: Floats, b: Floats, c: Floats) -> Floats:
    """Sorted u in [0, 1e10] where any of `a + c u + b u^2` is zero; begins with 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(c * c - 4 * a * b)
        half = -0.5 * (c + np.copysign(root, c))
        found = np.concatenate([[0.0], half / b, a / half])
    return np.unique(found[(found >= 0) & (found <= _FARTHEST)])


def price_at(prices: Envelope, payload_bytes: float) -> float:
    """The cheapest price for one payload; 0 for no bytes or no prices."""
    if payload_bytes <= 0 or not prices:
        return 0.0
    root = math.sqrt(payload_bytes)
    return min([a + b * payload_bytes + c * root for a, b, c in prices])


def prices_at(prices: Envelope, payload_bytes: Floats) -> Floats:
    """`price_at` of many payloads."""
    payload = np.asarray(payload_bytes, dtype=np.float64)
    if not prices:
        return np.zeros(payload.shape)
    root = np.sqrt(payload)
    best = np.full(payload.shape, np.inf)
    for a, b, c in prices:
        np.minimum(best, a + b * payload + c * root, out=best)
    best[payload <= 0] = 0.0
    return best


def measured(points: Sequence[tuple[float, float]]) -> Envelope:
    """The least increasing concave curve above measured (bytes, seconds) points, as its linear pieces.

    Noise that would make a larger message cheaper, or two small ones cheaper than one, is corrected upwards. Outside of
    the points, the first and the last piece continue. Needs at least two points of different size, in ascending order.
    """
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for payload, seconds in points:
        if seconds <= hull[-1][1]:
            continue
        while len(hull) > 1 and _bends_up(hull[-2], hull[-1], (payload, seconds)):
            hull.pop()
        hull.append((payload, seconds))
    lines = [
        (t0 - s0 * (t1 - t0) / (s1 - s0), (t1 - t0) / (s1 - s0), 0.0) for (s0, t0), (s1, t1) in itertools.pairwise(hull)
    ]
    return tuple(lines[1:] or lines)


def _bends_up(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    rise = (middle[1] - first[1]) * (last[0] - middle[0])
    return rise <= (last[1] - middle[1]) * (middle[0] - first[0])
