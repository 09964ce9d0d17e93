"""Interned names of a report: rows hold numbers, and each name is stored once."""

from __future__ import annotations

from shardplan.escapes import one_line


class InternedNames:
    """Texts in the order in which they are first met; characters that nobody would see are written out."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def listed(self) -> list[str]:
        """All texts, by number."""
        return [one_line(text) for text in self._numbers]
