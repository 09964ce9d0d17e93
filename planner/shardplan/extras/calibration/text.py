"""A profile as YAML text, with keys in the documented order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Plain = dict[str, Any]
_LINE_WIDTH = 100


def profile_text(name: str, base: str, keys: Mapping[str, Any], curves: Sequence[Mapping[str, Any]]) -> str:
    """A profile called `name` that extends the shipped profile `base` by `keys` and measured `curves`."""
    document: Plain = {
        "schema": 1,
        "name": name,
        "extends": f"builtin:{base}",
        "provenance": {"status": "measured", "sources": ["shardplan calibrate"]},
        **keys,
    }
    if curves:
        document["curves"] = list(curves)
    return "\n".join(_lines(document, 0)) + "\n"


def _lines(value: Mapping[str, Any], indent: int) -> list[str]:
    lines: list[str] = []
    for key, entry in value.items():
        head = f"{' ' * indent}{key}:"
        flat = _flat(entry)
        if isinstance(entry, Mapping) and (len(head) + len(flat) > _LINE_WIDTH or indent == 0):
            lines += [head, *_lines(entry, indent + 2)]
        elif isinstance(entry, list) and entry and isinstance(entry[0], Mapping):
            lines.append(head)
            lines += [f"{' ' * indent}  - {_flat(item)}" for item in entry]
        else:
            lines.append(f"{head} {flat}")
    return lines


def _flat(value: object) -> str:
    """Flow style, which a line of any length may hold."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flat(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flat, value)) + "]"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Without an exponent: YAML 1.1 takes `1e5` for a word."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if value != int(value) else str(int(value))
