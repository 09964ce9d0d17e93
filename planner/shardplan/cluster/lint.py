"""Lint of a cluster profile: plausible values with the typical errors of copied specification tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from shardplan.cluster.keys import LEVEL, PROFILE, RATE, Keys, Plain
from shardplan.cluster.resolve import clashing_axes, ignored_beside
from shardplan.cluster.yaml import TITLE, Leaf, Record, allowed, within
from shardplan.errors import Diagnostic, did_you_mean, error, warning
from shardplan.units import counted

DATASHEET: Final[dict[str, tuple[float, float]]] = {
    "V100-SXM2-16GB": (16e9, 125),
    "A100-SXM4-40GB": (40e9, 312),
    "A100-SXM4-80GB": (80e9, 312),
    "A10G": (24e9, 70),
    "L4": (24e9, 121),
    "L40S": (48e9, 362),
    "H100-SXM5-80GB": (80e9, 989),
    "H200-SXM5-141GB": (141e9, 989),
    "B200-SXM6-180GB": (180e9, 2250),
    "B300-SXM6-288GB": (288e9, 2250),
    "GB200": (186e9, 2500),
    "GB300": (288e9, 2500),
    "GH200-96GB": (96e9, 989),
    "MI300X": (192e9, 1307),
    "MI325X": (256e9, 1307),
    "MI355X": (288e9, 2516),
    "Trainium2": (96e9, 667),
    "TPU v4": (34359738368, 275),
    "TPU v5e": (16e9, 197),
    "TPU v5p": (95e9, 459),
    "TPU v6e": (32e9, 918),
}
"""Device kind -> memory in bytes and dense 16-bit peak in TFLOP/s, of the shipped profiles."""

_LEVEL_KEYS: Final = {key.key: key for key in LEVEL.keys}
_FASTEST_LINK_GBPS: Final = 2000.0
_SPARSE_RATIO: Final = 1.9
_MEMORY_RATIO: Final = 1.05


def lint_profile(tree: Record, resolved: Plain) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """(warnings, errors) about a profile; `tree` gives the places, `resolved` the values."""
    found = [
        *_name(tree, resolved),
        *_levels_of_axes(tree, resolved),
        *_level_keys(tree, resolved),
        *_retired_keys(tree, PROFILE),
        *_bandwidths(tree, resolved),
        *_device(tree, resolved["device"]),
    ]
    found += [*_curves(tree, resolved), *_provenance(tree, resolved)]
    return tuple(d for d in found if d.severity == "warning"), tuple(d for d in found if d.severity == "error")


def _where(tree: Record, *path: str) -> dict[str, object]:
    """Place of the deepest part of `path` that is written in a file."""
    found = tree.get(*path)
    if isinstance(found, Leaf | Record):
        return found.mark.where
    if isinstance(found, tuple) and found and isinstance(found[0], Leaf | Record):
        return found[0].mark.where
    return _where(tree, *path[:-1]) if path else tree.mark.where


def _name(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    """The name of the file stands in for one that is not written, which the reader has checked."""
    if not TITLE.fits(resolved["name"]):
        summary = f"name: the name of the file, '{resolved['name']}', is no {TITLE.said}"
        yield error("bad-value", summary, hint="give the profile a 'name'", **_where(tree, "name"))


def _levels_of_axes(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    names = [level["name"] for level in resolved["levels"]]
    axes = resolved["mesh"]["axes"]
    at = _where(tree, "mesh", "axes")
    for axis in axes:
        if axis["level"] not in names:
            hint = did_you_mean(axis["level"], names) or f"levels: {', '.join(names)}"
            summary = f"mesh axis '{axis['name']}' lies on level '{axis['level']}', which is not there"
            yield error("unknown-level", summary, hint=hint, **at)
    if len({axis["name"] for axis in axes}) < len(axes):
        yield error("bad-value", "mesh.axes: two axes have the same name", **at)
    elif clash := clashing_axes([(axis["name"], axis["level"]) for axis in axes]):
        hint = "a number counts the axes of one level: give axes of different levels different names"
        yield error("bad-value", f"mesh.axes: {clash}", hint=hint, **at)
    depths = [names.index(axis["level"]) for axis in axes if axis["level"] in names]
    if depths != sorted(depths, reverse=True):
        hint = f"levels from the outermost inwards: {', '.join(reversed(names))}"
        yield error("bad-value", "mesh.axes: not ordered from the outermost level inwards", hint=hint, **at)
    for name in names:
        if name not in {axis["level"] for axis in axes}:
            yield warning("unused-level", f"no mesh axis lies on level '{name}'", **_where(tree, "levels", name))


def _level_keys(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    """Keys that a level of this kind does not use, and units that do not nest."""
    for level in resolved["levels"]:
        written = tree.get("levels", level["name"])
        for name in written.entries if isinstance(written, Record) else ():
            if reason := ignored_beside(_LEVEL_KEYS[name], level):
                summary = f"levels.{level['name']}: '{name}' has no effect {reason}"
                yield warning("ignored-key", summary, **_where(tree, "levels", level["name"], name))
    for inner, outer in itertools.pairwise(resolved["levels"]):
        if outer["devices"] and outer["devices"] % inner["devices"]:
            summary = (
                f"levels.{outer['name']}: devices ({outer['devices']}) is no multiple "
                f"of the {inner['devices']} of level '{inner['name']}'"
            )
            yield error("bad-value", summary, **_where(tree, "levels", outer["name"], "devices"))


def _retired_keys(tree: Record, keys: Keys, *above: str) -> Iterator[Diagnostic]:
    """Keys that decide nothing any more."""
    for key in keys.keys:
        path = (*above, key.key)
        if isinstance(key.kind, Keys):
            yield from _retired_keys(tree, key.kind, *path)
        elif key.retired and tree.get(*path) is not None:
            yield warning("ignored-key", f"'{'.'.join(path)}' has no effect {key.retired}", **_where(tree, *path))


def _reach_gbps(level: Plain, inner_devices: int) -> float:
    """What each device gets of the level when all of them use it."""
    share = level["node_gbit"] / 8 / max(inner_devices, 1)
    return float(min(share, level["link_gbps"]) if level["node_gbit"] else level["link_gbps"])


def _bandwidths(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    levels = resolved["levels"]
    for level in levels:
        if not within(RATE, level["link_gbps"]):  # of a rate that is derived, as written ones are in range
            yield error(
                "bad-value",
                f"levels.{level['name']}: {level['link_gbps']:g} GB/s per device, which follows from its other keys, "
                f"is not {allowed(RATE)}",
                **_where(tree, "levels", level["name"]),
            )
        elif level["link_gbps"] > _FASTEST_LINK_GBPS:
            yield warning(
                "suspect-bandwidth",
                f"levels.{level['name']}: {level['link_gbps']:g} GB/s per device is more than any link has",
                hint="link_gbps counts gigabytes per second; write '400 Gb/s' for gigabits",
                **_where(tree, "levels", level["name"], "link_gbps"),
            )
    for inner, outer in itertools.pairwise(levels):
        reach = _reach_gbps(outer, inner["devices"])
        if reach > inner["link_gbps"]:
            yield warning(
                "suspect-levels",
                f"level '{outer['name']}' ({reach:g} GB/s per device) is faster than '{inner['name']}' "
                f"({inner['link_gbps']:g} GB/s) inside it",
                hint="are the two swapped, or gigabits given as gigabytes?",
                **_where(tree, "levels", outer["name"]),
            )


def _device(tree: Record, device: Plain) -> Iterator[Diagnostic]:
    if device["memory_bytes"] * device["usable_fraction"] <= device["reserved_bytes"]:
        yield error(
            "bad-value",
            "device: nothing of the memory is usable",
            hint="usable = memory_bytes * usable_fraction - reserved_bytes",
            **_where(tree, "device", "memory_bytes"),
        )
    if device["kind"] not in DATASHEET:
        return
    memory, peak = DATASHEET[device["kind"]]
    for dtype in ("bf16", "fp16"):
        given = device["peak_tflops"].get(dtype, 0.0)
        if given >= _SPARSE_RATIO * peak:
            yield warning(
                "suspect-peak",
                f"{dtype} peak {given:g} TFLOP/s; the dense peak of {device['kind']} is {peak:g}",
                hint="the number with sparsity is twice the dense one",
                **_where(tree, "device", "peak_tflops", dtype),
            )
    if device["memory_bytes"] > _MEMORY_RATIO * memory:
        yield warning(
            "suspect-memory",
            f"memory of {device['memory_bytes'] / 1e9:g} GB; {device['kind']} has {memory / 1e9:g} GB",
            hint="1 GiB is 1.074 GB; another device has another name, device.kind",
            **_where(tree, "device", "memory_bytes"),
        )


def _curves(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    written = tree.get("curves")
    for number, curve in enumerate(resolved["curves"]):
        found = written[number] if isinstance(written, tuple) else tree
        at, group = found.mark.where if isinstance(found, Leaf | Record) else {}, curve["group"]
        label = f"curve of {curve['collective']} on {group['nodes']} x {group['per_node']} devices"
        payloads = [payload for payload, _ in curve["points"]]
        times = [time for _, time in curve["points"]]
        if len(set(payloads)) < 2:
            yield error("bad-value", f"{label}: at least two points are needed", **at)
        elif len(set(payloads)) < len(payloads):
            yield error("bad-value", f"{label}: two points have the same size", **at)
        elif times != sorted(times):
            yield warning("curve-repaired", f"{label}: time falls where size rises; the slower time is used", **at)
        if reason := _never_used(group["nodes"], group["per_node"], resolved["levels"]):
            yield warning("ignored-key", f"{label} has no effect: {reason}", **at)


def _never_used(nodes: int, per_node: int, levels: list[Plain]) -> str:
    """Why no group has `per_node` devices in each of `nodes` units of the innermost level, or `""`."""
    inner, outer = levels[0], levels[-1]
    if nodes * per_node == 1:
        return "one device sends nothing"
    if inner["devices"] and per_node > inner["devices"]:
        return f"a unit of level '{inner['name']}' has {counted(inner['devices'], 'device')}"
    units = outer["devices"] // inner["devices"] if inner["devices"] else 1
    if units and nodes > units:
        return f"there {'is' if units == 1 else 'are'} {counted(units, 'unit')} of level '{inner['name']}'"
    return ""


def _provenance(tree: Record, resolved: Plain) -> Iterator[Diagnostic]:
    if resolved["provenance"]["status"] == "estimated":
        yield warning(
            "estimated-profile",
            f"the numbers of profile '{resolved['name']}' are estimates, not measurements",
            hint="calibrate on the machine itself before trusting absolute times",
            **_where(tree, "provenance", "status"),
        )
