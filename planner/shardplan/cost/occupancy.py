"""The link levels that a collective occupies, and its share of each, from the mesh axes of its group.

A collective over axes of one level occupies the links of that level. A hierarchical one, over axes of several levels,
occupies all of them for its whole time, as it passes its payload through all levels in pipelined chunks: the outermost
level, which bounds it, wholly, and the others by the ratio of its rate to theirs. Two collectives that share no level
run concurrently; on a shared level they run one after another, unless one of them takes only a share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from shardplan.cluster.types import Cluster
from shardplan.cost.collectives import CollectiveModel
from shardplan.layout.collective import CollectiveKind
from shardplan.schedule.links import LinkLevels

_LARGE_BYTES: Final = 2.0**32
"""Payload from which latency no longer counts."""
_KINDS: Final[tuple[CollectiveKind, ...]] = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives whose bytes pass through all levels; with others, bytes for other machines are not sent again inside of a
machine."""
_DIGITS = 6


def levels_of(cluster: Cluster, axes: Iterable[int]) -> tuple[str, ...]:
    """Names of the levels of links that a collective over `axes` (mesh-axis positions) occupies, innermost first.

    Axes of size 1 occupy nothing: of a group of one device the result is empty.
    """
    crossed = {cluster.axis_levels[axis] for axis in axes if cluster.mesh.shape[axis] > 1}
    return tuple(cluster.levels[level].name for level in sorted(crossed))


def links_of(cluster: Cluster) -> LinkLevels:
    """The levels of a cluster, and the largest share of an inner link taken by a collective that an outer level bounds:
    the time per byte inside, divided by the time per byte over both levels."""
    on = [tuple(a for a, at in enumerate(cluster.axis_levels) if at == level) for level in range(len(cluster.levels))]
    real = [level for level, axes in enumerate(on) if any(cluster.mesh.shape[axis] > 1 for axis in axes)]
    model = CollectiveModel(cluster)

    def seconds_of_more(kind: CollectiveKind, axes: tuple[int, ...]) -> float:
        once, twice = (model.seconds(kind, axes, times * _LARGE_BYTES) for times in (1, 2))
        return twice - once

    passing = []
    for inner, outer in itertools.combinations(real, 2):
        both = tuple(sorted((*on[inner], *on[outer])))
        share = max(seconds_of_more(kind, on[inner]) / seconds_of_more(kind, both) for kind in _KINDS)
        passing.append((cluster.levels[inner].name, cluster.levels[outer].name, round(min(1.0, share), _DIGITS)))
    return LinkLevels(tuple(level.name for level in cluster.levels), tuple(passing))
