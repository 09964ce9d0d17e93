"""From YAML text to values with file, line and column, checked against a declarative schema.

Scalars stay text until the schema of a field interprets them. All faults are collected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from shardplan.cluster.quantity import PLAIN, Dimension, parse_quantity
from shardplan.errors import Diagnostic, did_you_mean, error
from shardplan.escapes import CONTROLS
from shardplan.layout.mesh import AXIS_NAME
from shardplan.units import counted, whole_number
from shardplan.yaml_source import Mark, compose, is_null, mark_of

_KINDS = {yaml.ScalarNode: "a value", yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}
_MIXED = "a plan gives every device the same share of the work: write a profile for each kind, and plan each part alone"
_NOT_SEVERAL = {"device": _MIXED, "device.kind": _MIXED}
"""By path: the hint for a list where only one value is possible."""
_SEVERAL = {"devices": _MIXED, "device.kinds": _MIXED}
"""By path: the hint for a plural key where only one value is possible."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One checked value and where it was written."""

    value: float | int | str | bool
    mark: Mark


@dataclass(frozen=True, slots=True)
class Record:
    """Checked mapping: key -> `Leaf`, `Record` or tuple of them; `mark` is where it begins."""

    entries: Mapping[str, Tree]
    mark: Mark

    def get(self, *path: str) -> Tree | None:
        """The value at `path`, or None."""
        found: Tree | None = self
        for key in path:
            found = found.entries.get(key) if isinstance(found, Record) else None
        return found

    def value(self, *path: str) -> float | int | str | bool | None:
        """The value of the leaf at `path`, or None."""
        found = self.get(*path)
        return found.value if isinstance(found, Leaf) else None


