"""Options of a cut of a chain of units into stages: submeshes, and the costs of stages on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardplan.solve.problem import Costs

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """One stage: units `first` .. `last` - 1 on submesh number `submesh`; `enters`, `leaves`: number of the layout at
    either end; `tied`: of the weight that the first and the last stage hold, -1 if it is open."""

    first: int
    last: int
    submesh: int
    enters: int
    leaves: int
    tied: int = -1


@dataclass(frozen=True)
class Choices:
    """The options. `costs[s]`: of units a .. b - 1 on submesh s, shape (a, b, layouts in, layouts out), `inf` if
    impossible; `sizes[s]`: devices of submesh s. `handing[s][t]`: exposed transfers from a stage on s to one on t at
    unit b, shape (b, layouts out, layouts in). `most_behind[s][a, b]`: the largest number of stages behind such a stage
    for which memory suffices (-1: none fits)."""

    costs: Sequence[Costs]
    sizes: Sequence[int]
    handing: Sequence[Sequence[Costs]]
    most_behind: Sequence[Counts]
    devices: int
    share: float
    """1 / (M V)."""
    stages: int | None = None
    costs_behind: Mapping[tuple[int, int], Costs] = field(default_factory=dict)
    """By the number of stages behind and submesh: the costs there, if they exceed `costs`; equal ones are the same
    array."""
    apart: Costs | None = None
    """Extra costs of several stages, by the submeshes of the first and of the last."""

    @property
    def units(self) -> int:
        return int(self.costs[0].shape[1]) - 1

    def between(self, first: int, last: int) -> float:
        """Extra costs of several stages if the first and the last run on these submeshes."""
        return 0.0 if self.apart is None else float(self.apart[first, last])

    @property
    def endings(self) -> tuple[frozenset[int], ...]:
        """Groups of submeshes for the last stage that are equivalent for these extra costs."""
        alike: dict[bytes, list[int]] = {}
        for number in range(len(self.sizes)):
            column = b"" if self.apart is None else self.apart[:, number].tobytes()
            alike.setdefault(column, []).append(number)
        return tuple(frozenset(numbers) for numbers in alike.values())

    def cost(self, submesh: int, behind: int) -> Costs:
        """Costs of a stage on a submesh with so many stages behind it."""
        return self.costs_behind.get((behind, submesh), self.costs[submesh])

    @cached_property
    def leasts(self) -> list[Costs]:
        """Of each submesh and run the cost in its best layouts."""
        return [cost.min(axis=(2, 3)) for cost in self.costs]

    @cached_property
    def hands_on(self) -> frozenset[int]:
        """Submeshes whose stage may have others behind it."""
        return frozenset(number for number, least in enumerate(self.leasts) if np.isfinite(least[:, :-1]).any())

    @cached_property
    def leasts_handed(self) -> Costs:
        """Of each unit but the first, the least that a transfer to a stage that begins with it costs."""
        tables = [handing.min(axis=(1, 2)) for row in self.handing for handing in row]
        least: Costs = np.minimum.reduce(tables)
        return least[: self.units]

    @property
    def most_stages(self) -> int:
        return min(self.units, self.devices // min(self.sizes))
