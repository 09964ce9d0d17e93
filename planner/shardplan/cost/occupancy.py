"""The links that a collective occupies, from the mesh axes of its group: which levels of a cluster.

A collective over axes of one level occupies the links of that level; a hierarchical one, over axes of several levels,
occupies all of them, each for the whole of its time: its price is a lower envelope of algorithms that pass their
payload through all levels in pipelined chunks, and does not part by level. Two collectives that share no level run side
by side; on a shared level they follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardplan.cluster.types import Cluster


def levels_of(cluster: Cluster, axes: Iterable[int]) -> tuple[str, ...]:
    """Names of the levels of links that a collective over `axes` (mesh-axis positions) occupies, innermost first.

    Axes of size 1 occupy nothing: of a group of one device the result is empty.
    """
    crossed = {cluster.axis_levels[axis] for axis in axes if cluster.mesh.shape[axis] > 1}
    return tuple(cluster.levels[level].name for level in sorted(crossed))
