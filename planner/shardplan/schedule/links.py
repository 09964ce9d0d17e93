"""Link levels of a cluster, and the share of each level's bandwidth that a collective takes.

A collective over axes of several levels is bound by the outermost of them: it takes that link whole. On the inner links
it sends as many bytes in the same time, which is a share of their bandwidth: a ring over machines at 50 GB/s takes a
ninth of an NVLink of 450 GB/s. A collective that is bound by the inner link can use the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

Levels = frozenset[str]
"""Names of the link levels that a collective occupies."""


@dataclass(frozen=True, slots=True)
class LinkLevels:
    """The link levels of a cluster. `names`: innermost first; `passing`: (level, outer level, share of the first
    level's link that a collective bound by the outer level takes). A pair that is not listed takes the whole link."""

    names: tuple[str, ...] = ()
    passing: tuple[tuple[str, str, float], ...] = ()

    def outermost(self, levels: Levels) -> str:
        """The level that bounds a collective; the alphabetically last one if the names are unknown."""
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
"""Link levels for which every collective takes whole links of all of its levels."""
