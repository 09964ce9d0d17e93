"""The cost model of TensorRT-LLM's auto_parallel, so that its published times can be reproduced.

    time = bytes / busbw + latency     on one level, groups of n:  AR: bw (in-network) or bw n/2(n-1),  others: bw
    n/(n-1)

Over both levels of hosts x devices, with c = (bandwidth between hosts) x (devices of a host): AR and the others take
the slower level, c in place of the bandwidth between hosts; all-to-all takes the slower of H inter/(H-1) and H intra.
Local work takes max(math, memory). (TensorRT-LLM 0.9 to 0.21, auto_parallel/device_mesh.py and cluster_info.py.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardplan.cost.compute import nearest_peak
from shardplan.cost.types import Floats
from shardplan.errors import Diagnostic
from shardplan.layout.collective import FREE, CollectiveKind
from shardplan.units import GIGA, TERA


@dataclass(frozen=True, slots=True)
class Wire:
    """One level: `gbps` GB/s per device, `latency_us`, whether switches reduce (`in_network`)."""

    gbps: float
    latency_us: float
    in_network: bool = False

    def bus_gbps(self, kind: CollectiveKind, ways: int) -> float:
        """Bytes of payload per nanosecond of a collective among `ways` devices on this level alone."""
        if kind == "all_reduce":
            return self.gbps if self.in_network else self.gbps * ways / 2 / (ways - 1)
        return self.gbps * ways / (ways - 1)


@dataclass(frozen=True, slots=True)
class TrtllmCollectives:
    """Prices on a mesh whose axis i has `sizes[i]` devices and runs over `wires[i]`; equal wires are one level."""

    sizes: tuple[int, ...]
    wires: tuple[Wire, ...]

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        """Seconds of a collective over `axes`; payload as in `Collective.share`."""
        real = sorted(axis for axis in axes if self.sizes[axis] > 1)
        if kind in FREE or not real or payload_bytes <= 0:
            return 0.0
        latency_us = max(self.wires[axis].latency_us for axis in real)
        return 1e-9 * payload_bytes / self.bus_gbps(kind, real) + 1e-6 * latency_us

    def bus_gbps(self, kind: CollectiveKind, axes: list[int]) -> float:
        """Bytes of payload per nanosecond over `axes`, ascending and larger than 1."""
        levels = {self.wires[axis]: 1 for axis in axes}
        for axis in axes:
            levels[self.wires[axis]] *= self.sizes[axis]
        if len(levels) == 1:
            ((wire, ways),) = levels.items()
            return wire.bus_gbps(kind, ways)
        (inter, hosts), (intra, devices) = levels.items()
        if kind == "all_to_all":
            return min(inter.bus_gbps(kind, hosts), intra.gbps * hosts)
        together = Wire(inter.gbps * devices, inter.latency_us, inter.in_network)
        return min(together.bus_gbps(kind, hosts), intra.bus_gbps(kind, devices))


@dataclass(frozen=True, slots=True)
class TrtllmCompute:
    """`tflops`: peaks of the matrix units by the dtype names of profiles; `memory_gbps`; `efficiency`: the share of a
    peak that is reached."""

    tflops: Mapping[str, float]
    memory_gbps: float
    efficiency: float = 1.0
    warnings: tuple[Diagnostic, ...] = ()

    def seconds(
        self,
        cost: str,
        dtype: str,
        flops: Floats,
        moved_bytes: Floats,
        m: Floats | None = None,  # noqa: ARG002
        n: Floats | None = None,  # noqa: ARG002
        k: Floats | None = None,  # noqa: ARG002
        *,
        launches: float = 1,  # noqa: ARG002
    ) -> Floats:
        """The longer of arithmetic and memory traffic; nothing for views."""
        if cost in ("view", "free"):
            return np.zeros(np.broadcast_shapes(np.shape(flops), np.shape(moved_bytes)))
        rate = TERA * nearest_peak(self.tflops, dtype) * self.efficiency
        return np.maximum(np.asarray(flops) / rate, np.asarray(moved_bytes) / (self.memory_gbps * GIGA))
