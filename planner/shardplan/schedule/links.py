"""Levels of links, and what collectives take of them.

A collective over axes of several levels is bound by the outermost of them: that link it takes whole. On the inner ones
it passes as many bytes in the same time, which is a share of what they carry: a ring over machines at 50 GB/s takes a
ninth of an NVLink of 450 GB/s. Another collective that is bound by the inner link can have the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

Levels = frozenset[str]
"""Names of the link levels that a collective occupies."""


@dataclass(frozen=True, slots=True)
class LinkLevels:
    """The levels of a cluster. `names`: innermost first; `passing`: level, outer level, and the share of a link of the
    first that a collective takes which the second bounds. It takes all of it where nothing is said."""

    names: tuple[str, ...] = ()
    passing: tuple[tuple[str, str, float], ...] = ()

    def outermost(self, levels: Levels) -> str:
        """The level that bounds a collective; of names that are not known, the last one in the alphabet."""
        return max(levels, key=lambda name: (self.names.index(name) if name in self.names else -1, name))

    def share(self, level: str, levels: Levels) -> float:
        """The share of a link of `level` that a collective on `levels` takes while it runs at full speed."""
        if level not in levels:
            return 0.0
        outer = self.outermost(levels)
        if level == outer:
            return 1.0
        return next((share for one, other, share in self.passing if (one, other) == (level, outer)), 1.0)


WHOLE = LinkLevels()
"""Every collective takes whole links of all of its levels."""
