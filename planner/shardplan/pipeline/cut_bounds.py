"""Lower bounds on the cost of the units before a stage, for any stages that they may be in.

For each unit they bound what all units before it take if no stage costs more than a limit: cost times devices, and a
sum in which devices have a multiplier. The cut search drops a partial cut that needs more devices than there are, or
costs more than a known cut, as soon as these bounds show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardplan.pipeline.constants import DEVICE_PRICE_CLOSE, DEVICE_PRICES
from shardplan.pipeline.cut_choices import Choices
from shardplan.solve.problem import Costs

_At: TypeAlias = Callable[[float], tuple[Costs, float]]


def work_before(choices: Choices, limit: float) -> Costs:
    """For the units before each: the least sum of cost times devices, in any stages none of which costs more than
    `limit`. They need at least that many device-seconds."""
    pairs = zip(choices.sizes, choices.leasts, strict=True)
    per_run = np.minimum.reduce([size * np.where(least <= limit, least, np.inf) for size, least in pairs])
    return _least_sums(per_run)[0]


class Before(NamedTuple):
    """`least[a]`: a lower bound on the stages of the units before a, with the transfer to what follows and the
    multiplier `price` for each of their devices."""

    price: float
    least: Costs

    def sums(self, devices: NDArray[np.float64]) -> Costs:
        """The bounds without the multiplier, with at most so many devices for these units: shape (numbers of devices,
        units)."""
        return self.least[None, :] - self.price * devices[:, None]

    def of_all(self, devices: int) -> float:
        """The least cost of all units on so many devices."""
        return float(self.least[-1]) - self.price * devices


def sums_before(choices: Choices, limit: float) -> Before:
    """The bound at the best multiplier of a device for all units (Lagrange): without one, few large stages have the
    least sum; at a high one, many small stages."""
    shares = [np.where(least <= limit, choices.share * least, np.inf) for least in choices.leasts]
    sizes = np.array(choices.sizes, dtype=np.float64)
    handed = np.concatenate([[0.0], choices.leasts_handed[1:], [0.0]])

    def at(price: float) -> tuple[Costs, float]:
        """The bound, and the devices that its stages have."""
        priced = np.stack([share + price * size for share, size in zip(shares, sizes, strict=True)])
        chosen = priced.argmin(axis=0)
        least, starts = _least_sums(np.take_along_axis(priced, chosen[None], axis=0)[0], handed)
        if not np.isfinite(least[-1]):
            return least, 0.0
        devices, last = 0.0, choices.units
        while last > 0:
            devices += sizes[chosen[starts[last], last]]
            last = int(starts[last])
        return least, devices

    return _best_price(at, choices.devices)


def _best_price(at: _At, whole: int) -> Before:
    """Secants of the concave bound, from multiplier zero and from one at which fewer devices are used than
    there are."""
    least, devices = at(0.0)
    best, low = Before(0.0, least), (least[-1], devices)
    if devices <= whole:
        return best
    price = least[-1] / whole
    high: tuple[float, float] | None = None
    for _ in range(DEVICE_PRICES):
        least, devices = at(price)
        best = max(best, Before(price, least), key=lambda before: before.of_all(whole))
        plane = (least[-1] - price * devices, devices)
        if devices > whole:
            low = plane
        else:
            high = plane
        if high is None:
            price *= 4.0
            continue
        price = (high[0] - low[0]) / (low[1] - high[1])
        promised = low[0] + price * (low[1] - whole)
        if promised - best.of_all(whole) <= DEVICE_PRICE_CLOSE * abs(promised):
            break
    return best


def _least_sums(per_run: Costs, handed: Costs | None = None) -> tuple[Costs, NDArray[np.int64]]:
    """Of the units before each the least sum over runs that they are cut into, and where the last of these starts;
    `handed[a]`: what is added where a run ends before unit a."""
    units = len(per_run) - 1
    least, starts = np.full(units + 1, np.inf), np.zeros(units + 1, dtype=np.int64)
    least[0] = 0.0
    for last in range(1, units + 1):
        sums = least[:last] + per_run[:last, last]
        starts[last] = sums.argmin()
        least[last] = sums[starts[last]] + (0.0 if handed is None else handed[last])
    return least, starts
