"""Kinds of values in a plan file: how each is written, read back with checks, and described in JSON Schema.

`read` takes any JSON value and raises `UnexpectedError` with what it expected, or `RecordError` with a whole sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import from_text, to_text

Schema = dict[str, Any]
_DEEPEST = 60
"""Levels of nesting in data that the file only carries along."""


class RecordError(Exception):
    """An entry is missing or wrong; the text says which, but not where its object stands. `row`: its row in a list."""

    row: int | None = None


class UnexpectedError(Exception):
    """A value is not of its kind; the text says what was expected instead: `an integer`."""


@dataclass
class Context:
    """The mesh on which layouts and axes are written. `whole`: writes or reads the plan of a stage; `stages`: the
    contexts of the stages' plans, when reading of those read so far; `minor`: the highest minor format version that
    anything written so far needs."""

    mesh: Mesh
    whole: Callable[[Any], Any]
    stages: list[Context] = field(default_factory=list)
    minor: int = 0
    names: tuple[str, ...] = field(init=False)
    text: Callable[[Layout], str] = field(init=False)
    layout: Callable[[str], Layout] = field(init=False)

    def __post_init__(self) -> None:
        self.names = self.mesh.names
        self.text = lru_cache(maxsize=None)(lambda layout: to_text(layout, self.mesh))
        self.layout = lru_cache(maxsize=None)(lambda text: _layout(text, self.mesh))


def _layout(text: str, mesh: Mesh) -> Layout:
    try:
        return from_text(text, mesh)
    except ShardplanError as problem:
        raise RecordError(problem.diagnostics[0].summary) from None


class Kind:
    """Base class of all kinds: the value is written as it is. `word`: its name in the tables of docs/plan-file.md."""

    @property
    def word(self) -> str:
        raise NotImplementedError

    def write(self, value: Any, on: Context) -> object:
        """`value` as JSON-ready data."""
        return value

    def say(self, value: Any, on: Context) -> str:
        """`value` as `diff` shows it."""
        return str(self.write(value, on))

    def read(self, value: object, on: Context) -> Any:
        """The inverse of `write`. Raises `UnexpectedError`, `RecordError`."""
        raise NotImplementedError

    def all_plain(self, values: Sequence[object]) -> bool:
        """Whether all of `values` are of this kind and need no conversion; False if that is not known quickly."""
        return False

    def schema(self) -> Schema:
        """The kind in JSON Schema."""
        raise NotImplementedError


@dataclass(frozen=True)
class Text(Kind):
    """Text that matches the regular expression `pattern`."""

    pattern: str = ""

    @property
    def word(self) -> str:
        return "text"

    def read(self, value: object, on: Context) -> str:
        if not isinstance(value, str):
            raise UnexpectedError("a text")
        if self.pattern and not re.search(self.pattern, value):
            raise UnexpectedError(f"a text like {self.pattern}")
        return value

    def all_plain(self, values: Sequence[object]) -> bool:
        return not self.pattern and all(type(value) is str for value in values)

    def schema(self) -> Schema:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {})}


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number of at least `minimum`, with no fraction written."""

    minimum: int = 0

    @property
    def word(self) -> str:
        return "integer"

    def read(self, value: object, on: Context) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnexpectedError("an integer")
        if value < self.minimum:
            raise UnexpectedError(f"an integer of at least {self.minimum}")
        return value

    def all_plain(self, values: Sequence[object]) -> bool:
        return all(type(value) is int and value >= self.minimum for value in values)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.minimum}


@dataclass(frozen=True)
class Number(Kind):
    """A finite number in a range."""

    minimum: float | None = 0
    maximum: float | None = None

    @property
    def word(self) -> str:
        return "number"

    def read(self, value: object, on: Context) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnexpectedError("a number")
        if not math.isfinite(value):
            raise UnexpectedError("a finite number")
        if self.minimum is not None and value < self.minimum:
            raise UnexpectedError(f"a number of at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise UnexpectedError(f"a number of at most {self.maximum}")
        return value

    def schema(self) -> Schema:
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "number", **{key: limit for key, limit in limits.items() if limit is not None}}


