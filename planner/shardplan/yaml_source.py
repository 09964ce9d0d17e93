"""YAML text -> composed nodes that know their line and column.

`yaml.compose` leaves scalars as the text that was written: nothing is guessed (`40e9`, `no` and `12:30` stay text).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import yaml

from shardplan.errors import ShardplanError, error

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 32
_LONGEST = 1 << 21
_MOST_NODES = 200_000
"""Characters, and entries when every alias stands for what it means: what a profile or constraints never have."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    @property
    def where(self) -> dict[str, object]:
        """The location fields of a `Diagnostic`."""
        return {"file": self.file, "line": self.line, "column": self.column}

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _HasPosition(Protocol):
    """The marks of PyYAML and of libyaml, which are different classes; lines and columns count from 0."""

    line: int
    column: int


def compose(text: str, file: str) -> yaml.Node:
    """The root node of `text`; `file` is the name to show.

    Raises `ShardplanError` (`yaml-syntax`) when the text is no YAML document, an empty one, or one nested too deep.
    """
    if len(text) > _LONGEST:
        raise ShardplanError(error("yaml-syntax", f"it has more than {_LONGEST:,} characters", file=file))
    try:
        _check_depth(text, file, _LOADER)
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as fault:
        place = _place(file, fault.problem_mark or fault.context_mark)
        raise ShardplanError(error("yaml-syntax", f"not valid YAML: {fault.problem}", **place)) from None
    except yaml.YAMLError as fault:
        raise ShardplanError(error("yaml-syntax", f"not valid YAML: {str(fault).splitlines()[0]}", file=file)) from None
    if node is None:
        raise ShardplanError(error("yaml-syntax", "the file is empty", file=file))
    entries, depth = _extent(node, {})
    if entries > _MOST_NODES or depth > _DEEPEST:
        summary = f"its aliases stand for more than {_MOST_NODES:,} entries, or {_DEEPEST} levels"
        raise ShardplanError(error("yaml-syntax", summary, file=file))
    return node


def _extent(node: yaml.Node, known: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """How many nodes and levels there are, those behind an alias as often as it is used; infinitely many where a node
    is below itself. An alias comes after what it stands for, so that the recursion is as deep as the text."""
    if id(node) not in known:
        known[id(node)] = math.inf, math.inf  # as long as it is not known: for whoever asks from below
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        below = [one for pair in pairs for one in pair] + (node.value if isinstance(node, yaml.SequenceNode) else [])
        found = [_extent(one, known) for one in below]
        deepest = max((depth for _, depth in found), default=0)
        known[id(node)] = 1 + sum(count for count, _ in found), deepest + bool(below)
    return known[id(node)]


def mark_of(node: yaml.Node, file: str) -> Mark:
    """Where `node` begins."""
    return Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)


def is_null(node: yaml.Node) -> bool:
    """Whether nothing is written there, or a plain `null` or `~`."""
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value in ("", "~", "null")


def _check_depth(text: str, file: str, loader: type) -> None:
    """The composer recurses and would crash on thousands of open brackets; the parser of events does not.

    libyaml reads ahead, and since 0.2.6 refuses more than 1,000 levels before it gives the first event; PyYAML's own
    parser then says where the first level too many begins.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                place = _place(file, event.start_mark)
                raise ShardplanError(error("yaml-syntax", f"nested more than {_DEEPEST} levels deep", **place))
    except yaml.MarkedYAMLError as fault:
        if loader is yaml.SafeLoader or "nesting depth" not in str(fault.problem):
            raise
        _check_depth(text, file, yaml.SafeLoader)


def _place(file: str, mark: _HasPosition | None) -> dict[str, object]:
    return Mark(file, mark.line + 1, mark.column + 1).where if mark else {"file": file}
