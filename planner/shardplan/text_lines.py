"""Wrapping of text lines and the width of a terminal."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from typing import IO

UNIT = r"(?:%|[KMGTPE]?i?B(?:/s)?|Gb/s|[KMGTPE]?FLOP/s|[num]?s)(?![\w-])"
"""A unit behind a number and a blank: the two stay in one line."""
_INDENT = 2
TOGETHER = rf"(?<=\d) (?={UNIT})|(?<=[a-z]) (?=[+−]?\d)| (?=×\d)"
"""Blanks at which no line ends: before a unit, between a word and its number, and before how many there are."""
_TOGETHER = re.compile(TOGETHER)
KEPT = "\N{NO-BREAK SPACE}"
"""A blank at which no line ends; it is printed as any other."""
_INSIDE = re.compile(r"(?<![:,]) ")
_COMMAND = re.compile(r"(hint: |  (- )?)?(shardplan|pip|torchrun) ")


def in_pieces(text: str) -> str:
    """The same text, which is folded after its commas and colons only."""
    return _INSIDE.sub(KEPT, text)


def columns_of(stream: IO[str]) -> int:
    """Of the terminal that a stream is; as many as it takes where it is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or sys.maxsize
    except (OSError, ValueError):
        return sys.maxsize


def folded_line(line: str, columns: int) -> str:
    """The line as several of at most so many columns, broken between words, the later ones indented by two more; names
    stay whole, numbers with their words and units too, and so does a command, which is there to be copied."""
    if len(line) <= columns or _COMMAND.match(line):
        return line
    own = len(line) - len(line.lstrip())
    parts = textwrap.wrap(
        _TOGETHER.sub(KEPT, line),
        columns,
        subsequent_indent=" " * (own + _INDENT),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(parts).replace(KEPT, " ")
