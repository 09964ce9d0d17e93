"""A cluster whose `resolved` says what its value types say, after a program has replaced some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.damage import check_resolved
from shardplan.cluster.keys import COALESCE, DEVICE, GEMM, LEVEL, OMITTED, OVERLAP, Keys, Plain
from shardplan.cluster.types import Cluster, Curve, Level
from shardplan.cluster.yaml import Field, Number, Table
from shardplan.errors import ShardplanError, error


def consistent(cluster: Cluster) -> Cluster:
    """The cluster with a `resolved` that describes it: meshes and parts are made of that, and plans record it. What
    `dataclasses.replace` has changed in a cluster is written into it; the same object where nothing was.

    Raises `ShardplanError`: `bad-argument` where its levels are not those of `resolved`, `damaged-profile` for values
    that no profile has.
    """
    resolved: Plain = dict(cluster.resolved)
    then = profile_from_resolved(resolved)
    names = [level.name for level in cluster.levels]
    if names != [level.name for level in then.levels]:
        have = ", ".join(level.name for level in then.levels)
        summary = f"the levels of the cluster are {', '.join(names)}, and its profile, `resolved`, has {have}"
        hint = "make a cluster with other levels of a profile: shardplan.cluster.mesh.make_cluster"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    device = _changed(DEVICE, resolved["device"], _values(then.device), _values(cluster.device))
    gemm = _changed(GEMM, device["gemm"], _values(then.device.gemm), _values(cluster.device.gemm))
    resolved["name"], resolved["device"] = cluster.name, {**device, "gemm": gemm}
    resolved["levels"] = [
        _changed(LEVEL, plain, _of_level(before), _of_level(now))
        for plain, before, now in zip(resolved["levels"], then.levels, cluster.levels, strict=True)
    ]
    resolved["overlap"] = _changed(OVERLAP, resolved["overlap"], _values(then.overlap), _values(cluster.overlap))
    coalesce = _changed(COALESCE, resolved.get("coalesce", {}), _values(then.coalesce), _values(cluster.coalesce))
    resolved |= {"coalesce": coalesce} if coalesce else {}
    resolved["provenance"] = cluster.provenance
    if cluster.curves != then.curves:
        resolved["curves"] = [_curve(curve) for curve in cluster.curves]
    axes = zip(cluster.mesh.axes, cluster.axis_levels, strict=True)
    resolved["mesh"] = {"axes": [{"name": axis.name, "size": axis.size, "level": names[at]} for axis, at in axes]}
    if resolved == cluster.resolved:
        return cluster
    check_resolved(resolved)
    return replace(cluster, resolved=resolved)


def _values(found: Any) -> Plain:
    return {name: getattr(found, name) for name in found.__slots__}


def _of_level(level: Level) -> Plain:
    """The values of a level; efficiencies by ranks and others are one key of a profile."""
    return {**_values(level), "eta": {**level.eta, **level.eta_by_ranks}}


def _changed(keys: Keys, plain: Mapping[str, Any], then: Plain, now: Plain) -> Plain:
    """A section with the values that are others now; what a profile says by leaving it out is left out."""
    found = dict(plain)
    for key in keys.keys:
        name = key.attribute if key.attribute != "" else key.key
        if name is None or isinstance(key.kind, Keys) or then[name] == now[name]:
            continue
        value = _plain(key.kind, now[name])
        if key.default is OMITTED and (value is None or value == {}):
            del found[key.key]
        else:
            found[key.key] = value
    return found


def _plain(kind: Field, value: Any) -> Any:
    """A value in the units of its key; the inverse of `build._in_si`."""
    if isinstance(kind, Number) and value is None:
        return next(iter(kind.words), None)
    if isinstance(kind, Number):
        return value if kind.dimension.si(1.0) == 1.0 else value / kind.dimension.si(1.0)
    if isinstance(kind, Table) and not isinstance(value, Mapping):
        return value if kind.scalar is None else _plain(kind.scalar, value)
    if isinstance(kind, Table):
        return {str(key): _plain(kind.values, entry) for key, entry in value.items()}
    return value


def _curve(curve: Curve) -> Plain:
    return {
        "collective": curve.collective,
        "group": {"nodes": curve.nodes, "per_node": curve.per_node},
        "points": [[payload, seconds * 1e6] for payload, seconds in curve.points],
    }
