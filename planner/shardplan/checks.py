"""Checks of single values of a request: each converts a value, given as text or as an object, to its canonical form.

A check is called with the name that messages use (`memory_limit`, `--memory-limit`) and the value, and raises
`ShardplanError` for a value that it does not allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shardplan.cluster.quantity import SIZE, parse_quantity
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error

_MOST_DIGITS = 18
_MOST_COUNT = 10**_MOST_DIGITS - 1
_FEWEST_BARE_BYTES = 1 << 16
"""A smaller number without a unit is probably not meant in bytes."""


_READ = {"model": "a file, a description or a model", "cluster": "a profile's name or a file"}
"""What may be given as an object, with the description of what is expected."""


class Check(Protocol):
    """A check of one value."""

    def __call__(self, name: str, value: Any) -> Any:
        """`value` in its canonical form. Raises `ShardplanError`."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of `words`, or a synonym of one; the empty word, if it is one of them, is not offered in messages."""

    words: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    """Synonym -> the one of `words` that it means."""

    def __call__(self, name: str, value: Any) -> str:
        if value in self.words:
            return str(value)
        if isinstance(value, str) and value in self.others:
            return self.others[value]
        known = [*filter(None, self.words), *self.others]
        hint = did_you_mean(str(value), known)
        raise ShardplanError(error("bad-argument", f"{name} '{value}' is none of {', '.join(known)}", hint=hint))


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def __call__(self, name: str, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        raise _refused(name, value, "True or False")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of at least `least` (None: any)."""

    least: int | None

    def __call__(self, name: str, value: Any) -> int:
        number = _number(value)
        if number is None or number != int(number) or (self.least is not None and number < self.least):
            bound = "" if self.least is None else f" of at least {self.least}"
            raise _refused(name, value, f"a whole number{bound}")
        return int(number)


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` (or above it) to `most`; None where it is `optional`."""

    least: float
    most: float | None = None
    what: str = "a number"
    least_allowed: bool = True
    optional: bool = False

    def __call__(self, name: str, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        number = _number(value)
        above = number is not None and (number > self.least or (self.least_allowed and number == self.least))
        if number is None or not above or (self.most is not None and number > self.most):
            low = f"{self.least:g}"
            span = f"above {low}" if self.most is None else f"between {low} and {self.most:g}"
            raise _refused(name, value, f"{self.what} {span}")
        return float(number)


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is interpreted later. `what`: `text`, which may be None; `word`; `model` and `cluster`, which may also
    be objects read earlier."""

    what: str

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if self.what == "text" and value is None:
            return None
        if self.what in _READ and isinstance(value, Path):
            return str(value)
        if self.what in _READ and type(value).__name__ in ("Model", "Cluster"):
            return value
        raise _refused(name, value, _READ.get(self.what, "text"))


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan, the name of its file, or None."""

    def __call__(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, str) or type(value).__name__ == "Plan":
            return value
        if isinstance(value, Path):
            return str(value)
        raise _refused(name, value, "a plan or its file")


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes as a number, or as text such as `40 GiB`; None."""

    def __call__(self, name: str, value: Any) -> int | None:
        if value is None:
            return None
        limit: float | None
        if isinstance(value, str):
            try:
                limit = parse_quantity(value, SIZE)
            except ValueError as problem:
                raise ShardplanError(error("bad-quantity", f"{name}: {problem}")) from None
            bare = value.strip()
            if bare[-1:].isdigit() and 0 < limit < _FEWEST_BARE_BYTES:
                hint = f"write {bare}GiB, or {bare}GB, or {bare}B"
                raise ShardplanError(error("bad-quantity", f"{name} {bare} has no unit", hint=hint))
        else:
            limit = _number(value)
        if limit is None:
            raise _refused(name, value, "a size in bytes, or such as '40 GiB',")
        if int(limit) <= 0:
            raise ShardplanError(error("bad-quantity", f"{name} {value!r} leaves no memory"))
        return int(limit)


@dataclass(frozen=True, slots=True)
class Cache:
    """Tokens: a number, or on the command line `tokens=8192`."""

    def __call__(self, name: str, value: Any) -> int:
        if not isinstance(value, str):
            return Whole(0)(name, value)
        word, equals, number = (part.strip() for part in value.partition("="))
        if word == "tokens" and equals and _is_count(number):
            return int(number)
        hint = "write how many tokens of all sequences together, such as --kv-cache tokens=65536"
        raise ShardplanError(error("bad-cache", f"{name} '{value}' cannot be read", hint=hint))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Positive numbers by name: a mapping, or texts such as `batch=8`. A name may be an expression (`s43*s53=4096`).

    `what`: what the numbers are; `example`: a text for the hint.
    """

    what: str
    example: str

    def __call__(self, name: str, value: Any) -> dict[str, int]:
        if value is None or isinstance(value, str | list | tuple):
            return self._of_texts(name, [value] if isinstance(value, str) else value or ())
        if not isinstance(value, Mapping):
            raise _refused(name, value, f"a mapping such as {{'{self.example.replace('=', chr(39) + ': ')}}}")
        faults = [
            error("bad-argument", f"{name}: '{key}' is {size!r}; a whole number of at least 1 is expected")
            for key, size in value.items()
            if (number := _number(size)) is None or number != int(number) or number < 1 or isinstance(size, str)
        ]
        if faults:
            raise ShardplanError(*faults)
        return {str(key): int(size) for key, size in value.items()}

    def _of_texts(self, name: str, texts: Iterable[str]) -> dict[str, int]:
        code = "bad-dim" if self.what == "size" else "bad-trip"
        described = "a name and a positive size" if self.what == "size" else "the name of a loop and a positive number"
        found: dict[str, int] = {}
        faults: list[Diagnostic] = []
        for text in texts:
            key, equals, number = (part.strip() for part in str(text).rpartition("="))
            if equals and key and _is_whole(number) and not _is_count(number):
                kind = "size" if self.what == "size" else "trip count"
                faults.append(error(code, f"{name} '{text}': a {kind} is a whole number from 1 to {_MOST_COUNT:,}"))
            elif not (equals and key and _is_count(number)):
                hint = f"write {described}, such as {name} {self.example}"
                faults.append(error(code, f"{name} '{text}' is not NAME=N", hint=hint))
            elif found.setdefault(key, int(number)) != int(number):
                faults.append(error(code, f"{name} gives '{key}' two {self.what}s, {found[key]} and {number}"))
        if faults:
            raise ShardplanError(*faults)
        return found


@dataclass(frozen=True, slots=True)
class StageCount:
    """A positive number of stages, `auto`, a plan or its file (.json), stages by hand, or None."""

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(value, Path):
            value = str(value)
        if value is None or type(value).__name__ in ("Plan", "ManualStages"):
            return value
        if isinstance(value, str) and (value == "auto" or value.endswith(".json")):
            return value
        count = int(value) if isinstance(value, str) and _is_count(value) else value
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
        hint = "a positive number, auto, or the file of a plan (.json)"
        raise ShardplanError(error("bad-stages", f"{name} '{value}' is no number of stages", hint=hint))


@dataclass(frozen=True, slots=True)
class Several:
    """Any number of values, or of `texts`; a single one may be given without a list."""

    texts: bool = False

    def __call__(self, name: str, value: Any) -> tuple[Any, ...]:
        if value is None or isinstance(value, int | float):
            raise _refused(name, value, "a list")
        alone = isinstance(value, str | Path | Mapping) or not isinstance(value, Iterable)
        found = (value,) if alone else tuple(value)
        if self.texts and (other := [one for one in found if not isinstance(one, str)]):
            raise _refused(name, other[0], "text")
        return found


def _number(value: Any) -> float | int | None:
    """The finite number that is given or written; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number: float | int = (int(value) if _is_whole(value) else float(value)) if isinstance(value, str) else value
        return number if math.isfinite(number) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0


def _refused(name: str, value: Any, expected: str) -> ShardplanError:
    return ShardplanError(error("bad-argument", f"{name} is {value!r}; {expected} is expected"))
