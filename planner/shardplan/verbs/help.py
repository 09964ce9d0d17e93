"""The text of `--help`: lines break between words, never at the hyphen of a name such as `tp-plan`."""

from __future__ import annotations

from collections.abc import Iterable

import click

_HYPHEN = "\u2010"
"""Stands for a hyphen while lines are broken; click breaks at "-" and has no option for it."""


class _WholeWords(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(term, said.replace("-", _HYPHEN)) for term, said in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


class _Context(click.Context):
    formatter_class = _WholeWords


def whole_words(command: click.Command) -> None:
    """Let a command, and all below it, write its help so."""
    command.context_class = _Context
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        whole_words(each)
