"""The objective as one problem: the sum over the scheduled step's phases of the maximum of several linear sums.

`shardplan.schedule.objective` defines the sums. A question is first posed once for each sum; these problems have the
same choices and differ only in their finite costs. `Maxima` merges them: the costs are those of the base sums, and each
phase adds the maximum over what its other sums add to its base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardplan.planning.reduction import Posed, Reduction
from shardplan.solve.problem import LinearSum, Maximum, rises


@dataclass(frozen=True)
class Maxima(Reduction[None]):
    """The problem of several sums. Phase p has `sizes[p]` sums beside its base sum, and they follow it in the list."""

    sizes: tuple[int, ...]

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        first, *others = posed.sums
        if not others:
            return posed, None
        sums = iter(rises(first.problem, [other.problem for other in others]))
        maxima = tuple(_maxima(self.sizes, sums))
        return Posed((replace(first, problem=replace(first.problem, maxima=maxima)),)), None


def _maxima(sizes: tuple[int, ...], sums: Iterator[LinearSum]) -> Iterator[Maximum]:
    for size in sizes:
        if size:
            yield Maximum(tuple(next(sums) for _ in range(size)))
