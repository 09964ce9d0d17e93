"""From a resolved profile (plain data) to value types in SI units; also used for the profile inside of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardplan.cluster.keys import COALESCE, DEVICE, GEMM, LEVEL, OVERLAP, TRAINING, Keys, Plain
from shardplan.cluster.types import Coalesce, Curve, Device, GemmEfficiency, Level, Overlap, Training
from shardplan.cluster.yaml import Field, Number, Table
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
    training: Training = field(default_factory=Training)
    spread: Mapping[str, float] = field(default_factory=dict)


def profile_digest(profile: Profile) -> str:
    """`sha256:` and 64 hex digits of all that a profile says, its provenance too, which may have prices."""
    text = json.dumps(profile.resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def profile_from_resolved(resolved: Mapping[str, Any], warnings: tuple[Diagnostic, ...] = ()) -> Profile:
    """The profile described by `resolved` (for instance the copy inside of a plan)."""
    levels = tuple(_build_level(level) for level in resolved["levels"])
    gemm = GemmEfficiency(**built(GEMM, resolved["device"]["gemm"]))
    depth = {level.name: index for index, level in enumerate(levels)}
    return Profile(
        name=resolved["name"],
        device=Device(**built(DEVICE, resolved["device"]) | {"gemm": gemm}),
        levels=levels,
        axes=tuple(ProfileAxis(axis["name"], axis["size"], depth[axis["level"]]) for axis in resolved["mesh"]["axes"]),
        overlap=Overlap(**built(OVERLAP, resolved["overlap"])),
        provenance=resolved["provenance"],
        resolved=resolved,
        curves=tuple(_build_curve(curve) for curve in resolved["curves"]),
        warnings=warnings,
        coalesce=Coalesce(**built(COALESCE, resolved.get("coalesce", {}))),
        training=Training(**built(TRAINING, resolved.get("training", {}))),
        spread=resolved.get("spread", {}),
    )


def _build_level(resolved: Plain) -> Level:
    """A level; efficiencies by ranks are stored apart from those that are one number."""
    found = built(LEVEL, resolved)
    eta = found.pop("eta")
    by_ranks = {kind: value for kind, value in eta.items() if isinstance(value, dict)}
    plain = {kind: value for kind, value in eta.items() if kind not in by_ranks}
    return Level(name=resolved["name"], eta=plain, eta_by_ranks=by_ranks, **found)


def _build_curve(resolved: Plain) -> Curve:
    points = tuple((float(payload), micros / 1e6) for payload, micros in resolved["points"])
    return Curve(resolved["collective"], resolved["group"]["nodes"], resolved["group"]["per_node"], points)


def built(keys: Keys, resolved: Mapping[str, Any]) -> Plain:
    """Attributes of the value type, in SI units; for a key that is missing (in a plan from before the key existed) the
    type has its own default."""
    return {
        key.attribute or key.key: _in_si(key.kind, resolved[key.key])
        for key in keys.keys
        if key.attribute is not None and key.key in resolved
    }


def _in_si(kind: Field | Keys, value: Any) -> Any:
    """The value in SI units; a word in place of a number is None; numbers of ranks are integers in ascending order."""
    if isinstance(kind, Number):
        return None if value in kind.words else kind.dimension.si(value)
    if isinstance(kind, Table) and not isinstance(value, Mapping):
        return value if kind.scalar is None else _in_si(kind.scalar, value)
    if isinstance(kind, Table) and kind.ranks:
        return {count: _in_si(kind.values, value[str(count)]) for count in sorted(int(key) for key in value)}
    if isinstance(kind, Table):
        return {key: _in_si(kind.values, entry) for key, entry in value.items()}
    return value
