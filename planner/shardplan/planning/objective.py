"""The objective as one problem: the scheduled step's phases, each the largest of its sums.

`shardplan.schedule.objective` says what the sums are. A question is posed once for every sum; all of these problems
have the same choices and differ only in their finite costs. `Maxima` makes them one problem whose costs are those of
the bases, with a maximum for each phase over what its other sums add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardplan.planning.reduction import Posed, Reduction
from shardplan.solve.problem import LinearSum, Maximum, rise


@dataclass(frozen=True)
class Maxima(Reduction[None]):
    """The problem of several sums. `sizes[p]`: how many sums phase p has beside its base; they follow the base."""

    sizes: tuple[int, ...]

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        first, *others = posed.sums
        if not others:
            return posed, None
        rises = iter([rise(first.problem, other.problem) for other in others])
        maxima = tuple(_maxima(self.sizes, rises))
        return Posed((replace(first, problem=replace(first.problem, maxima=maxima)),)), None


def _maxima(sizes: tuple[int, ...], rises: Iterator[LinearSum]) -> Iterator[Maximum]:
    for size in sizes:
        if size:
            yield Maximum(tuple(next(rises) for _ in range(size)))
