"""YAML text -> composed nodes that know their line and column.

`yaml.compose` leaves scalars as the text that was written: nothing is guessed (`40e9`, `no` and `12:30` stay text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import yaml

from shardplan.errors import ShardplanError, error

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 32


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
    try:
        _check_depth(text, file)
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as fault:
        place = _place(file, fault.problem_mark or fault.context_mark)
        raise ShardplanError(error("yaml-syntax", f"not valid YAML: {fault.problem}", **place)) from None
    except yaml.YAMLError as fault:
        raise ShardplanError(error("yaml-syntax", f"not valid YAML: {str(fault).splitlines()[0]}", file=file)) from None
    if node is None:
        raise ShardplanError(error("yaml-syntax", "the file is empty", file=file))
    return node


def mark_of(node: yaml.Node, file: str) -> Mark:
    """Where `node` begins."""
    return Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)


def is_null(node: yaml.Node) -> bool:
    """Whether nothing is written there, or a plain `null` or `~`."""
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value in ("", "~", "null")


def _check_depth(text: str, file: str) -> None:
    """The composer recurses and would crash on thousands of open brackets; the parser of events does not."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            place = _place(file, event.start_mark)
            raise ShardplanError(error("yaml-syntax", f"nested more than {_DEEPEST} levels deep", **place))


def _place(file: str, mark: _HasPosition | None) -> dict[str, object]:
    return Mark(file, mark.line + 1, mark.column + 1).where if mark else {"file": file}
