"""Links of a cluster as trainers' ranks fill them: partly used racks, and neighbouring levels that are one fabric.

Of a rack of 72 devices, trainers use 64, the largest power of two; and its trays and the rack are joined by the same
switches, so that ranks see one kind of link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardplan.cluster.build import Profile, profile_from_resolved
from shardplan.cluster.keys import LEVEL
from shardplan.cluster.types import Cluster
from shardplan.errors import ShardplanError
from shardplan.planning.parallelism import Parallelism, axes_of

_OF_EXTENT = ("devices", "node_gbit", "nics", "wrap_multiple", "share", "scale_loss")
_SAME = tuple(key.key for key in LEVEL.keys if key.key not in _OF_EXTENT)
"""Keys in which two link levels of one fabric agree: all but how many devices and network cards there are."""
_TORUS = "torus"


def as_filled(cluster: Cluster, parallelism: Parallelism) -> Profile:
    """The profile of `cluster` with levels of one fabric merged, and with as many devices of each level as the ranks
    fill: all, or if these do not divide it, the largest power of two. Raises `ShardplanError` (`bad-parallelism`) if
    neither divides."""
    joined = _joined(cluster.resolved)
    found = replace(profile_from_resolved(joined), training=cluster.training)
    try:
        axes_of(parallelism, found)
    except ShardplanError:
        found = replace(profile_from_resolved(_in_part(joined)), training=cluster.training)
        axes_of(parallelism, found)
    return found


def _joined(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with neighbouring levels of one fabric merged, under the name and with the devices of the outermost.

    Links of a torus are never merged, however alike: each dimension has its own, and a ring along it.
    """
    levels: list[Mapping[str, Any]] = []
    names: dict[str, str] = {}
    for level in resolved["levels"]:
        same = levels and level["topology"] != _TORUS and all(levels[-1].get(key) == level.get(key) for key in _SAME)
        if same:
            inner = levels[-1]["name"]
            names = {name: level["name"] if outer == inner else outer for name, outer in names.items()}
            names[inner] = level["name"]
            levels[-1] = level
        else:
            levels.append(level)
    axes: list[dict[str, Any]] = []
    for axis in resolved["mesh"]["axes"]:
        name = names.get(axis["level"], axis["level"])
        if axes and axes[-1]["level"] == name:
            axes[-1] = {**axes[-1], "size": axes[-1]["size"] * axis["size"]}
        else:
            axes.append({**axis, "level": name})
    return {**resolved, "levels": levels, "mesh": {**resolved["mesh"], "axes": axes}}


def _in_part(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with a power of two of the devices of each level, and the network cards of these devices."""
    levels, share = [], 1.0
    for level in resolved["levels"]:
        devices = level["devices"]
        cut = 1 << (devices.bit_length() - 1) if devices else 0
        levels.append(
            {
                **level,
                "devices": cut,
                "node_gbit": level["node_gbit"] * share,
                "nics": max(1, round(level["nics"] * share)) if level["nics"] else 0,
            }
        )
        share = cut / devices if devices else 1.0
    return {**resolved, "levels": levels}
