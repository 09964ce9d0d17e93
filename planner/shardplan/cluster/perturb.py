"""The same cluster with some constants different: how much does a plan depend on numbers that nobody knows exactly?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardplan.cluster.types import Cluster, Curve, Level

COMPUTE = "compute"
MEMORY = "memory bandwidth"


def constants(cluster: Cluster) -> tuple[str, ...]:
    """Names of the constants that `perturbed` can change: of the device, and of every level that a mesh axis uses."""
    used = sorted({level for level, axis in zip(cluster.axis_levels, cluster.mesh.axes, strict=True) if axis.size > 1})
    names = [COMPUTE, MEMORY]
    for level in used:
        names += [f"{cluster.levels[level].name} bandwidth", f"{cluster.levels[level].name} latency"]
    return tuple(names)


def perturbed(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """`cluster` with constants multiplied by `factors` (names as in `constants`).

    Bandwidth of a level: links, cards, measured bus bandwidth and curves alike; latency: the start of a collective and
    each of its steps.
    """
    compute, memory = factors.get(COMPUTE, 1.0), factors.get(MEMORY, 1.0)
    device = replace(
        cluster.device,
        peak_flops={dtype: peak * compute for dtype, peak in cluster.device.peak_flops.items()},
        hbm_bytes_per_s=cluster.device.hbm_bytes_per_s * memory,
    )
    levels = tuple(_level(level, factors) for level in cluster.levels)
    curves = tuple(_curve(curve, cluster.levels, factors) for curve in cluster.curves)
    return replace(cluster, device=device, levels=levels, curves=curves)


def _level(level: Level, factors: Mapping[str, float]) -> Level:
    speed, delay = _of(level, factors)
    return replace(
        level,
        link_bytes_per_s=level.link_bytes_per_s * speed,
        node_bytes_per_s=level.node_bytes_per_s * speed,
        pair_bytes_per_s=level.pair_bytes_per_s * speed,
        busbw={kind: {ranks: rate * speed for ranks, rate in table.items()} for kind, table in level.busbw.items()},
        base_s=level.base_s * delay,
        step_s=level.step_s * delay,
    )


def _of(level: Level, factors: Mapping[str, float]) -> tuple[float, float]:
    return factors.get(f"{level.name} bandwidth", 1.0), factors.get(f"{level.name} latency", 1.0)


def _curve(curve: Curve, levels: tuple[Level, ...], factors: Mapping[str, float]) -> Curve:
    speed, _ = _of(levels[0] if curve.nodes == 1 else levels[-1], factors)
    return replace(curve, points=tuple((size, seconds / speed) for size, seconds in curve.points))
