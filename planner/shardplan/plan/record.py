"""One JSON object read with checks: every key is asked for by name and kind, and a wrong one says what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
_REQUIRED = object()


class RecordError(Exception):
    """A key is missing or of the wrong kind; the text says which, without saying where the object stands."""


class Record:
    """A JSON object; keys nobody asks for are ignored (a later minor version may have added them)."""

    __slots__ = ("_data",)

    def __init__(self, data: object) -> None:
        if not isinstance(data, Mapping):
            raise RecordError(f"expected an object, found {_shown(data)}")
        self._data = data

    def has(self, key: str) -> bool:
        return key in self._data

    def text(self, key: str, default: object = _REQUIRED) -> str:
        return self._get(key, str, "a text", default)

    def integer(self, key: str, default: object = _REQUIRED) -> int:
        return self._get(key, int, "an integer", default)

    def flag(self, key: str, default: object = _REQUIRED) -> bool:
        return self._get(key, bool, "true or false", default)

    def number(self, key: str) -> float:
        value = self._data.get(key, _REQUIRED)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number", value)
        return value

    def nanoseconds(self, key: str) -> int:
        """A time that the file states in microseconds with three decimals."""
        return round(self.number(key) * 1000)

    def one_of(self, key: str, allowed: Mapping[str, T], default: object = _REQUIRED) -> T:
        value = self._data.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self._wrong(key, f"one of {', '.join(allowed)}", value)
        return allowed[value]

    def record(self, key: str) -> Record:
        return Record(self.mapping(key))

    def mapping(self, key: str) -> Mapping[str, object]:
        return self._get(key, dict, "an object", _REQUIRED)

    def items(self, key: str, convert: Callable[[object], T]) -> tuple[T, ...]:
        """Every entry of the list under `key`, converted; `convert` raises `RecordError` for a wrong one."""
        values: list[object] = self._get(key, list, "a list", _REQUIRED)
        return tuple(convert(value) for value in values)

    def integers(self, key: str) -> tuple[int, ...]:
        return self.items(key, as_integer)

    def texts(self, key: str) -> tuple[str, ...]:
        return self.items(key, as_text)

    def _get(self, key: str, kind: type[T], expected: str, default: object) -> T:
        value = self._data.get(key, default)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise self._wrong(key, expected, value)

    def _wrong(self, key: str, expected: str, value: object) -> RecordError:
        if value is _REQUIRED:
            return RecordError(f"'{key}' is missing")
        return RecordError(f"'{key}' is {_shown(value)}, expected {expected}")


def as_integer(value: object) -> int:
    """`value`, or `RecordError` when it is no integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecordError(f"expected an integer, found {_shown(value)}")
    return value


def as_text(value: object) -> str:
    """`value`, or `RecordError` when it is no text."""
    if not isinstance(value, str):
        raise RecordError(f"expected a text, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
