"""A resolved profile (plain data) -> the value types, in SI units. A profile kept in a plan goes the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardplan.cluster.types import Coalesce, Curve, Device, GemmEfficiency, Level, Overlap
from shardplan.errors import Diagnostic


@dataclass(frozen=True, slots=True)
class ProfileAxis:
    """A mesh axis of a profile: its default size and the index into `Profile.levels` of its link."""

    name: str
    size: int
    level: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A resolved profile without a mesh laid over it; `axes` outermost first, `levels` innermost first.

    `warnings`: what looks wrong, for the user; `resolved`: plain data with every default, in fixed key order.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    axes: tuple[ProfileAxis, ...]
    overlap: Overlap
    provenance: Mapping[str, object]
    resolved: Mapping[str, object]
    curves: tuple[Curve, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    coalesce: Coalesce = field(default_factory=Coalesce)


def profile_from_resolved(resolved: Mapping[str, Any], warnings: tuple[Diagnostic, ...] = ()) -> Profile:
    """The profile that `resolved` (for instance the copy inside a plan) describes."""
    levels = tuple(_build_level(level) for level in resolved["levels"])
    depth = {level.name: index for index, level in enumerate(levels)}
    return Profile(
        name=resolved["name"],
        device=_build_device(resolved["device"]),
        levels=levels,
        axes=tuple(ProfileAxis(axis["name"], axis["size"], depth[axis["level"]]) for axis in resolved["mesh"]["axes"]),
        overlap=_build_overlap(resolved["overlap"]),
        provenance=resolved["provenance"],
        resolved=resolved,
        curves=tuple(_build_curve(curve) for curve in resolved["curves"]),
        warnings=warnings,
        coalesce=_build_coalesce(resolved.get("coalesce", {})),
    )


def _build_device(resolved: Mapping[str, Any]) -> Device:
    return Device(
        kind=resolved["kind"],
        memory_bytes=resolved["memory_bytes"],
        usable_fraction=resolved["usable_fraction"],
        reserved_bytes=resolved["reserved_bytes"],
        hbm_bytes_per_s=resolved["hbm_gbps"] * 1e9,
        peak_flops={dtype: peak * 1e12 for dtype, peak in resolved["peak_tflops"].items()},
        allow_tf32=resolved["allow_tf32"],
        gemm=GemmEfficiency(**resolved["gemm"]),
        memory_efficiency=resolved["mem_efficiency"],
        launch_s=resolved["launch_us"] / 1e6,
    )


def _build_level(resolved: Mapping[str, Any]) -> Level:
    share = resolved["share"]
    return Level(
        name=resolved["name"],
        devices=resolved["devices"],
        topology=resolved["topology"],
        link_bytes_per_s=resolved["link_gbps"] * 1e9,
        node_bytes_per_s=resolved["node_gbit"] * 1e9 / 8,
        eta={kind: eta for kind, eta in resolved["eta"].items() if not isinstance(eta, dict)},
        eta_by_ranks={kind: _by_count(eta) for kind, eta in resolved["eta"].items() if isinstance(eta, dict)},
        base_s=resolved["base_us"] / 1e6,
        step_s=resolved["step_us"] / 1e6,
        ramp_bytes=resolved["ramp_mb"] * 1e6,
        nvls=resolved["nvls"],
        wrap=resolved["wrap"],
        wrap_multiple=resolved["wrap_multiple"],
        pair_bytes_per_s=resolved["pair_gbps"] * 1e9,
        share=None if share == "auto" else share,
        busbw={kind: _by_count(table, 1e9) for kind, table in resolved["busbw_gbps"].items()},
        scale_loss=_by_count(resolved["scale_loss"]),
    )


def _by_count(table: Mapping[str, float], scale: float = 1.0) -> dict[int, float]:
    return {count: table[str(count)] * scale for count in sorted(int(key) for key in table)}


def _build_overlap(resolved: Mapping[str, Any]) -> Overlap:
    return Overlap(**resolved)


def _build_coalesce(resolved: Mapping[str, Any]) -> Coalesce:
    """Plans of before there was such a thing say nothing of it: there every gradient is sent by itself."""
    return Coalesce(bucket_bytes=resolved.get("bucket_mb", 0.0) * 1e6)


def _build_curve(resolved: Mapping[str, Any]) -> Curve:
    points = tuple((float(payload), micros / 1e6) for payload, micros in resolved["points"])
    return Curve(resolved["collective"], resolved["group"]["nodes"], resolved["group"]["per_node"], points)
