"""How many stages a pipeline can have: no more than the model has units, and all devices are shared out among them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from shardplan.cluster.types import Cluster
from shardplan.errors import ShardplanError, error
from shardplan.pipeline.cut_points import Chain
from shardplan.pipeline.submeshes import Submesh
from shardplan.units import counted


def stage_counts(devices: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The numbers of parts of these sizes that have so many devices together, ascending."""
    counts = [1]  # by number of devices: bit k is set if k parts have so many
    for together in range(1, devices + 1):
        found = 0
        for size in set(sizes):
            found |= counts[together - size] << 1 if size <= together else 0
        counts.append(found)
    return tuple(count for count in range(devices + 1) if counts[devices] >> count & 1)


def refuse_impossible(stages: int, chain: Chain, cluster: Cluster, parts: Sequence[Submesh]) -> None:
    """Raises `ShardplanError` if a model is not to be cut into so many stages on a cluster, whatever their memory."""
    if stages > len(chain):
        units = counted(len(chain), "unit")
        summary = f"'{chain.model.name}' has {units} and cannot be cut into {stages} stages"
        raise ShardplanError(error("too-many-stages", summary, hint=f"at most --stages {len(chain)}"))
    possible = stage_counts(cluster.mesh.size, [part.size for part in parts])
    if possible and stages not in possible:
        devices = counted(cluster.mesh.size, "device")
        summary = f"{cluster.mesh} has {devices}, which cannot be shared out among {counted(stages, 'stage')}"
        if stages > possible[-1]:
            raise ShardplanError(error("too-many-stages", summary, hint=f"at most --stages {possible[-1]}"))
        above = bisect(possible, stages)
        nearest = possible[max(0, above - 1) : above + 1]
        hint = f"--stages {' or '.join(map(str, nearest))}"
        raise ShardplanError(error("bad-stages", summary, hint=hint))
