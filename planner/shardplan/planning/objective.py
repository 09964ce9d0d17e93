"""The objective as one problem: the sum over the scheduled step's phases of the maximum of several linear sums.

`shardplan.schedule.objective` defines the sums. A question first becomes one problem for each sum; these problems
have the same choices and differ only in their finite costs. `Maxima` merges them: the costs are those of the base sums,
and each phase adds the maximum over what its other sums add to its base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardplan.planning.reduction import Problems, Reduction
from shardplan.solve.problem import LinearSum, Maximum, rises


@dataclass(frozen=True)
class Maxima(Reduction[None]):
    """The problem of several sums. Phase p has `sizes[p]` sums beside its base sum, and they follow it in the list."""

    sizes: tuple[int, ...]

    def apply(self, problems: Problems) -> tuple[Problems, None]:
        first, *others = problems.sums
        if not others:
            return problems, None
        sums = iter(rises(first.problem, [other.problem for other in others]))
        maxima = tuple(_maxima(self.sizes, sums))
        return Problems((replace(first, problem=replace(first.problem, maxima=maxima)),)), None


def _maxima(sizes: tuple[int, ...], sums: Iterator[LinearSum]) -> Iterator[Maximum]:
    for size in sizes:
        if size:
            yield Maximum(tuple(next(sums) for _ in range(size)))
