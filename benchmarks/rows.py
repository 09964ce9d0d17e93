"""One number of ours beside a published one, with the tolerance that we demand of ourselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

_APART = 0.05
"""Published numbers that differ by less say nothing about an order."""


@dataclass(frozen=True)
class Row:
    """`low`, `high`: the demand, as ours over published (a share), or in the unit itself where `absolute`. `note`: why
    ours is off, where that is known; `demanded`: whether the row is to pass."""

    case: str
    ours: float
    published: float
    low: float
    high: float
    absolute: bool = False
    note: str = ""
    demanded: bool = True

    @property
    def passes(self) -> bool:
        found = self.ours - self.published if self.absolute else self.ours / self.published - 1
        return self.low <= found <= self.high

    def __str__(self) -> str:
        off = self.ours - self.published if self.absolute else 100 * (self.ours / self.published - 1)
        unit = "  " if self.absolute else " %"
        demand = f"{self.low:+g}..{self.high:+g}" if self.absolute else f"{100 * self.low:+g}..{100 * self.high:+g} %"
        mark = ("ok" if self.passes else "--") if self.demanded else ""
        shown = f"  {self.case:<45} {self.ours:>9.4g} {self.published:>9.4g} {off:>+7.1f}{unit}"
        return f"{shown}  {demand if self.demanded else 'none':<12} {mark}  {self.note}".rstrip()


def within(case: str, ours: float, published: float, share: float) -> Row:
    """Ours may be off by that share of the published number."""
    return Row(case, ours, published, -share, share)


def at_most(case: str, ours: float, limit: float) -> Row:
    """Ours must not be more than that."""
    return Row(case, ours, limit, -math.inf, 0.0, absolute=True)


def at_least(case: str, ours: float, limit: float) -> Row:
    """Ours must not be less than that."""
    return Row(case, ours, limit, 0.0, math.inf, absolute=True)


def not_demanded(row: Row, note: str) -> Row:
    """A row for the record: known to be off, for a reason that no constant can mend."""
    return replace(row, note=note, demanded=False)


def spearman(rows: Sequence[Row]) -> float:
    """Rank correlation of ours and published."""
    import numpy as np

    ranks = [np.argsort(np.argsort([getattr(row, side) for row in rows])) for side in ("ours", "published")]
    return float(np.corrcoef(*ranks)[0, 1])


def ordered(rows: Sequence[Row]) -> tuple[int, int]:
    """Of the pairs of rows whose published numbers differ by more than 5 %: how many have the same order here, and how
    many there are."""
    same = pairs = 0
    for one, other in itertools.combinations(rows, 2):
        low, high = sorted((one, other), key=lambda row: row.published)
        if high.published > low.published * (1 + _APART):
            pairs += 1
            same += high.ours > low.ours
    return same, pairs
