"""Generation of the tables of docs/cluster-profiles.md from the table of keys.

`python -m shardplan.cluster.reference`, in a checkout, writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from shardplan.cluster.keys import LEVEL, OMITTED, PROFILE, REQUIRED, Key, Keys
from shardplan.cluster.yaml import Field, Flag, Number, Table, Text, shown

_TABLES: Final = re.compile(r"<!-- fields of (\S+) -->\n.*?<!-- end of fields -->\n", re.DOTALL)


def with_tables(text: str, table: Callable[[str], str]) -> str:
    """A page of the documentation with what stands between its marks, `<!-- fields of NAME -->`, made anew."""
    return _TABLES.sub(lambda found: f"<!-- fields of {found[1]} -->\n{table(found[1])}<!-- end of fields -->\n", text)


def page(text: str) -> str:
    """docs/cluster-profiles.md with its tables made anew."""
    return with_tables(text, lambda name: _table({"profile": PROFILE, "level": LEVEL}[name]))


def _table(keys: Keys) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for path, key in _rows(keys):
        about = f"{key.about} (`{key.beside}`)" if key.beside else key.about
        lines.append(f"| `{path}` | {_value(key.kind)} | {_default(key)} | {about} |")
    return "\n".join(lines) + "\n"


def _rows(keys: Keys, above: str = "") -> Iterator[tuple[str, Key]]:
    for key in keys.keys:
        if isinstance(key.kind, Keys):
            yield from _rows(key.kind, f"{above}{key.key}.")
        elif not key.retired:
            yield f"{above}{key.key}", key


def _value(kind: Field | Keys) -> str:
    """What may be written, in words: `GB/s, above 0`."""
    if isinstance(kind, Text):
        return ", ".join(f"`{choice}`" for choice in kind.choices) or "text"
    if isinstance(kind, Flag):
        return "true or false"
    if isinstance(kind, Number):
        unit = kind.dimension.bare or ("whole number" if kind.integer else "number")
        words = "".join(f", or `{word}`" for word in kind.words)
        return f"{unit}, {_range(kind)}{words}"
    if isinstance(kind, Table) and isinstance(kind.values, Number):
        return f"table of {_value(kind.values)}"
    return "table" if isinstance(kind, Table) else "list"


def _range(kind: Number) -> str:
    if kind.minimum == kind.maximum:
        return shown(kind.minimum)
    least = f"at least {shown(kind.minimum)}"
    return least if kind.maximum == float("inf") else f"{least}, at most {shown(kind.maximum)}"


def _default(key: Key) -> str:
    if key.said or key.default is OMITTED:
        return key.said or "none"
    if key.default is REQUIRED:
        return "required"
    if isinstance(key.default, bool):
        return str(key.default).lower()
    return f"`{key.default}`" if isinstance(key.default, str) else f"{key.default:g}"


if __name__ == "__main__":
    docs = Path(__file__).parents[3] / "docs" / "cluster-profiles.md"
    docs.write_text(page(docs.read_text(encoding="utf-8")), encoding="utf-8")
