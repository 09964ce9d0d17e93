"""Single-field edits of a plan's document: of every kind of field there is, every way to change it, a few of each."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PLACE = re.compile(r"\[\d+\]")
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Edit:
    """`field`: the kind of field, such as `operators[].split.gpu`; `way`: what was done to it."""

    field: str
    way: str
    path: Path
    document: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.way} {_text(self.path)}"


def edits(document: Mapping[str, Any], each: int = 2, most: int | None = None) -> Iterator[Edit]:
    """Up to `each` edits of every way of every kind of field; `most`: of all ways of one kind, other ones for other
    kinds."""
    fields: dict[str, list[Path]] = {}
    for path in _paths(document, ()):
        fields.setdefault(_PLACE.sub("[]", _text(path)), []).append(path)
    for number, (field, paths) in enumerate(fields.items()):
        others = [_at(document, path) for path in paths]
        found: dict[str, list[Edit]] = {}
        for path in _spread(paths, each):
            ways = [(way, _with(document, path, value)) for way, value in _changed(_at(document, path), others)]
            if isinstance(path[-1], str):
                ways.append(("deleted", _without(document, path)))
            for way, changed in ways:
                found.setdefault(way, []).append(Edit(field, way, path, changed))
        start = number % max(1, len(found))
        in_turn = [edit for _, several in (*found.items(), *found.items())[start:] for edit in several[:each]]
        yield from in_turn[: min(sum(len(several[:each]) for several in found.values()), most or len(in_turn))]


def _spread(paths: list[Path], count: int) -> list[Path]:
    """The first, the last and some between: up to four times as many, as not all take every change."""
    wanted = min(len(paths), 4 * count)
    return [paths[number * (len(paths) - 1) // max(1, wanted - 1)] for number in range(wanted)]


def _paths(value: Any, path: Path) -> Iterator[Path]:
    if path:
        yield path
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _paths(entry, (*path, key))


def _changed(value: Any, others: list[Any]) -> Iterator[tuple[str, Any]]:
    """What a value may be changed to; `others`: values of the same field in other rows."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int):
        yield from (("one more", value + 1), ("doubled", 2 * value or 2), ("zero", 0 if value else 1))
    elif isinstance(value, float):
        yield from (("a little more", value * 1.001 or 0.001), ("zero", 0.0 if value else 1.0))
    elif isinstance(value, str):
        yield "other text", f"{value}x"
        if other := [one for one in others if isinstance(one, str) and one != value]:
            yield "exchanged", other[len(other) // 2]
    elif value is None:
        yield "filled", "R"
    elif isinstance(value, list):
        yield from _lists(value)
    elif isinstance(value, Mapping) and value:
        yield "emptied", {}


def _lists(value: list[Any]) -> Iterator[tuple[str, Any]]:
    if value:
        yield "emptied", []
        yield "row dropped", value[:-1]
        yield "row repeated", [*value, copy.deepcopy(value[-1])]
        yield "row inserted", [copy.deepcopy(value[-1]), *value]
    if len(value) > 1:
        yield "first dropped", value[1:]
    if len(value) > 1 and value[0] != value[1]:
        yield "rows exchanged", [value[1], value[0], *value[2:]]


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _with(document: Mapping[str, Any], path: Path, value: Any) -> Mapping[str, Any]:
    """The document with one value in place of another; what is not on the way is shared."""
    head, *rest = path
    changed: Any = list(document) if isinstance(document, list) else dict(document)
    changed[head] = _with(changed[head], tuple(rest), value) if rest else value
    return changed


def _without(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    place = _at(document, path[:-1])
    rest = {key: value for key, value in place.items() if key != path[-1]}
    return _with(document, path[:-1], rest) if len(path) > 1 else rest


def _text(path: Path) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
