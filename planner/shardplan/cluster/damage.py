"""Validation of a resolved profile that was read from a file, such as the one inside of a plan.

`shardplan.cluster.build` assumes a valid profile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from shardplan.cluster.keys import AXIS, CURVE, LEVEL, OMITTED, PROFILE, Key, Keys
from shardplan.cluster.resolve import clashing_axes
from shardplan.cluster.yaml import NAME, TITLE, Field, Flag, Number, Section, Sequence, Table, Text, within
from shardplan.errors import ShardplanError, error
from shardplan.units import counted, whole_number


def check_resolved(resolved: object) -> None:
    """Raises `ShardplanError` (`damaged-profile`) with every key that is missing or has an impossible value."""
    faults = list(_faults(resolved))
    if faults:
        raise ShardplanError(
            *(error("damaged-profile", f"cluster profile: {text}", hint="solve again") for text in faults)
        )


def _faults(resolved: object) -> Iterator[str]:
    if not isinstance(resolved, Mapping):
        yield "it is no object"
        return
    if not _fits(Text(form=TITLE), resolved.get("name")):
        yield f"'name' is no {TITLE.said}"
    for key in PROFILE.keys:
        if isinstance(key.kind, Keys) and (key.key in resolved or not key.later):
            yield from _section(key.kind, resolved.get(key.key), key.key)
    yield from _rows(AXIS, _at(resolved, "mesh", "axes"), "mesh.axes", least=1)
    yield from _rows(LEVEL, resolved.get("levels"), "levels", least=1)
    yield from _rows(CURVE, resolved.get("curves"), "curves")
    yield from _nesting(resolved)


def _nesting(resolved: Mapping[str, object]) -> Iterator[str]:
    """Checks that levels have names, axes lie on them, and units of a level hold whole units of the one inside."""
    levels, axes = resolved.get("levels"), _at(resolved, "mesh", "axes")
    if isinstance(levels, list) and isinstance(axes, list):
        known = [_at(level, "name") for level in levels]
        if not all(_fits(Text(form=NAME), name) for name in known) or len({str(name) for name in known}) < len(known):
            yield f"levels: each needs a name of its own, of {NAME.said}"
        for axis in axes:
            if _at(axis, "level") not in known:
                yield f"mesh.axes: there is no level {_at(axis, 'level')!r}"
        if clash := clashing_axes([(str(_at(axis, "name")), str(_at(axis, "level"))) for axis in axes]):
            yield f"mesh.axes: {clash}"
        for inner, outer in itertools.pairwise(_at(level, "devices") for level in levels):
            if isinstance(inner, int) and isinstance(outer, int) and outer and (not inner or outer % inner):
                yield f"levels: units of {counted(inner, 'device')} do not fit into units of {outer}"


def _at(value: object, *path: str) -> object:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _rows(keys: Keys, rows: object, path: str, least: int = 0) -> Iterator[str]:
    if not isinstance(rows, list) or len(rows) < least:
        yield f"'{path}' is no list of at least {least}"
        return
    for number, row in enumerate(rows):
        yield from _section(keys, row, f"{path}[{number}]")


def _section(keys: Keys, found: object, path: str) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield f"'{path}' is no object"
        return
    for key in keys.keys:
        inner = f"{path}.{key.key}"
        if key.key not in found:
            if not key.later and key.default is not OMITTED:
                yield f"'{inner}' is missing"
        elif isinstance(key.kind, Keys):
            yield from _section(key.kind, found[key.key], inner)
        elif not _is_default(key, found[key.key]) and not _fits(key.kind, found[key.key]):
            yield f"'{inner}' is {_shown(found[key.key])}"


def _is_default(key: Key, value: object) -> bool:
    """Whether no value was given: 0 means none if a number must be above it, and any number of devices."""
    if key.key == "devices":
        return type(value) is int and value == 0
    return value is not None and type(value) is type(key.default) and bool(value == key.default)


def _fits(kind: Field, value: object) -> bool:
    """Whether a resolved value is allowed by `kind`."""
    match kind:
        case Number():
            fits = value in kind.words if isinstance(value, str) else _in_range(kind, value)
        case Text():
            fits = isinstance(value, str) and kind.form.fits(value) and (not kind.choices or value in kind.choices)
        case Flag():
            fits = isinstance(value, bool)
        case Table():
            fits = _fits_table(kind, value)
        case Sequence():
            fits = isinstance(value, list) and _fits_each(kind, value)
        case Section():
            fits = isinstance(value, Mapping)
    return fits


def _fits_table(kind: Table, value: object) -> bool:
    if not isinstance(value, Mapping):
        return kind.scalar is not None and _fits(kind.scalar, value)
    if kind.ranks and not (value and all(whole_number(key) for key in value)):
        return False
    return (kind.ranks or set(value) <= set(kind.keys)) and all(_fits(kind.values, entry) for entry in value.values())


def _fits_each(kind: Sequence, values: list[object]) -> bool:
    kinds = kind.items or (kind.values,) * len(values)
    return len(kinds) == len(values) and all(
        of is not None and _fits(of, entry) for of, entry in zip(kinds, values, strict=True)
    )


def _in_range(kind: Number, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    whole = not kind.integer or isinstance(value, int)
    return whole and within(kind, value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
