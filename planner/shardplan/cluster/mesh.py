"""From a profile and the text of `--mesh` to a `Cluster`: which mesh axis runs over which link."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence

from shardplan.cluster.build import Profile, profile_from_resolved
from shardplan.cluster.damage import check_resolved
from shardplan.cluster.resolve import base_name
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error, warning
from shardplan.layout.mesh import AXIS_NAME, Axis, Mesh
from shardplan.units import whole_number

_SIZES = re.compile(r"^\d{1,300}([xX×]\d{1,300})*$")
_NAMED = re.compile(rf"^\s*({AXIS_NAME})\s*=\s*(\d{{1,18}})\s*$")
_EXPECTED = "a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4"

_MOST_DEVICES = 1 << 24

Placed = list[tuple[int, int]]
"""(level, size) of every mesh axis, outermost first."""


def make_cluster(profile: Profile, mesh_text: str | None = None) -> Cluster:
    """Lays a mesh over `profile`; without `mesh_text`, the mesh of the profile itself
    (its axes of size 1 left out).

    `4x4`: sizes, outermost first; as many as the profile has axes go to its axes in order, fewer to the innermost ones;
    if there are more, the trailing ones are cut out of the machine as long as they fit in it. `machine=4,gpu=4`: by the
    names of axes or levels, in any order; `gpu0=2,gpu1=4` cuts one level in two, major first.
    Raises `ShardplanError` for other texts and for more devices per machine than there are.
    """
    if mesh_text is None:
        placed = [(axis.level, axis.size) for axis in profile.axes if axis.size > 1] or [(profile.axes[-1].level, 1)]
    elif "=" in mesh_text:
        placed = _named(profile, mesh_text)
    else:
        placed = _positional(profile, _sizes(mesh_text))
    if any(size < 1 for _, size in placed):
        raise ShardplanError(
            error("bad-mesh", f"mesh '{mesh_text}' has an axis of size 0", hint="a size is at least 1")
        )
    devices = math.prod(size for _, size in placed)
    if devices > _MOST_DEVICES:
        hint = f"at most {_MOST_DEVICES:,} can be planned for"
        number = f"{devices:,}" if devices < 10**12 else f"over {10**12:,}"
        raise ShardplanError(error("mesh-too-large", f"the mesh has {number} devices", hint=hint))
    faults = _too_large(profile, placed)
    if faults:
        raise ShardplanError(*faults)
    return _cluster(profile, placed)


def cluster_from_resolved(resolved: dict[str, object]) -> Cluster:
    """The cluster whose `Cluster.resolved` this is, for instance the copy inside a plan; its mesh is that one, axes of
    size 1 included."""
    check_resolved(resolved)
    profile = profile_from_resolved(resolved)
    return _cluster(profile, [(axis.level, axis.size) for axis in profile.axes])


def merged(
    cluster: Cluster, kinds: Sequence[str] = (), *, only_idle: bool = False
) -> tuple[Cluster, tuple[tuple[int, ...], ...]]:
    """The same devices with one axis for all neighbouring axes over one kind of link, and the axes of `cluster` in each
    of its axes; `kinds`: one for every axis, if only axes of one kind are to be merged; `only_idle`: axes of size 1 are
    merged into their neighbours, and no others. Every layout of the coarser mesh is one of the finer."""
    groups: list[list[int]] = []
    of = list(zip(cluster.axis_levels, kinds or [""] * len(cluster.mesh), strict=True))
    ways = cluster.mesh.shape

    def is_idle(group: Sequence[int]) -> bool:
        return all(ways[axis] == 1 for axis in group)

    for axis in range(len(of)):
        alike = bool(groups) and of[groups[-1][0]] == of[axis]
        if alike and (not only_idle or is_idle([axis]) or is_idle(groups[-1])):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    sizes = cluster.mesh.shape
    placed = [(cluster.axis_levels[group[0]], math.prod(sizes[axis] for axis in group)) for group in groups]
    return _cluster(profile_from_resolved(cluster.resolved), placed), tuple(map(tuple, groups))


def cluster_digest(cluster: Cluster) -> str:
    """`sha256:` and 64 hex digits of everything that affects costs: device, levels, mesh, overlap, buckets, curves; not
    the name and neither the provenance nor the variables of launched processes."""
    aside = ("name", "provenance", "environment")
    decisive = {key: value for key, value in cluster.resolved.items() if key not in aside}
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _sizes(text: str) -> list[int]:
    if not _SIZES.match(text.strip()):
        raise ShardplanError(error("bad-mesh", f"mesh '{text}' cannot be read", hint=_EXPECTED))
    return [int(part) for part in re.split("[xX×]", text.strip())]


def _base_names(profile: Profile) -> dict[int, str]:
    """Level -> the name that its mesh axes have (`gpu`), taken from the profile's axes."""
    names: dict[int, str] = {}
    for axis in profile.axes:
        names.setdefault(axis.level, base_name(axis.name))
    return {depth: names.get(depth, level.name) for depth, level in enumerate(profile.levels)}


def _capacity(profile: Profile, depth: int) -> int | None:
    """Largest product of mesh axes on a level: units of the level below in one unit of it; None if there is no
    limit."""
    devices = profile.levels[depth].devices
    inner = profile.levels[depth - 1].devices if depth else 1
    return devices // max(inner, 1) if devices else None


