"""Consoles and tables: colour and the width of a terminal, plain lines of full width in a pipe."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.containers import Lines
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from shardplan.escapes import one_line, visible
from shardplan.text_lines import KEPT, TOGETHER, UNIT

Color = Literal["auto", "always", "never"]
_GUTTER, _LEAST_FOLDED, _BELOW = 2, 12, 4
"""Blanks between columns; columns of text that may be folded are at least so wide; names
below their row are indented so."""
_FEW = 1 / 4
"""Share of the rows whose first name may be too long to stand in the row."""
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
PIPE_WIDTH = 10_000
"""Wider than any of our lines: rich cuts long names to the given width, and scripts need whole names."""


_WORDS = rf"(?!{TOGETHER}) +"
_ENDS = re.compile(rf"[.:,](?!\d)(?: +(?!{UNIT}))?|{_WORDS}")
"""Where a name, or a list of names, may go on in another line; not between a number and its unit, nor at `KEPT`."""
_BETWEEN_WORDS = re.compile(rf"(?!{TOGETHER}|(?<=→) | →) +")
"""The same of a sentence, whose names stay whole, and what was with what is."""
_BLANK = re.compile(rf"[ {KEPT}](?!{UNIT})")
"""Where a piece that is wider than a line may go on in another one."""


class Folded(Text):
    """Text that is folded after the dots of names rather than inside of words; below a line that is indented the rest
    is by two more."""

    ends = _ENDS
    hangs = False

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:  # noqa: ARG002 - rich's signature
        """The lines that are at most `width` wide, but for single characters."""
        if cell_len(self.plain) <= width:
            return Lines([_with_blanks(self)])
        leading = len(self.plain) - len(self.plain.lstrip())
        indent = min(leading + 2, width - 1) if leading or self.hangs else 0
        lines = self.divide(_breaks(self.plain, width, indent, self.ends))
        for line in lines:
            _with_blanks(line).rstrip()
        return Lines([Text(" " * indent) + line if number else line for number, line in enumerate(lines)])


class Sentence(Folded):
    """The same between words only, and the rest is indented in any case."""

    ends = _BETWEEN_WORDS
    hangs = True


def _with_blanks(line: Text) -> Text:
    """The same line, with plain blanks where it had those that do not end it."""
    line.plain = line.plain.replace(KEPT, " ")
    return line


def _breaks(text: str, width: int, indent: int, ends: re.Pattern[str] = _ENDS) -> list[int]:
    """Where lines after the first begin: as late as may be, inside a piece only where it is wider than a line, and then
    at a blank of it if there is one."""
    breaks, room = list[int](), width
    start = end = 0
    for after in [*(match.end() for match in ends.finditer(text)), len(text)]:
        if start < end and text[start:end].strip() and cell_len(text[start:after].rstrip()) > room:
            breaks.append(start := end)
            room = max(1, width - indent)
        while cell_len(text[start:after].rstrip()) > room:
            blanks = [match.end() for match in _BLANK.finditer(text, start + 1, start + room + 1)]
            breaks.append(start := blanks[-1] if blanks else start + room)
            room = max(1, width - indent)
        end = after
    return breaks


class _Open(Table):
    """A table some of whose columns, `named`, hold names."""

    def __init__(self, named: frozenset[int]) -> None:
        super().__init__(box=None, pad_edge=False, header_style="dim", padding=(0, _GUTTER, 0, 0))
        self.named = named

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """As of any table."""
        plain = [
            cell if not isinstance(cell, str) else one_line(cell) if column.no_wrap else Folded(one_line(cell))
            for cell, column in zip(cells, self.columns, strict=False)
        ]
        super().add_row(*plain, **options)

    def fits(self, width: int) -> bool:
        """Whether every name has a place in its row."""
        return not self.named or _least_width(self) <= width

    def stacked(self, width: int) -> list[RenderableType]:
        """The same in `width` columns with names whole: at the end of their row where most rows have room for them,
        else on lines below it, but for a first one where all but a few rows have room for that."""
        others = [column for place, column in enumerate(self.columns) if place not in self.named]
        names = [column for place, column in enumerate(self.columns) if place in self.named]
        widths = [max((_width(cell) for cell in (column.header, *column.cells)), default=0) for column in others]
        left = width - sum(each + _GUTTER for each, column in zip(widths, others, strict=True) if column.no_wrap)
        foldable = sum(not column.no_wrap for column in others)
        widths = [
            each if column.no_wrap else min(each, max(_LEAST_FOLDED, left // foldable - _GUTTER))
            for each, column in zip(widths, others, strict=True)
        ]
        rows = [[[column.header for column in part] for part in (others, names)]] if self.show_header else []
        cells = [[list(column.cells) for column in part] for part in (others, names)]
        rows += [[[column[place] for column in part] for part in cells] for place in range(self.row_count)]
        room = width - sum(each + _GUTTER for each in widths)
        beside = _beside([below for _, below in rows], room)
        in_row = sum(_width(below[0]) > room for _, below in rows) <= len(rows) * _FEW
        made: list[RenderableType] = []
        for number, ((row, below), joined) in enumerate(zip(rows, beside, strict=True)):
            first = None if joined is not None or not in_row or _width(below[0]) > room else below[0]
            said, rest = (first, below[1:]) if joined is None and first is not None else (joined, below)
            place = number - int(self.show_header)
            line = Table.grid(padding=(0, _GUTTER, 0, 0))
            line.style = self.header_style if place < 0 else self.rows[place].style or ""
            for column, each in zip(others, widths, strict=True):
                line.add_column(justify=column.justify, width=each, no_wrap=column.no_wrap, overflow="fold")
            if said is not None:
                line.add_column(no_wrap=True)
            line.add_row(*row, *([] if said is None else [said]))
            made += [line, *([] if joined is not None else _below(rest, width, line.style))]
        return made


def _joined(cells: list[RenderableType], widths: Iterable[int] = itertools.repeat(0)) -> Text:
    """Texts one after the other, each at least so wide, without the empty ones that have no width."""
    padded = []
    for cell, width in zip(cells, widths, strict=False):
        text = cell.copy() if isinstance(cell, Text) else Text(str(cell))
        text.pad_right(max(0, width - _width(text)))
        padded += [text] if text.plain else []
    return Text(" " * _GUTTER).join(padded)


def _beside(rows: list[list[RenderableType]], room: int) -> list[Text | None]:
    """The names of each row as they stand at the end of its line, None where they do not: in columns, of all rows that
    have room for these together, and closer to each other where there is room for that. Where no more than half
    of the rows have room, none is so."""
    lengths = [[_width(cell) for cell in row] for row in rows]
    aligned, widths = set[int](), [0] * max(map(len, lengths), default=0)
    for number in sorted(range(len(rows)), key=lambda number: (max(lengths[number]), sum(lengths[number]), number)):
        wider = [max(pair) for pair in zip(widths, lengths[number], strict=True)]
        if sum(wider) + _GUTTER * (len(wider) - 1) > room:
            break
        widths = wider
        aligned.add(number)
    said = [_joined(row, widths) if number in aligned else _joined(row) for number, row in enumerate(rows)]
    found = [text if _width(text.plain.rstrip()) <= room else None for text in said]
    return found if 2 * sum(text is not None for text in found) > len(rows) else [None] * len(rows)


def _below(cells: list[RenderableType], width: int, style: StyleType) -> list[Text]:
    """The cells below a row: each whole on a line, beside others where there is room; lines of one that is too long end
    between words, which stay whole."""
    lines: list[Text] = []
    for cell in filter(_width, cells):
        text = cell if isinstance(cell, Text) else Text(str(cell))
        if lines and _width(lines[-1]) + _GUTTER + _width(text) <= width:
            lines[-1].append(" " * _GUTTER).append_text(text)
            continue
        words, ends = [0], [match.end() for match in re.finditer(r"\s+", text.plain)]
        for start, end in itertools.pairwise([0, *ends, len(text.plain)]):
            room = width - _BELOW - (_GUTTER if lines or words[-1] else 0)
            if start > words[-1] and cell_len(text.plain[words[-1] : end].rstrip()) > room:
                words.append(start)
        for line in text.divide(words[1:]):
            line.rstrip()
            indent = " " * (_BELOW + (_GUTTER if lines else 0))
            lines.append(Text(indent, style=style, no_wrap=True, overflow="ignore").append_text(line))
    return lines


def _width(cell: RenderableType) -> int:
    return cell_len(str(cell))


def make_console(color: Color = "auto", file: IO[str] | None = None) -> Console:
    """A console on `file` (standard output); `NO_COLOR` counts as `never` unless colour is asked for."""
    stream = file or sys.stdout
    terminal = stream.isatty()
    plain = color == "never" or (color == "auto" and ("NO_COLOR" in os.environ or not terminal))
    return Console(
        file=stream,
        width=None if terminal else PIPE_WIDTH,
        force_terminal=not plain,
        color_system=None if plain else ("auto" if terminal else "standard"),
        no_color=plain,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def emit(console: Console, *renderables: RenderableType) -> None:
    """Print each, without the blanks that pad a table's last column. A table that is too wide is not cut: a terminal
    folds its lines, but half a number is none."""
    width = console.width
    with console.capture() as captured:
        for given in _lines(renderables):
            renderable = _foldable(given)
            parts = (
                renderable.stacked(width)
                if isinstance(renderable, _Open) and not renderable.fits(width)
                else [renderable]
            )
            for part in parts:
                console.width = max(width, _least_width(part))
                whole = isinstance(part, Text) and part.no_wrap
                console.print(part if whole else Group(part), soft_wrap=whole)  # rich joins bare texts to plain ones
    console.width = width
    lines = (_shown(line.rstrip(), plain=console.no_color) for line in captured.get().split("\n")[:-1])
    console.file.write("".join(f"{line}\n" for line in lines))


def _lines(renderables: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """The same, plain text line by line: each is folded by itself."""
    for given in renderables:
        yield from given.split("\n") if isinstance(given, str) else (given,)


def _foldable(given: RenderableType) -> RenderableType:
    """Text with the breaks of a `Sentence`, where it may be broken at all."""
    if isinstance(given, str):
        return Sentence(given)
    if type(given) is Text and not given.no_wrap:
        return Sentence().append_text(given)
    return given


def _shown(line: str, *, plain: bool) -> str:
    """A line whose only control characters are colours, and none of those where it has no colour."""
    if plain:
        return visible(line)
    return "".join(part if place % 2 else visible(part) for place, part in enumerate(_COLOUR.split(line)))


def _least_width(renderable: RenderableType) -> int:
    """What a table needs to show the columns that must not be folded, and a little of the others."""
    if not isinstance(renderable, Table):
        return 0
    total = 0
    for column in renderable.columns:
        texts = [column.header, *column.cells] if renderable.show_header else [*column.cells]
        natural = column.width or max((cell_len(str(text)) for text in texts), default=0)
        total += (natural if column.no_wrap else min(natural, _LEAST_FOLDED)) + _GUTTER
    return total


def table(*columns: str) -> Table:
    """An open table. A column whose name begins with `>` holds numbers, aligned right; one with `*` is folded where a
    terminal is too narrow; one with `=` holds names, which then stand below their row, unbroken. The others keep their
    width."""
    made = _Open(frozenset(place for place, column in enumerate(columns) if column.startswith("=")))
    for column in columns:
        name = column.lstrip(">*=")
        if column.startswith("*"):
            made.add_column(name, overflow="fold")
        else:
            made.add_column(name, justify="right" if column.startswith(">") else "left", no_wrap=True)
    return made
