"""The text of `--help`: long lists of options under headings, lines that never break at the hyphen of a name such as
`tp-plan`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import click

_HYPHEN = "\u2010"
"""Stands for a hyphen while lines are broken; click breaks at "-" and has no option for it."""
_MANY = 20
"""Number of options from which a list has headings."""
_HEADINGS: Final = {
    "Pipeline": ("--stages", "--schedule"),
    "Decisions by hand, and prices": ("--fix", "--constraints", "--pin", "--cost-model"),
    "Search": (
        "--time-limit", "--effort", "--gap", "--seed", "--presolve", "--robust", "--strict", "--advice",
        "--require-optimal", "--engine", "--budget", "--best",
    ),
    "Output": ("--output", "--html", "--plot", "--all", "--json", "--color", "--quiet", "--verbose", "--help"),
}  # fmt: skip
_HEADING_OF: Final = {option: heading for heading, options in _HEADINGS.items() for option in options}
SOURCES: Final = "Options also come from the environment (SHARDPLAN_MESH=4x4) and from shardplan.toml."

Rows = list[tuple[str, str]]


class _Formatter(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        written = [(term, said.replace("-", _HYPHEN)) for term, said in rows]
        if len(written) < _MANY or not written[0][0].startswith("-"):
            return super().write_dl(written, col_max, col_spacing)
        parts: dict[str, Rows] = {heading: [] for heading in ("", *_HEADINGS)}
        for term, said in written:
            found = re.search(r"--[\w-]+", term)
            parts[_HEADING_OF.get(found[0] if found else "", "")].append((term, said))
        super().write_dl(parts.pop(""), col_max, col_spacing)
        self.dedent()
        for heading, its in parts.items():
            if its:
                with self.section(heading):
                    super().write_dl(its, col_max, col_spacing)
        self.write_paragraph()
        self.write_text(SOURCES)
        self.indent()
        return None

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


class _Context(click.Context):
    formatter_class = _Formatter


def whole_words(command: click.Command) -> None:
    """Let a command, and all below it, write its help so."""
    command.context_class = _Context
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        whole_words(each)
