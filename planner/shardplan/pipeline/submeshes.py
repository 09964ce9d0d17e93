"""Submeshes that a stage may run on: whole machines, or an aligned part of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.layout.mesh import Mesh


@dataclass(frozen=True)
class Submesh:
    """`cluster`: the profile with the mesh of the part laid over it, axes named as those of the whole."""

    cluster: Cluster

    @property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    @property
    def size(self) -> int:
        return self.cluster.mesh.size


def submeshes(cluster: Cluster) -> tuple[Submesh, ...]:
    """All parts that stages may have, small first. Sizes divide one another, so parts of any sizes that add up to the
    whole fit into it side by side, each aligned to its size."""
    shape = cluster.mesh.shape
    found: list[tuple[int, ...]] = []
    for axis in reversed(range(len(shape))):
        found += [(*[1] * axis, size, *shape[axis + 1 :]) for size in _chain_of_divisors(shape[axis])]
    return tuple(part(cluster, sizes) for sizes in dict.fromkeys(found))


def part(cluster: Cluster, sizes: Sequence[int]) -> Submesh:
    """The part of `cluster` whose mesh axes have these sizes."""
    profile = profile_from_resolved(cluster.resolved)
    text = ",".join(f"{axis.name}={size}" for axis, size in zip(cluster.mesh.axes, sizes, strict=True))
    return Submesh(replace(make_cluster(profile, text), warnings=()))


def _chain_of_divisors(size: int) -> list[int]:
    """Divisors of `size` that divide one another, ascending: the smallest prime is taken out again and again."""
    found = [size]
    while found[-1] > 1:
        rest = found[-1]
        found.append(rest // next(factor for factor in range(2, rest + 1) if rest % factor == 0))
    return found[::-1]


def placed(sizes: Sequence[int]) -> tuple[int, ...]:
    """The first device of each of the parts of these sizes: in their order where all are then aligned, else the
    largest first."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    if all(start % size == 0 for start, size in zip(starts, sizes, strict=True)):
        return tuple(starts)
    found = [0] * len(sizes)
    start = 0
    for number in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        found[number] = start
        start += sizes[number]
    return tuple(found)
