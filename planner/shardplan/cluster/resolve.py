"""From a checked profile tree to the resolved profile: plain data with every default written out.

The resolved form is what a plan carries: JSON-ready, in fixed key order, levels as a list from the innermost outwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from shardplan.cluster.keys import (
    AXIS,
    CURVE,
    LEVEL,
    OMITTED,
    PROFILE,
    REQUIRED,
    SCHEMA_VERSION,
    Around,
    Key,
    Keys,
    Plain,
)
from shardplan.cluster.yaml import Leaf, Record, Tree
from shardplan.errors import Diagnostic, error

_NOWHERE = Around(0, None)


def plain(tree: Tree | None) -> Any:
    """The tree without its marks."""
    if isinstance(tree, Record):
        return {key: plain(value) for key, value in tree.entries.items()}
    if isinstance(tree, tuple):
        return [plain(value) for value in tree]
    return tree.value if isinstance(tree, Leaf) else None


def missing_keys(profile: Record) -> list[Diagnostic]:
    """One error for every required key that is absent (or was unusable and left out)."""
    faults = [_missing(profile, path) for path in _required(PROFILE) if profile.get(*path) in (None, ())]
    axes = profile.get("mesh", "axes")
    for position, axis in enumerate(axes if isinstance(axes, tuple) else ()):
        faults += [
            _missing(axis, (key,), f"mesh.axes[{position}].")
            for (key,) in _required(AXIS)
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


def _required(keys: Keys, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the keys that have to be there."""
    found: list[tuple[str, ...]] = []
    for key in keys.keys:
        path = (*above, key.key)
        if isinstance(key.kind, Keys):
            found += _required(key.kind, path)
        elif key.default is REQUIRED:
            found.append(path)
    return found


def _missing_in_level(name: str, level: Tree) -> list[Diagnostic]:
    if not isinstance(level, Record):
        return []
    topology = level.value("topology")
    needed = next((key.key for key in LEVEL.keys if key.needed and key.needed == topology), None)
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
    axes = [filled(AXIS, axis) for axis in data["mesh"]["axes"]]
    sections = {key.key: filled(key.kind, data.get(key.key, {})) for key in PROFILE.keys if isinstance(key.kind, Keys)}
    return {
        "schema": SCHEMA_VERSION,
        "name": data.get("name", name),
        "provenance": sections["provenance"],
        "mesh": {"axes": axes},
        "device": sections["device"],
        "levels": _levels(data["levels"], axes),
        "overlap": sections["overlap"],
        "coalesce": sections["coalesce"],
        **({"training": sections["training"]} if sections["training"] else {}),
        **({"spread": data["spread"]} if data.get("spread") else {}),
        **({"environment": dict(sorted(data["environment"].items()))} if data.get("environment") else {}),
        "curves": [filled(CURVE, curve) for curve in data.get("curves", [])],
    }


def ignored_beside(key: Key, level: Plain) -> str:
    """Why a key of a resolved level has no effect, or `""`."""
    cards = bool(level["node_gbit"])
    if key.beside not in {"", "node_gbit" if cards else f"topology {level['topology']}"}:
        return f"without {key.beside}"
    return "beside node_gbit" if cards and key.no_cards else ""


def base_name(axis: str) -> str:
    """The name of an axis without its number, which counts the axes of one level: `gpu` of `gpu1`."""
    return axis.rstrip("0123456789") or axis


def clashing_axes(axes: Sequence[tuple[str, str]]) -> str:
    """What is wrong where axes, each a (name, level), of different levels have names that differ only in a number;
    `""` where none do."""
    for (name, level), (other, other_level) in itertools.combinations(axes, 2):
        if level != other_level and base_name(name) == base_name(other):
            return f"'{name}' and '{other}' differ only in their number, and lie on different levels"
    return ""


def filled(keys: Keys, given: Plain, around: Around = _NOWHERE) -> Plain:
    """The `given` values with every default, in the order of the table."""
    found: Plain = {}
    for key in keys.keys:
        if isinstance(key.kind, Keys):
            found[key.key] = filled(key.kind, given.get(key.key, {}), around)
        elif key.retired:
            continue
        elif key.key in given or key.default is not OMITTED:
            value = given.get(key.key, key.default)
            found[key.key] = key.resolve(value, given, around) if key.resolve else value
    return found


def _levels(given: Plain, axes: list[Plain]) -> list[Plain]:
    names = list(given)
    levels: list[Plain] = []
    for depth, (name, level) in enumerate(given.items()):
        joined = math.prod(axis["size"] for axis in axes if axis["level"] in names[: depth + 1])
        outermost = depth == len(names) - 1 and depth > 0
        around = Around(0 if outermost else joined, levels[-1] if levels else None)
        levels.append({"name": name, **filled(LEVEL, level, around)})
    return levels
