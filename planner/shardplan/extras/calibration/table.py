"""Tables of measurements: the rows of a CSV with named columns, each read or refused in words."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from shardplan.errors import Diagnostic, ShardplanError, error

Row = TypeVar("Row")


def read_table(
    text: str, file: str, columns: Sequence[str], read: Callable[[Mapping[str, str]], Row | None], hint: str
) -> list[Row]:
    """What `read` makes of every row, whose cells it is given by column; None for one that is no measurement. The
    columns may stand in any order, others are ignored. `hint`: what a row has to be.

    Raises `ShardplanError` (`bad-table`, or `bad-row` for every row that cannot be read).
    """
    try:
        return _rows(csv.DictReader(io.StringIO(text)), file, columns, read, hint)
    except csv.Error as problem:  # as of a cell that is longer than any number
        raise ShardplanError(error("bad-table", f"no table can be read: {problem}", file=file)) from None


def _rows(
    reader: csv.DictReader[str],
    file: str,
    columns: Sequence[str],
    read: Callable[[Mapping[str, str]], Row | None],
    hint: str,
) -> list[Row]:
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        summary = f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise ShardplanError(error("bad-table", summary, file=file, line=1, hint=f"columns: {', '.join(columns)}"))
    found, problems = [], list[Diagnostic]()
    for row in reader:
        words = {name: (row[name] or "").strip() for name in columns}
        try:
            made = read(words)
        except ValueError:
            made = None
        if made is None:
            summary = f"'{','.join(words.values())}' is no measurement"
            problems.append(error("bad-row", summary, file=file, line=reader.line_num, hint=hint))
        else:
            found.append(made)
    if problems:
        raise ShardplanError(*problems)
    return found
