"""Records of the plan file: tables of fields, and the two functions that write and read any record.

A record can be read back from what was written. Unknown keys are ignored: a later minor version may have added them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardplan.plan.format.kinds import Carried, Context, Kind, ListOf, RecordError, Schema, UnexpectedError, shown

REQUIRED: Final = object()
"""Default of a field that is always there."""
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record.

    `attribute`: of the value that is written and made (`""`: the key); `get`: a function for the value to write, if it
    is not simply that attribute. `default`: the field may be absent, and is not written if the value is the default
    (`always`: it is). `like`: the default is the value of that attribute. `derived`: follows from the other fields;
    written for readers of the file, and compared with them on reading. `check`: (value, attributes read so far,
    context) -> what is wrong, or `""`. `late`: read after the others. `stage`: the attribute with the number of the
    stage on whose mesh it is. `since`: minor format version. `diff`: how `shardplan diff` words it (`{}` is the value);
    `""`: not compared.
    """

    key: str
    kind: Kind
    about: str = ""
    attribute: str = ""
    get: Callable[[Any], Any] | None = None
    default: object = REQUIRED
    like: str = ""
    always: bool = False
    derived: bool = False
    check: Callable[[Any, Mapping[str, Any], Context], str] | None = None
    late: bool = False
    stage: str = ""
    since: int = 0
    diff: str = ""

    name: str = field(init=False)
    required: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.attribute or self.key)
        object.__setattr__(self, "required", self.default is REQUIRED and not self.like)

    def of(self, value: Any) -> Any:
        """The value of this field in `value`."""
        return self.get(value) if self.get else getattr(value, self.name)

    def absent(self, value: Any) -> bool:
        """Whether the field equals what its absence means."""
        if self.required or self.always:
            return False
        return bool(self.of(value) == (getattr(value, self.like) if self.like else self.default))


@dataclass(frozen=True, slots=True)
class Record:
    """An object of the file. `make`: attributes -> value; `view`: the part of a value that is written. `shared`: its
    schema is in `$defs` under `name`; `named`: errors identify it by its `name`; `part`: its attributes are those of
    the value around it."""

    name: str
    fields: tuple[Field, ...]
    make: Callable[[dict[str, Any]], Any]
    about: str = ""
    view: Callable[[Any], Any] | None = None
    shared: bool = True
    named: bool = False
    part: bool = False
    reading: tuple[Field, ...] = field(init=False)
    derived: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reading", tuple(sorted(self.fields, key=lambda one: one.late)))
        object.__setattr__(self, "derived", tuple(one for one in self.fields if one.derived))


def write_record(record: Record, value: Any, on: Context) -> Json:
    """`value` as a JSON object, keys in the order of the table."""
    written = record.view(value) if record.view else value
    row: Json = {}
    for one in record.fields:
        if one.absent(written):
            continue
        on.minor = max(on.minor, one.since)
        side = on.stages[getattr(written, one.stage)] if one.stage else on
        row[one.key] = one.kind.write(one.of(written), side)
    return row


def read_record(record: Record, data: object, on: Context) -> Any:
    """The value that `data` describes. Raises `UnexpectedError` if it is not an object, `RecordError` for a wrong
    entry."""
    if not isinstance(data, Mapping):
        raise UnexpectedError("an object")
    found: dict[str, Any] = {}
    try:
        for one in record.reading:
            read = read_field(one, data, found, on)
            if not one.derived:
                found[one.name] = read
    except RecordError as problem:
        if not (record.named and "name" in found):
            raise
        raise RecordError(f"{record.name} '{found['name']}': {problem}") from None
    value = record.make(found)
    if record.derived and not record.part:
        compare_derived(record, value, data, on)
    return value


def read_field(one: Field, data: Mapping[str, object], found: Mapping[str, Any], on: Context) -> Any:
    """What `data` has under the field's key, or its default; `found`: attributes read before."""
    raw = data.get(one.key, REQUIRED)
    if raw is REQUIRED:
        if one.required:
            raise RecordError(f"'{one.key}' is missing")
        return found[one.like] if one.like else one.default
    try:
        value = one.kind.read(raw, on.stages[found[one.stage]] if one.stage else on)
    except UnexpectedError as expected:
        raise RecordError(f"'{one.key}' is {shown(raw)}, expected {expected}") from None
    wrong = one.check(value, found, on) if one.check else ""
    if wrong:
        raise RecordError(f"'{one.key}' is {shown(raw)}, {wrong}")
    return value


def compare_derived(record: Record, value: Any, data: Mapping[str, object], on: Context) -> None:
    """Raises `RecordError` if a field that follows from the others has another value."""
    written = record.view(value) if record.view else value
    for one in record.derived:
        raw = data.get(one.key)
        expected = None if one.absent(written) else one.kind.write(one.of(written), on)
        if raw != expected:
            raise RecordError(f"'{one.key}' is {shown(raw)}, but the rest says {shown(expected)}")


@dataclass(frozen=True)
class Nested(Kind):
    """One record under a key."""

    record: Record

    @property
    def word(self) -> str:
        return f"[{self.record.name}](#{self.record.name})"

    def write(self, value: Any, on: Context) -> object:
        return write_record(self.record, value, on)

    def read(self, value: object, on: Context) -> Any:
        return read_record(self.record, value, on)

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.record.name}"} if self.record.shared else record_schema(self.record)


@dataclass(frozen=True)
class Checked(Nested):
    """A record that is checked, and read and written as plain data."""

    def write(self, value: Any, on: Context) -> object:
        return value

    def read(self, value: object, on: Context) -> Any:
        read_record(self.record, Carried().read(value, on), on)
        return value


def rows(record: Record, least: int = 0) -> ListOf:
    """A list of records."""
    return ListOf(Nested(record), least=least)


def record_schema(record: Record) -> Schema:
    """The record in JSON Schema."""
    properties = {
        one.key: one.kind.schema() | ({"description": one.about} if one.about else {}) for one in record.fields
    }
    about = {"description": record.about} if record.about else {}
    required = [one.key for one in record.fields if one.required]
    return {"type": "object", **about, "required": required, "properties": properties}
