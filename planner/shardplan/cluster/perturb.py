"""A cluster with perturbed constants, for sensitivity analysis of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from shardplan.cluster.keys import LEVEL
from shardplan.cluster.quantity import RATES, TIMES
from shardplan.cluster.types import Cluster, Curve, Level
from shardplan.cluster.yaml import Number, Table

COMPUTE = "compute"
MEMORY = "memory bandwidth"


def constants(cluster: Cluster) -> tuple[str, ...]:
    """Names of the constants that `perturbed` can change: of the device, and of every level that a mesh axis uses."""
    used = sorted({level for level, axis in zip(cluster.axis_levels, cluster.mesh.axes, strict=True) if axis.size > 1})
    return _constants([cluster.levels[level] for level in used])


def all_constants(cluster: Cluster) -> tuple[str, ...]:
    """The same for every mesh: of the device and of all levels."""
    return _constants(cluster.levels)


def _constants(levels: Iterable[Level]) -> tuple[str, ...]:
    of_levels = (f"{level.name} {what}" for level in levels for what in ("bandwidth", "latency"))
    return (COMPUTE, MEMORY, *of_levels)


def perturbed(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """`cluster` with constants multiplied by `factors` (names as in `constants`).

    Bandwidth of a level: links, cards, measured bus bandwidth and curves alike; latency: the start of a collective and
    each of its steps. Without factors, the cluster as it is.
    """
    if not factors:
        return cluster
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
    scaled = {name: _scaled(getattr(level, name), speed) for name in _attributes(RATES)}
    return replace(level, **scaled | {name: getattr(level, name) * delay for name in _attributes(TIMES)})


def _attributes(units: Mapping[str, Decimal]) -> list[str]:
    """Attributes of a level that are written in these units."""
    found = []
    for key in LEVEL.keys:
        kind = key.kind
        while isinstance(kind, Table):
            kind = kind.values
        if isinstance(kind, Number) and kind.dimension.units is units and key.attribute is not None:
            found.append(key.attribute or key.key)
    return found


def _scaled(value: Any, factor: float) -> Any:
    """A number, or all in a table of them, times a factor."""
    if isinstance(value, Mapping):
        return {key: _scaled(entry, factor) for key, entry in value.items()}
    return value * factor


def _of(level: Level, factors: Mapping[str, float]) -> tuple[float, float]:
    return factors.get(f"{level.name} bandwidth", 1.0), factors.get(f"{level.name} latency", 1.0)


def _curve(curve: Curve, levels: tuple[Level, ...], factors: Mapping[str, float]) -> Curve:
    speed, _ = _of(levels[0] if curve.nodes == 1 else levels[-1], factors)
    return replace(curve, points=tuple((size, seconds / speed) for size, seconds in curve.points))