Tree = Leaf | Record | tuple["Tree", ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A quantity of `dimension`, `minimum` <= value <= `maximum`, or one of `words`."""

    dimension: Dimension = PLAIN
    minimum: float = 0.0
    maximum: float = float("inf")
    integer: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """What a name may look like: a pattern for all of it, and the same in words."""

    pattern: re.Pattern[str]
    said: str

    def fits(self, text: str) -> bool:
        return self.pattern.fullmatch(text) is not None


ANY = Form(re.compile(".*", re.DOTALL), "text")
NAME = Form(re.compile(AXIS_NAME), "letters, digits, '_' and '-', beginning with a letter or '_'")
TITLE = Form(re.compile(f"[^{CONTROLS}]*"), "text on one line without control characters")


@dataclass(frozen=True, slots=True)
class Text:
    """Text of this form; one of `choices` if there are any."""

    choices: tuple[str, ...] = ()
    form: Form = ANY


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`, and nothing else."""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with these keys."""

    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from keys of one kind to values of one kind. `keys`: allowed names (empty: any of `form`); `ranks`:
    keys are integers of at least 1; `scalar`: a single value of this kind may stand for the whole table."""

    values: Field
    keys: tuple[str, ...] = ()
    ranks: bool = False
    scalar: Field | None = None
    form: Form = ANY


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values of one kind; of exactly `length` entries, each with its own kind, if `items` are given."""

    values: Field | None = None
    items: tuple[Field, ...] = ()


Field = Number | Text | Flag | Section | Table | Sequence


@dataclass
class Reader:
    """Checks composed YAML nodes against a schema; `faults` collects what is wrong."""

    file: str
    faults: list[Diagnostic] = field(default_factory=list)

    def mark(self, node: yaml.Node) -> Mark:
        return mark_of(node, self.file)

    def fault(self, node: yaml.Node, code: str, summary: str, **fields: object) -> None:
        self.faults.append(error(code, summary, **self.mark(node).where, **fields))

    def read(self, node: yaml.Node, kind: Field, path: str) -> Tree | None:
        """The value of `node` as `kind`, or None after noting what is wrong. `path` names it in messages."""
        if isinstance(kind, Table) and kind.scalar is not None and isinstance(node, yaml.ScalarNode):
            return self.read(node, kind.scalar, path)
        if isinstance(kind, Section | Table) and isinstance(node, yaml.MappingNode):
            if isinstance(kind, Table) and kind.ranks and not node.value:
                self.fault(node, "bad-value", f"{path}: expected at least one entry, found none", hint="leave it out")
                return None
            return self._mapping(node, path, kind)
        if isinstance(kind, Sequence) and isinstance(node, yaml.SequenceNode):
            return self._sequence(node, kind, path)
        if isinstance(kind, Number | Text | Flag) and isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind, path)
        expected = {Section: "a mapping", Table: "a mapping", Sequence: "a list"}.get(type(kind), "a value")
        found = "nothing" if is_null(node) else _KINDS[type(node)]
        hint = _NOT_SEVERAL.get(path, "") if isinstance(node, yaml.SequenceNode) else ""
        self.fault(node, "bad-value", f"{path or 'profile'}: expected {expected}, found {found}", hint=hint)
        return None

    def _mapping(self, node: yaml.MappingNode, path: str, kind: Section | Table) -> Record:
        entries: dict[str, Tree] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            inner = f"{path}.{key}" if path else key
            if key in seen:
                first = f"first on line {seen[key]}"
                self.fault(key_node, "duplicate-key", f"key '{inner}' is given twice", detail=first)
                continue
            seen[key] = key_node.start_mark.line + 1
            value_kind = self._kind_of(key_node, key, path, kind)
            tree = self.read(value_node, value_kind, inner) if value_kind is not None else None
            if tree is not None:
                entries[key] = tree
        return Record(entries, self.mark(node))

    def _kind_of(self, node: yaml.Node, key: str, path: str, kind: Section | Table) -> Field | None:
        """The expected kind of the value under `key`, or None after recording that there is no such key."""
        if isinstance(kind, Table) and kind.ranks:
            if whole_number(key):
                return kind.values
            self.fault(node, "bad-value", f"{path}: expected a whole number of at least 1 as key, found '{key}'")
            return None
        if isinstance(kind, Table) and not kind.form.fits(key):
            self.fault(node, "bad-value", f"{path}: expected {kind.form.said} as key, found '{key}'")
            return None
        allowed = tuple(kind.fields) if isinstance(kind, Section) else kind.keys
        if key in allowed or not (allowed or key == "?"):
            return kind.fields[key] if isinstance(kind, Section) else kind.values
        where = f" in '{path}'" if path else ""
        merge_hint = "use 'extends: builtin:NAME' to build on a profile" if key == "<<" else ""
        several_hint = _SEVERAL.get(f"{path}.{key}".lstrip("."), "")
        self.fault(
            node,
            "unknown-key",
            f"unknown key '{key}'{where}",
            detail=f"allowed: {', '.join(allowed)}" if allowed else "",
            hint=several_hint or did_you_mean(key, allowed) or merge_hint,
        )
        return None

    def _sequence(self, node: yaml.SequenceNode, kind: Sequence, path: str) -> tuple[Tree, ...] | None:
        if kind.items and len(node.value) != len(kind.items):
            count = len(kind.items)
            self.fault(
                node, "bad-value", f"{path}: expected a list of {counted(count, 'value')}, found {len(node.value)}"
            )
            return None
        kinds = kind.items or (kind.values,) * len(node.value)
        trees = [
            self.read(item, item_kind, f"{path}[{position}]")
            for position, (item, item_kind) in enumerate(zip(node.value, kinds, strict=True))
            if item_kind is not None
        ]
        return tuple(tree for tree in trees if tree is not None)

    def _scalar(self, node: yaml.ScalarNode, kind: Number | Text | Flag, path: str) -> Leaf | None:
        if is_null(node):
            self.fault(node, "bad-value", f"{path}: has no value")
            return None
        try:
            value = _parse(node.value, kind)
        except ValueError as fault:
            hint = did_you_mean(node.value, kind.choices) if isinstance(kind, Text) else ""
            self.fault(node, "bad-value", f"{path}: {fault}", hint=hint)
            return None
        return Leaf(value, self.mark(node))


def _parse(text: str, kind: Number | Text | Flag) -> float | int | str | bool:
    if isinstance(kind, Flag):
        if text not in ("true", "false"):
            raise ValueError(f"expected true or false, found '{text}'")
        return text == "true"
    if isinstance(kind, Text):
        if kind.choices and text not in kind.choices:
            raise ValueError(f"expected one of {', '.join(kind.choices)}, found '{text}'")
        if not kind.form.fits(text):
            raise ValueError(f"expected {kind.form.said}, found '{text}'")
        return text
    if text in kind.words:
        return text
    try:
        value = parse_quantity(text, kind.dimension)
    except ValueError as fault:
        words = f" (or {' or '.join(kind.words)})" if kind.words else ""
        raise ValueError(f"{fault}{words}") from None
    if kind.integer and value != int(value):
        raise ValueError(f"expected a whole number, found '{text}'")
    if not within(kind, value):
        raise ValueError(f"expected {allowed(kind)}, found '{text}'")
    return int(value) if kind.integer else value


def within(kind: Number, value: float) -> bool:
    """Whether a value is in the range of a number."""
    return kind.minimum <= value <= kind.maximum


def allowed(kind: Number) -> str:
    """The range of a number in words: `at least 0 and at most 1e6 MB`."""
    if kind.minimum == kind.maximum:
        return shown(kind.minimum)
    most = "" if kind.maximum == float("inf") else f" and at most {shown(kind.maximum)}"
    return f"at least {shown(kind.minimum)}{most} {kind.dimension.bare}".rstrip()


def shown(limit: float) -> str:
    """A limit in few characters: `0.0001`, `1e6`."""
    return f"{limit:g}".replace("e+0", "e").replace("e+", "e")


def read_yaml(text: str, file: str, schema: Section) -> tuple[Record, list[Diagnostic]]:
    """Checks `text` against `schema`; returns what is right and the faults of all the rest.

    Raises `ShardplanError` when the text is no YAML document at all. `file` is the name to show.
    """
    reader = Reader(file)
    node = compose(text, file)
    tree = reader.read(node, schema, "")
    record = tree if isinstance(tree, Record) else Record({}, Mark(file, 1, 1))
    return record, reader.faults


def merge(base: Tree, over: Tree) -> Tree:
    """`over` laid over `base`: mappings are merged key by key, everything else is replaced. A new key stands before the
    next key of `over` that `base` has: the order of levels counts."""
    if not (isinstance(base, Record) and isinstance(over, Record)):
        return over
    before: dict[str, list[str]] = {}
    new: list[str] = []
    for key in over.entries:
        if key in base.entries:
            before[key], new = new, []
        else:
            new.append(key)
    entries: dict[str, Tree] = {}
    for key, tree in base.entries.items():
        entries |= {name: over.entries[name] for name in before.get(key, ())}
        entries[key] = merge(tree, over.entries[key]) if key in over.entries else tree
    return Record({**entries, **{name: over.entries[name] for name in new}}, over.mark)
