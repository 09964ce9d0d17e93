"""The cost model of Hidet's automatic parallelisation, in bytes, so that its published objectives can be reproduced.

    AR = 2 B      RS = B      AG = B      changing dims = AG, then a free slice

B counts the bytes of the whole tensor; the number of devices is in none of them. Computation costs nothing, and a
stored shard of a weight is never gathered. (hidet-org/hidet, RFC 0003 and branch auto-parallel.) Hidet knows one mesh
axis and no partial values between operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardplan.layout.collective import CollectiveKind


@dataclass(frozen=True, slots=True)
class HidetCollectives:
    """Hidet's prices on `devices`."""

    devices: int

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:  # noqa: ARG002
        """Cost in bytes; payload as in `Collective.share`. What Hidet does not know costs more than anything."""
        if kind == "slice" or self.devices == 1:
            return 0.0
        whole = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": float(self.devices)}
        return whole[kind] * payload_bytes if kind in whole else math.inf