def _positional(profile: Profile, sizes: list[int]) -> Placed:
    levels = [axis.level for axis in profile.axes]
    if len(sizes) <= len(levels):
        return list(zip(levels[len(levels) - len(sizes) :], sizes, strict=True))
    depths = sorted(set(levels))
    placed: Placed = []
    rest = list(sizes)
    for position, depth in enumerate(depths):
        outer = len(depths) - position - 1
        placed.insert(0, (depth, rest.pop()))
        capacity = _capacity(profile, depth)
        inside = placed[0][1]
        while len(rest) > outer and (not outer or capacity is None or inside * rest[-1] <= capacity):
            inside *= rest[-1]
            placed.insert(0, (depth, rest.pop()))
    return placed


def _named(profile: Profile, text: str) -> Placed:
    faults: list[Diagnostic] = []
    placed: dict[tuple[int, int], int] = {}
    for part in text.split(","):
        match = _NAMED.match(part)
        if match is None:
            raise ShardplanError(error("bad-mesh", f"mesh '{text}' cannot be read at '{part.strip()}'", hint=_EXPECTED))
        found = _level_named(profile, match[1])
        if found is None:
            faults.append(_unknown_axis(profile, text, match[1]))
        elif any(depth == found[0] and (number == found[1] or -1 in (number, found[1])) for depth, number in placed):
            base = _base_names(profile)[found[0]]
            hint = f"cut one level into several axes as {base}0=…,{base}1=…"
            faults.append(error("bad-mesh", f"mesh '{text}' names axis '{base}' twice", hint=hint))
        else:
            placed[found] = int(match[2])
    if faults:
        raise ShardplanError(*faults)
    return [(depth, placed[depth, number]) for depth, number in sorted(placed, key=lambda key: (-key[0], key[1]))]


def _unknown_axis(profile: Profile, text: str, name: str) -> Diagnostic:
    bases = _base_names(profile)
    outermost_first = ", ".join(bases[depth] for depth in sorted(bases, reverse=True))
    near = did_you_mean(name, {*bases.values(), *(level.name for level in profile.levels)})
    hint = near or f"axes of profile '{profile.name}': {outermost_first}"
    return error("unknown-axis", f"mesh '{text}': there is no axis '{name}'", hint=hint)


def _level_named(profile: Profile, name: str) -> tuple[int, int] | None:
    """(level, number) for `gpu0` and `up0`, number -1 for `gpu` and `up`; None where no level has the name."""
    bases = _base_names(profile)
    stem = name.rstrip("0123456789")
    number = whole_number(name[len(stem) :]) if stem != name else -1
    if number is None:
        return None
    for wanted, at in ((name, -1), (stem, number)):
        for depth, level in enumerate(profile.levels):
            if wanted in (bases[depth], level.name):
                return depth, at
    return None


def _too_large(profile: Profile, placed: Placed) -> list[Diagnostic]:
    bases = _base_names(profile)
    faults = []
    for depth in range(len(profile.levels)):
        size = math.prod(size for at, size in placed if at == depth)
        capacity = _capacity(profile, depth)
        if capacity is not None and size > capacity:
            outer = bases[depth + 1] if depth + 1 < len(bases) else "mesh"
            has = f"but one {outer} of profile '{profile.name}' has {capacity}"
            hint = _smaller(profile, placed, depth, size, capacity)
            faults.append(error("mesh-too-large", f"{size} devices on axis '{bases[depth]}', {has}", hint=hint))
    return faults


def _smaller(profile: Profile, placed: Placed, depth: int, size: int, capacity: int) -> str:
    """A mesh with as many devices that fits, if moving them one level out gives one."""
    if size % capacity or depth + 1 >= len(profile.levels):
        return f"at most {capacity}"
    bases = _base_names(profile)
    products = {at: math.prod(n for level, n in placed if level == at) for at, _ in placed}
    products |= {depth: capacity, depth + 1: products.get(depth + 1, 1) * (size // capacity)}
    text = ",".join(f"{bases[at]}={products[at]}" for at in sorted(products, reverse=True))
    return f"the same number of devices: --mesh {text}"


def _cluster(profile: Profile, placed: Placed) -> Cluster:
    bases = _base_names(profile)
    counts = {depth: [at for at, _ in placed].count(depth) for depth in range(len(profile.levels))}
    used = dict.fromkeys(counts, 0)
    axes = []
    for depth, size in placed:
        axes.append(Axis(bases[depth] + (str(used[depth]) if counts[depth] > 1 else ""), size))
        used[depth] += 1
    mesh = Mesh(tuple(axes))
    described = [
        {"name": axis.name, "size": axis.size, "level": profile.levels[depth].name}
        for axis, (depth, _) in zip(axes, placed, strict=True)
    ]
    return Cluster(
        name=profile.name,
        device=profile.device,
        levels=profile.levels,
        mesh=mesh,
        axis_levels=tuple(depth for depth, _ in placed),
        overlap=profile.overlap,
        provenance=profile.provenance,
        resolved={
            key: {"axes": described} if key == "mesh" else value
            for key, value in profile.resolved.items()
            if key not in ("training", "spread")
        },
        curves=profile.curves,
        warnings=(*profile.warnings, *_uneven(profile, placed)),
        coalesce=profile.coalesce,
        training=profile.training,
        spread=profile.spread,
    )


def _uneven(profile: Profile, placed: Placed) -> list[Diagnostic]:
    """A warning when the machines cannot be filled by groups of the size asked for."""
    size = math.prod(size for at, size in placed if at == 0)
    capacity = _capacity(profile, 0)
    if capacity is None or capacity % size == 0:
        return []
    summary = f"axis '{_base_names(profile)[0]}' uses {size} of {capacity} devices; the others stay idle"
    return [warning("uneven-mesh", summary)]
