"""The interface of a cost model: what the graph asks of it, so that cost models of other systems can replace ours."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import Diagnostic
from shardplan.layout.collective import CollectiveKind

Floats = NDArray[np.float64]


class CollectivePricer(Protocol):
    """Prices single collectives. `axes`: mesh axes of the group, in any order; payload as in `Collective.share`."""

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        """Seconds of one collective while all sibling groups run the same one."""


class ComputePricer(Protocol):
    """Prices the local work of operators. `warnings`: about missing data."""

    @property
    def warnings(self) -> tuple[Diagnostic, ...]: ...

    def seconds(
        self,
        cost: str,
        dtype: str,
        flops: Floats,
        moved_bytes: Floats,
        m: Floats | None = None,
        n: Floats | None = None,
        k: Floats | None = None,
        *,
        launches: float = 1,
    ) -> Floats:
        """Seconds on one device; see `ComputeModel.seconds`."""
