"""Field-by-field differences between two documents of plan files, each with its path and the expected value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

_IDENTITY = ("block", "sender", "receiver", "name", "tensor", "reader", "phase", "regather")
"""Keys that together say what a row is about."""
_SHOWN = 60
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """`path`: of the field, such as `operators[3].split.gpu`; `about`: the name in its row, if any. `found`,
    `expected`: JSON text, `""` if missing."""

    path: str
    found: str
    expected: str
    about: str = ""

    def __str__(self) -> str:
        """`operators[3].compute_ns ('fc1') is 5; it should be 7`."""
        where = f"{self.path} ('{self.about}')" if self.about else self.path
        if not self.expected:
            return f"{where} is {_cut(self.found)}; it should not be there"
        if not self.found:
            return f"{where} is missing; it should be {_cut(self.expected)}"
        found, expected = _apart(self.found, self.expected)
        return f"{where} is {found}; it should be {expected}"


def differences(found: Any, expected: Any, path: str = "", about: str = "") -> Iterator[Difference]:
    """Every field in which `found` differs from `expected`, both plain JSON data, in the order of the file."""
    if found == expected and not isinstance(found, int | float):
        return
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in dict.fromkeys((*found, *expected)):
            entries = found.get(key, _ABSENT), expected.get(key, _ABSENT)
            yield from differences(*entries, f"{path}.{key}" if path else str(key), about)
    elif isinstance(found, list) and isinstance(expected, list):
        yield from _of_rows(found, expected, path, about)
    elif type(found) is not type(expected) or found != expected:
        yield Difference(path, _text(found), _text(expected), about)


def _of_rows(found: Sequence[Any], expected: Sequence[Any], path: str, about: str) -> Iterator[Difference]:
    """Compares rows by position if they have the same names in the same order, or if one name differs; otherwise
    reports reordered, missing and extra rows."""
    mine, theirs = [_identity(row) for row in found], [_identity(row) for row in expected]
    if mine == theirs or not all((*mine, *theirs)):
        pairs = zip_longest(found, expected, fillvalue=_ABSENT)
        for number, (row, wanted) in enumerate(pairs):
            yield from differences(row, wanted, f"{path}[{number}]", _name(wanted) or about)
        return
    lost, added = Counter(theirs) - Counter(mine), Counter(mine) - Counter(theirs)
    if not lost and not added:
        number = next(number for number, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other)
        yield Difference(f"{path}[{number}]", *_named_rows(found[number], expected[number]))
    elif len(found) == len(expected) and lost.total() == 1:
        for number, (row, wanted) in enumerate(zip(found, expected, strict=True)):
            if mine[number] != theirs[number]:
                yield from differences(row, wanted, f"{path}[{number}]", _name(wanted) or about)
    else:
        yield from _unpaired(found, mine, added, path, is_extra=True)
        yield from _unpaired(expected, theirs, lost, path, is_extra=False)


def _unpaired(
    rows: Sequence[Any], identities: Sequence[tuple[Any, ...]], which: Counter[tuple[Any, ...]], path: str, *,
    is_extra: bool,
) -> Iterator[Difference]:  # fmt: skip
    """The last rows of each identity, as many as `which` counts."""
    left = Counter(which)
    for number in reversed(range(len(rows))):
        if left[identities[number]] > 0:
            left[identities[number]] -= 1
            text = _text(_about(rows[number]))
            yield Difference(f"{path}[{number}]", text if is_extra else "", "" if is_extra else text)


def _named_rows(row: Any, wanted: Any) -> tuple[str, str]:
    return _text(_about(row)), _text(_about(wanted))


def _identity(row: Any) -> tuple[Any, ...]:
    if not isinstance(row, Mapping):
        return ()
    found = tuple((key, _text(row[key])) for key in _IDENTITY if key in row)
    return found if any(key in row for key in ("name", "tensor")) else ()


def _about(row: Any) -> object:
    return {key: row[key] for key in _IDENTITY if key in row}


def _name(row: Any) -> str:
    name = row.get("name", row.get("tensor", "")) if isinstance(row, Mapping) else ""
    return name if isinstance(name, str) else ""


def _text(value: Any) -> str:
    return "" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def _apart(found: str, expected: str) -> tuple[str, str]:
    """Both texts cut to the part in which they differ."""
    if max(len(found), len(expected)) <= _SHOWN:
        return found, expected
    same = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), 0)
    start = max(0, same - _SHOWN // 2)
    head = "…" if start else ""
    return head + _cut(found[start:]), head + _cut(expected[start:])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
