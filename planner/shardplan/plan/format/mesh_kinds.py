"""Kinds of values in a plan file that refer to a mesh: layouts, axes, splits, shares, the plans of stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardplan.layout.layout import Layout
from shardplan.plan.format.kinds import Context, Kind, ListOf, MapOf, RecordError, Schema, Text, UnexpectedError


@dataclass(frozen=True)
class LayoutText(Kind):
    """A layout on the mesh of the context."""

    @property
    def word(self) -> str:
        return "layout"

    def write(self, value: Layout, on: Context) -> str:
        return on.text(value)

    def read(self, value: object, on: Context) -> Layout:
        if not isinstance(value, str):
            raise UnexpectedError("a text")
        return on.layout(value)

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/layout"}


@dataclass(frozen=True)
class PerAxis(Kind):
    """One text for every axis of the mesh, under its name."""

    @property
    def word(self) -> str:
        return "object of text"

    def write(self, value: Sequence[str], on: Context) -> dict[str, str]:
        return dict(zip(on.names, value, strict=True))

    def say(self, value: Sequence[str], on: Context) -> str:
        splits = (f"{part}@{axis}" for axis, part in self.write(value, on).items() if part != "-")
        return ", ".join(splits) or "replicated"

    def read(self, value: object, on: Context) -> tuple[str, ...]:
        texts = MapOf(Text()).read(value, on)
        missing = [name for name in on.names if name not in texts]
        if missing:
            raise RecordError(f"'{missing[0]}' is missing")
        return tuple([texts[name] for name in on.names])

    def schema(self) -> Schema:
        return MapOf(Text()).schema()


@dataclass(frozen=True)
class AxisNames(Kind):
    """Positions of mesh axes, at least `least`, written as their names."""

    least: int = 0

    @property
    def word(self) -> str:
        return "list of axes"

    def write(self, value: Iterable[int], on: Context) -> list[str]:
        return [on.names[axis] for axis in value]

    def read(self, value: object, on: Context) -> tuple[int, ...]:
        return tuple([on.mesh.index(name) for name in ListOf(Text(), self.least).read(value, on)])

    def schema(self) -> Schema:
        return ListOf(Text(), self.least).schema()


@dataclass(frozen=True)
class Share(Kind):
    """A fraction: `1/4`."""

    @property
    def word(self) -> str:
        return "fraction"

    def write(self, value: Fraction, on: Context) -> str:
        return str(value)

    def read(self, value: object, on: Context) -> Fraction:
        text = Text().read(value, on)
        if not re.fullmatch(r"[0-9]{1,18}(/0*[1-9][0-9]{0,17})?", text):
            raise UnexpectedError("a fraction such as 1/4")
        return Fraction(text)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": r"^\d+(/\d+)?$"}


@dataclass(frozen=True)
class WholePlan(Kind):
    """The plan of a stage."""

    @property
    def word(self) -> str:
        return "plan"

    def write(self, value: Any, on: Context) -> object:
        document: dict[str, object] = on.whole(value)
        on.minor = max(on.minor, int(str(document["format_version"]).partition(".")[2]))
        return document

    def read(self, value: object, on: Context) -> Any:
        if not isinstance(value, Mapping):
            raise UnexpectedError("an object")
        plan = on.whole(value)
        on.stages.append(Context(plan.mesh, on.whole))
        return plan

    def schema(self) -> Schema:
        return {"$ref": "#"}
