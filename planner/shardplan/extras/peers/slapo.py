"""The cost model of Slapo's auto-sharding, in elements, so that its published objectives can be reproduced.

    AG = V/p      A2A = (1/p - 1/p^2) V      AR = V      splitting = 0 (later 1)

V counts the elements of the whole tensor, p the devices; every cost is cut to an integer. Computation and weights cost
nothing. (awslabs/slapo pull request 96, slapo/sharding/solver.py.) Slapo knows one mesh axis, no reduce-scatter (it
reduces everywhere and splits) and no partial values between operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shardplan.layout.collective import CollectiveKind

_KNOWN: Final[frozenset[CollectiveKind]] = frozenset(
    {"slice", "all_gather", "all_reduce", "reduce_scatter", "all_to_all"}
)


@dataclass(frozen=True, slots=True)
class SlapoCollectives:
    """Slapo's prices on `devices`, for elements of `element_bytes`. `split_penalty`: what keeping one's piece costs."""

    devices: int
    element_bytes: int = 4
    split_penalty: float = 0.0

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:  # noqa: ARG002
        """Cost in elements; payload as in `Collective.share`. What Slapo does not know costs more than anything."""
        if self.devices == 1:
            return 0.0
        if kind not in _KNOWN:
            return math.inf
        elements = payload_bytes / self.element_bytes
        if kind == "slice":
            return self.split_penalty
        if kind == "reduce_scatter":
            return math.floor(elements) + self.split_penalty
        share = {"all_gather": 1 / self.devices, "all_reduce": 1.0, "all_to_all": 1 - 1 / self.devices}[kind]
        return float(math.floor(elements * share + 1e-9))
