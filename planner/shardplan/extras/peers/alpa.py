"""The cost model of Alpa's auto-sharding playground, unit-less, so that its published objectives can be reproduced.

    AG = int(a + b (n-1)/n B) + 0.1          AR = int(a + 2 b (n-1)/n B) + 0.01
    RS = int(a + b (n-1)/n B) + 0.001        A2A = int(a + b (n-1)/n B p) + 0.001,  p = 1.5

B is the payload of one device; a and b are given per mesh axis; the decimals are tie-breaks. Computation costs nothing.
(Alpa, OSDI 2022, playground/auto_sharding_solver.) Alpa knows no collective over two axes at once: such a one is priced
as the cheapest order of single ones. It has no permute either: ours is a send of everything. On a mesh with two axes
Alpa changes no dim for another (its cost is infinite), so neither all-to-all nor permute exists there.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardplan.cost.types import Floats
from shardplan.errors import Diagnostic
from shardplan.layout.collective import FREE, CollectiveKind

_ALL_TO_ALL_PENALTY: Final = 1.5
_TIE: Final[dict[CollectiveKind, float]] = {
    "all_gather": 0.1, "all_reduce": 0.01, "reduce_scatter": 0.001, "all_to_all": 0.001, "permute": 0.001,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlpaCollectives:
    """Alpa's prices on a mesh with axes of these `sizes`; `alpha`, `beta` per axis. `gather_cost`: if given, what every
    all-gather costs whatever its size (the playground forbids them so)."""

    sizes: tuple[int, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    gather_cost: float | None = None

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        """Cost (no unit) of a collective over `axes`; 0 where nothing moves. Payload as in `Collective.share`."""
        real = [axis for axis in axes if self.sizes[axis] > 1]
        if kind in FREE or not real or payload_bytes <= 0:
            return 0.0
        return min(self._in_order(kind, order, payload_bytes) for order in itertools.permutations(real))

    def _in_order(self, kind: CollectiveKind, order: tuple[int, ...], payload: float) -> float:
        """One axis after another; a gather grows its payload from stage to stage, a reduce-scatter is the mirror."""
        total = 0.0
        for axis in order:
            total += self._single(kind, axis, payload)
            payload /= self.sizes[axis] if kind in ("all_gather", "reduce_scatter") else 1
        return total

    def _single(self, kind: CollectiveKind, axis: int, payload: float) -> float:
        if kind in ("all_to_all", "permute") and sum(size > 1 for size in self.sizes) > 1:
            return math.inf
        if kind == "all_gather" and self.gather_cost is not None:
            return self.gather_cost
        ways = self.sizes[axis]
        factor = {
            "all_gather": (ways - 1) / ways,
            "reduce_scatter": (ways - 1) / ways,
            "all_reduce": 2 * (ways - 1) / ways,
            "all_to_all": (ways - 1) / ways * _ALL_TO_ALL_PENALTY,
            "permute": 1.0,
        }[kind]
        return math.floor(self.alpha[axis] + self.beta[axis] * factor * payload) + _TIE[kind]


class NoCompute:
    """Local work is free, as in Alpa and XLA's auto-sharding."""

    warnings: tuple[Diagnostic, ...] = ()

    def seconds(
        self,
        cost: str,  # noqa: ARG002
        dtype: str,  # noqa: ARG002
        flops: Floats,
        moved_bytes: Floats,
        m: Floats | None = None,  # noqa: ARG002
        n: Floats | None = None,  # noqa: ARG002
        k: Floats | None = None,  # noqa: ARG002
        *,
        launches: float = 1,  # noqa: ARG002
    ) -> Floats:
        """Zeros of the shape of the work."""
        return np.zeros(np.broadcast_shapes(np.shape(flops), np.shape(moved_bytes)))