@dataclass(frozen=True)
class Microseconds(Number):
    """Integer nanoseconds, written as microseconds with three decimals."""

    @property
    def word(self) -> str:
        return "µs"

    def write(self, value: int, on: Context) -> float:
        return value / 1000

    def read(self, value: object, on: Context) -> int:
        return round(Number.read(self, value, on) * 1000)


@dataclass(frozen=True)
class Flag(Kind):
    @property
    def word(self) -> str:
        return "flag"

    def read(self, value: object, on: Context) -> bool:
        if not isinstance(value, bool):
            raise UnexpectedError("true or false")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def word(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)

    def read(self, value: object, on: Context) -> str:
        if value not in self.words:
            raise UnexpectedError(f"one of {', '.join(self.words)}")
        return str(value)

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Optional(Kind):
    """A value of a kind, or null."""

    kind: Kind

    @property
    def word(self) -> str:
        return f"{self.kind.word} or null"

    def write(self, value: Any, on: Context) -> object:
        return None if value is None else self.kind.write(value, on)

    def read(self, value: object, on: Context) -> Any:
        return None if value is None else self.kind.read(value, on)

    def schema(self) -> Schema:
        return {"anyOf": [self.kind.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Either(Kind):
    """An integer of at least 1, or one of a few words."""

    words: tuple[str, ...]

    @property
    def word(self) -> str:
        return f"integer or {Choice(self.words).word}"

    def read(self, value: object, on: Context) -> int | str:
        return Choice(self.words).read(value, on) if isinstance(value, str) else Integer(1).read(value, on)

    def schema(self) -> Schema:
        return {"anyOf": [Integer(1).schema(), Choice(self.words).schema()]}


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of values of one kind, read as a tuple; at least `least`, exactly `length` if that is given."""

    kind: Kind
    least: int = 0
    length: int | None = None

    @property
    def word(self) -> str:
        return f"list of {self.kind.word}"

    def write(self, value: Iterable[Any], on: Context) -> list[object]:
        if type(self.kind).write is Kind.write:
            return list(value)
        return [self.kind.write(entry, on) for entry in value]

    def read(self, value: object, on: Context) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise UnexpectedError("a list")
        if len(value) < self.least or self.length not in (None, len(value)):
            raise UnexpectedError(f"a list of {self.length or f'at least {self.least}'}")
        if self.kind.all_plain(value):
            return tuple(value)
        return tuple([self._entry(entry, number, on) for number, entry in enumerate(value)])

    def _entry(self, entry: object, number: int, on: Context) -> Any:
        try:
            return self.kind.read(entry, on)
        except UnexpectedError as expected:
            fault = RecordError(f"expected {expected}, found {shown(entry)}")
        except (RecordError, ValueError) as problem:
            fault = RecordError(str(problem))
        fault.row = number
        raise fault

    def schema(self) -> Schema:
        least, most = self.length or self.least, self.length
        limits = {"minItems": least or None, "maxItems": most}
        found = {key: limit for key, limit in limits.items() if limit is not None}
        return {"type": "array", "items": self.kind.schema(), **found}


@dataclass(frozen=True)
class MapOf(Kind):
    """An object whose keys are names in the model, with values of one kind."""

    kind: Kind

    @property
    def word(self) -> str:
        return f"object of {self.kind.word}"

    def write(self, value: Mapping[str, Any], on: Context) -> dict[str, object]:
        return {key: self.kind.write(entry, on) for key, entry in value.items()}

    def read(self, value: object, on: Context) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise UnexpectedError("an object")
        entries = ListOf(self.kind).read(list(value.values()), on)
        return dict(zip(value, entries, strict=True))

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self.kind.schema()}


@dataclass(frozen=True)
class Carried(Kind):
    """Plain data that is passed through unchanged."""

    @property
    def word(self) -> str:
        return "object"

    def read(self, value: object, on: Context) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise UnexpectedError("an object")
        if _deeper(value, _DEEPEST):
            raise RecordError("it is nested too deeply")
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


def _deeper(value: object, levels: int) -> bool:
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(entry, levels - 1) for entry in entries)


def shown(value: object) -> str:
    """`value` as an error names it, cut short."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
