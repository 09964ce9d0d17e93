"""A checked profile tree -> the resolved profile: plain data with every default written out.

The resolved form is what a plan carries: JSON-ready, in fixed key order, levels as a list from the innermost outwards.
"""

from __future__ import annotations

import math
from typing import Any

from shardplan.cluster import schema
from shardplan.cluster.yaml import Leaf, Record, Tree
from shardplan.errors import Diagnostic, error

Plain = dict[str, Any]

_REQUIRED = (
    ("mesh", "axes"), ("device", "memory_bytes"), ("device", "hbm_gbps"), ("device", "peak_tflops"), ("levels",)
)  # fmt: skip
_INNER_BASE_US, _INNER_STEP_US, _INNER_RAMP_MB = 5.0, 1.0, 8.0
_NIC_STEP_US, _NIC_RAMP_MB = 10.0, 30.0


def plain(tree: Tree | None) -> Any:
    """The tree without its marks."""
    if isinstance(tree, Record):
        return {key: plain(value) for key, value in tree.entries.items()}
    if isinstance(tree, tuple):
        return [plain(value) for value in tree]
    return tree.value if isinstance(tree, Leaf) else None


def missing_keys(profile: Record) -> list[Diagnostic]:
    """One error for every required key that is absent (or was unusable and left out)."""
    faults = [_missing(profile, path) for path in _REQUIRED if profile.get(*path) in (None, ())]
    axes = profile.get("mesh", "axes")
    for position, axis in enumerate(axes if isinstance(axes, tuple) else ()):
        faults += [
            _missing(axis, (key,), f"mesh.axes[{position}].")
            for key in ("name", "size", "level")
            if isinstance(axis, Record) and axis.get(key) is None
        ]
    peaks = profile.get("device", "peak_tflops")
    if isinstance(peaks, Record) and not peaks.entries:
        faults.append(_missing(profile, ("device", "peak_tflops", "bf16")))
    levels = profile.get("levels")
    if isinstance(levels, Record):
        for name, level in levels.entries.items():
            faults += _missing_in_level(name, level)
    return faults


def _missing_in_level(name: str, level: Tree) -> list[Diagnostic]:
    if not isinstance(level, Record):
        return []
    topology = level.value("topology")
    needed = {"full_mesh": "pair_gbps", "custom": "busbw_gbps"}.get(str(topology))
    if needed is not None:
        found = level.get(needed)
        empty = found is None or (isinstance(found, Record) and not found.entries)
        return [_missing(level, (needed,), f"levels.{name}.")] if empty else []
    if level.get("link_gbps") or level.get("node_gbit"):
        return []
    return [error("missing-key", f"levels.{name}: one of 'link_gbps' and 'node_gbit' is needed", **level.mark.where)]


def _missing(record: Record, path: tuple[str, ...], prefix: str = "") -> Diagnostic:
    inner = record
    for key in path[:-1]:
        found = inner.get(key)
        inner = found if isinstance(found, Record) else inner
    return error("missing-key", f"missing key '{prefix}{'.'.join(path)}'", **inner.mark.where)


def resolve(profile: Record, name: str) -> Plain:
    """The profile as plain data in fixed key order, with every default. `profile` has no missing keys."""
    data = plain(profile)
    provenance = data.get("provenance", {})
    axes = [{key: axis[key] for key in ("name", "size", "level")} for axis in data["mesh"]["axes"]]
    return {
        "schema": schema.SCHEMA_VERSION,
        "name": data.get("name", name),
        "provenance": {
            "status": provenance.get("status", "estimated"),
            "sources": provenance.get("sources", []),
            "date": provenance.get("date", ""),
            "notes": provenance.get("notes", []),
            **({"device_hour_usd": provenance["device_hour_usd"]} if "device_hour_usd" in provenance else {}),
        },
        "mesh": {"axes": axes},
        "device": _resolve_device(data["device"]),
        "levels": _resolve_levels(data["levels"], axes),
        "overlap": schema.OVERLAP_DEFAULTS | data.get("overlap", {}),
        "coalesce": schema.COALESCE_DEFAULTS | data.get("coalesce", {}),
        "curves": [_resolve_curve(curve) for curve in data.get("curves", [])],
    }


def _resolve_device(given: Plain) -> Plain:
    peaks = given["peak_tflops"]
    filled: Plain = schema.DEVICE_DEFAULTS | given
    filled["memory_bytes"] = round(filled["memory_bytes"])
    filled["reserved_bytes"] = round(filled["reserved_bytes"])
    filled["peak_tflops"] = {dtype: peaks[dtype] for dtype in schema.DTYPES if dtype in peaks}
    filled["gemm"] = schema.GEMM_DEFAULTS | given.get("gemm", {})
    return {key: filled[key] for key in schema.DEVICE.fields if key in filled}


def _resolve_levels(given: Plain, axes: list[Plain]) -> list[Plain]:
    names = list(given)
    levels: list[Plain] = []
    for depth, (name, level) in enumerate(given.items()):
        joined = math.prod(axis["size"] for axis in axes if axis["level"] in names[: depth + 1])
        outermost = depth == len(names) - 1 and depth > 0
        levels.append(_resolve_level(name, level, 0 if outermost else joined, levels[-1] if levels else None))
    return levels


def _resolve_level(name: str, given: Plain, joined: int, inner: Plain | None) -> Plain:
    topology = given.get("topology", "switch")
    by_nics = "node_gbit" in given
    devices = given.get("devices", joined)
    busbw = given.get("busbw_gbps", {})
    if topology == "custom":
        fallback = busbw.get("all_gather") or busbw[min(busbw)]
        busbw = {kind: busbw.get(kind, fallback) for kind in schema.COLLECTIVES}
    link = given.get("link_gbps")
    if link is None and by_nics:
        link = given["node_gbit"] / 8 / given.get("nics", 1)
    elif link is None and topology == "full_mesh":
        link = given["pair_gbps"] * max(devices - 1, 1)
    elif link is None:
        link = max(rate for table in busbw.values() for rate in table.values())
    return {
        "name": name,
        "topology": topology,
        "devices": devices,
        "link_gbps": link,
        "pair_gbps": given.get("pair_gbps", 0.0),
        "node_gbit": given.get("node_gbit", 0.0),
        "nics": given.get("nics", 0),
        "eta": _resolve_eta(schema.ETA_DEFAULTS["nics" if by_nics else topology], given.get("eta", {})),
        "base_us": given.get("base_us", inner["base_us"] if inner else _INNER_BASE_US),
        "step_us": given.get("step_us", _NIC_STEP_US if by_nics else _INNER_STEP_US),
        "ramp_mb": given.get("ramp_mb", _NIC_RAMP_MB if by_nics else _INNER_RAMP_MB),
        "nvls": given.get("nvls", False),
        "wrap": given.get("wrap", False),
        "wrap_multiple": given.get("wrap_multiple", 0),
        "busbw_gbps": busbw,
        "share": given.get("share", "auto"),
        "scale_loss": given.get("scale_loss", {}),
    }


def _resolve_eta(defaults: Plain, given: Plain) -> Plain:
    """A `default` that is given replaces what is assumed for each collective."""
    kept = {kind: eta for kind, eta in defaults.items() if "default" not in given or kind in ("nvls", "partial")}
    return kept | given


def _resolve_curve(given: Plain) -> Plain:
    group = given.get("group", {})
    return {
        "collective": given.get("collective", "all_reduce"),
        "group": {"nodes": group.get("nodes", 1), "per_node": group.get("per_node", 1)},
        "points": sorted(given.get("points", [])),
    }
