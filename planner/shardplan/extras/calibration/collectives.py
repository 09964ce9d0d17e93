"""Link parameters of a profile fitted to measured collectives; measurements that no parameter fits stay a curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.cluster.types import Level
from shardplan.cost.collectives import CollectiveModel
from shardplan.extras.calibration.fit import fit_curve, large, mean_error, non_negative
from shardplan.extras.calibration.nccl_log import Measurement
from shardplan.extras.calibration.text import Plain, profile_text
from shardplan.units import GIGA, US_PER_S

WORST_FIT = 0.15
"""Mean relative error from 1 MiB up beyond which the measured points themselves go into the profile."""
_FEWEST_POINTS = 4


@dataclass(frozen=True, slots=True)
class Fitted:
    """`error`: of the fitted keys, mean relative, from 1 MiB up. `kept`: the points themselves are in the profile."""

    measurement: Measurement
    busbw_bytes_per_s: float
    latency_s: float
    ramp_bytes: float
    error: float
    kept: bool


def calibrate(measured: Sequence[Measurement], base: Profile, name: str) -> tuple[str, list[Fitted]]:
    """The text of a profile that extends `base` by what was measured, and how well it fits.

    Inside a machine: bus bandwidth per collective and ranks, latency and ramp. Between machines (groups of whole
    machines, or with all their siblings running): efficiency and ramp. Curves replace what is still off by more than
    15 % then.
    """
    fits = {entry: fit_curve(entry.points) for entry in measured if len(entry.points) >= _FEWEST_POINTS}
    keys = {"levels": _levels(fits, base)} if fits else {}
    text = profile_text(name, base.name, keys, [])
    errors = {entry: _error(entry, profile_from_text(text, name)) for entry in measured}
    curves = [entry for entry in measured if entry not in fits or errors[entry] > WORST_FIT]
    text = profile_text(name, base.name, keys, [_curve(entry) for entry in curves])
    profile_from_text(text, name)  # a profile that cannot be read is a defect, found here
    return text, [_fitted(entry, fits.get(entry), errors[entry], kept=entry in curves) for entry in measured]


def _fitted(entry: Measurement, fit: tuple[float, float, float] | None, error: float, *, kept: bool) -> Fitted:
    a, b, c = fit or (0.0, 0.0, 0.0)
    bandwidth = wire_factor(entry.collective, entry.ranks) / b if b else 0.0
    return Fitted(entry, bandwidth, a, (c / b) ** 2 if b else 0.0, error, kept)


def wire_factor(collective: str, ranks: int) -> float:
    """Bytes on the wire per payload byte, as nccl-tests has it."""
    if collective == "permute":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def _levels(fits: dict[Measurement, tuple[float, float, float]], base: Profile) -> Plain:
    inside = {entry: fit for entry, fit in fits.items() if entry.nodes == 1}
    between = {entry: fit for entry, fit in fits.items() if entry.nodes > 1}
    levels: Plain = {}
    if inside:
        levels[base.levels[0].name] = _inside(inside)
    if between and len(base.levels) > 1:
        found = _between(between, base.levels[0], base.levels[-1])
        if found:
            levels[base.levels[-1].name] = found
    return levels


def _inside(fits: dict[Measurement, tuple[float, float, float]]) -> Plain:
    """Bus bandwidth by collective and ranks; one latency and one ramp for all."""
    table: dict[str, dict[int, float]] = {}
    ramps, rows, seconds = [], [], []
    for entry, (a, b, c) in fits.items():
        if b <= 0 or entry.collective == "permute":
            continue
        bandwidth = wire_factor(entry.collective, entry.ranks) / b
        table.setdefault(entry.collective, {})[entry.ranks] = round(bandwidth / GIGA, 2)
        ramps.append((c / b) ** 2)
        if a > 0 and entry.collective != "all_to_all":
            steps = (2 if entry.collective == "all_reduce" else 1) * (entry.ranks - 1)
            rows.append([1.0 / a, steps / a])
            seconds.append(1.0)
    keys: Plain = {"busbw_gbps": table}
    if rows:
        base_s, step_s = non_negative(np.array(rows), np.array(seconds))
        keys |= {"base_us": round(base_s * US_PER_S, 3), "step_us": round(step_s * US_PER_S, 3)}
    if ramps:
        keys["ramp_mb"] = round(float(np.median(ramps)) / 1e6, 3)
    return keys


def _between(fits: dict[Measurement, tuple[float, float, float]], up: Level, net: Level) -> Plain:
    """Efficiency of the network cards, from groups that use all of a machine or share it with their siblings."""
    eta: dict[str, list[float]] = {}
    ramps = []
    for entry, (_, b, c) in fits.items():
        whole = entry.per_node == up.devices
        if b <= 0 or not (whole or entry.per_node * entry.siblings == up.devices) or not net.node_bytes_per_s:
            continue
        if entry.collective in ("all_to_all", "permute"):
            continue
        bandwidth = wire_factor(entry.collective, entry.ranks) / b
        share = net.node_bytes_per_s * entry.per_node / up.devices
        kind = ("all_reduce" if entry.collective == "all_reduce" else "default") if whole else "partial"
        eta.setdefault(kind, []).append(bandwidth / share)
        if whole:
            ramps.append((c / b) ** 2)
    keys: Plain = {}
    if eta:
        keys["eta"] = {kind: round(min(1.2, float(np.median(values))), 4) for kind, values in sorted(eta.items())}
    if ramps:
        keys["ramp_mb"] = round(float(np.median(ramps)) / 1e6, 3)
    return keys


def _error(entry: Measurement, profile: Profile) -> float:
    """Mean relative error of the profile's prices, from 1 MiB up; groups and their siblings as measured."""
    names = [axis.name for axis in profile.axes]
    outer, inner = names[0], names[-1]
    if entry.siblings > 1:
        mesh = f"{outer}={entry.nodes},{inner}0={entry.siblings},{inner}1={entry.per_node}"
        axes: tuple[int, ...] = (0, 2)
    else:
        flat = len(profile.levels) == 1
        mesh = f"{inner}={entry.ranks}" if flat else f"{outer}={entry.nodes},{inner}={entry.per_node}"
        axes = (0,) if flat else (0, 1)
    model = CollectiveModel(make_cluster(profile, mesh))
    size, seconds = np.array(large(entry.points)).T
    return mean_error(model.seconds_array(entry.collective, axes, size), seconds)  # type: ignore[arg-type]


def _curve(entry: Measurement) -> Plain:
    return {
        "collective": entry.collective,
        "group": {"nodes": entry.nodes, "per_node": entry.per_node},
        "points": [[int(size), round(seconds * US_PER_S, 3)] for size, seconds in entry.points],
    }
