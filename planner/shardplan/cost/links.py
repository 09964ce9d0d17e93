"""Bandwidth of the links that a group of devices crosses, from the link levels of a cluster.

Formulas: docs/cost-model.md. A group has s_l ranks on every level l of links; in the common two-level case, r = s_0
ranks on each of k = s_1 machines. In SPMD programs all sibling groups run at the same moment: a group gets the share
r/g of a machine's network cards, where g is the number of the mesh's devices on that machine.
`shardplan.cost.algorithms` says what is sent over the links.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.cluster.types import Cluster, Level
from shardplan.layout.collective import CollectiveKind


@dataclass(frozen=True, slots=True)
class Offload:
    """In-network reduction by a switch, for collectives of `kinds`. `eta`: the efficiency of a level that is then
    looked up first; `applies`: whether a level does it for so many ranks."""

    kinds: tuple[CollectiveKind, ...]
    eta: str
    applies: Callable[[Level, int], bool]


OFFLOADS: Final = (
    Offload(("all_reduce",), "nvls", lambda level, ranks: level.nvls and ranks >= 6),
)  # fmt: skip
"""In-switch reduction (NVLink SHARP): NCCL takes it from six ranks up."""


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that differ in some mesh axes. Per level, innermost first: `ranks` of the group, `devices` of the mesh,
    and `stride`: the number of sibling groups interleaved with this one on the same line of devices."""

    levels: tuple[Level, ...]
    ranks: tuple[int, ...]
    devices: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster, axes: tuple[int, ...]) -> Group:
        """The group over `axes` (mesh-axis positions) of the mesh of `cluster`."""
        ranks, devices, stride = ([1] * len(cluster.levels) for _ in range(3))
        for axis, size in enumerate(cluster.mesh.shape):
            level = cluster.axis_levels[axis]
            devices[level] *= size
            if axis in axes:
                ranks[level] *= size
            elif any(outer in axes and cluster.axis_levels[outer] == level for outer in range(axis)):
                stride[level] *= size
        return cls(cluster.levels, tuple(ranks), tuple(devices), tuple(stride))

    @property
    def size(self) -> int:
        return math.prod(self.ranks)

    @property
    def machines(self) -> int:
        """The number of units of the innermost level that the group spans."""
        return math.prod(self.ranks[1:])

    @property
    def crossed(self) -> tuple[int, ...]:
        """Levels over which the group communicates, innermost first."""
        return tuple(level for level, ranks in enumerate(self.ranks) if ranks > 1)

    def spans(self) -> tuple[int, ...]:
        """Per level, the number of units of the level below that the group spans; compares how far groups reach."""
        return tuple(math.prod(self.ranks[level:]) for level in range(1, len(self.ranks)))


def ramp_bytes(group: Group) -> float:
    """Payload at which the ramp doubles the transfer time. Network ramps are measured on whole machines, and what
    counts is the message per card, so a group with a share of the cards ramps up on that share of the payload."""
    outermost = group.crossed[-1]
    link = group.levels[outermost]
    if not link.node_bytes_per_s:
        return link.ramp_bytes
    return link.ramp_bytes * math.prod(group.ranks[:outermost]) / math.prod(group.devices[:outermost])


def bus_bandwidth(group: Group, kind: CollectiveKind) -> float:
    """Bus bandwidth, bytes per second, of a ring-like collective: the minimum over the links crossed. Lines of a torus
    work concurrently."""
    crossed = group.crossed
    torus = [level for level in crossed if group.levels[level].topology == "torus"]
    plain = [level for level in crossed if level not in torus and not group.levels[level].node_bytes_per_s]
    found = [_cards(group, level, kind) for level in crossed if group.levels[level].node_bytes_per_s]
    if torus:
        found.append(sum(_line(group, level, kind) for level in torus))
    if plain:
        found.append(_fabric(group.levels[plain[-1]], kind, math.prod(group.ranks[level] for level in plain)))
    return min(found)


def _fabric(level: Level, kind: CollectiveKind, ranks: int) -> float:
    """Bus bandwidth if every device has its own link into the level."""
    if kind in level.busbw:
        return interpolate(level.busbw[kind], ranks)
    efficiency = _efficiency(level, kind, ranks)
    if level.topology == "full_mesh":
        return efficiency * (ranks - 1) * level.pair_bytes_per_s
    return efficiency * level.link_bytes_per_s


def _line(group: Group, level: int, kind: CollectiveKind) -> float:
    """Bus bandwidth of a line of devices, or of a ring if the group is the whole of a wrapped torus axis."""
    link, ranks = group.levels[level], group.ranks[level]
    if kind in link.busbw:
        return interpolate(link.busbw[kind], ranks)
    directions = 2 if ranks > 2 and _is_ring(group, level) else 1
    return _efficiency(link, kind, ranks) * link.link_bytes_per_s * directions / group.stride[level]


def _is_ring(group: Group, level: int) -> bool:
    """Whether the ends of the line are joined: it is a whole torus axis, or a slice of a size that is closed."""
    link, ranks = group.levels[level], group.ranks[level]
    if not link.wrap or ranks != group.devices[level]:
        return False
    whole = link.devices // max(group.levels[level - 1].devices if level else 1, 1)
    return ranks == whole or (link.wrap_multiple > 0 and ranks % link.wrap_multiple == 0)


def _cards(group: Group, level: int, kind: CollectiveKind) -> float:
    """Bus bandwidth over the network cards of the units below `level`."""
    link, ranks, devices = group.levels[level], math.prod(group.ranks[:level]), math.prod(group.devices[:level])
    share = ranks / devices if link.share is None else link.share
    rate = min(link.node_bytes_per_s * share, ranks * link.link_bytes_per_s)
    loss = interpolate(link.scale_loss, math.prod(group.ranks[level:])) if link.scale_loss else 1.0
    return _card_efficiency(group, level, kind) * loss * rate


def _card_rate(group: Group, level: int, kind: CollectiveKind) -> float:
    """The card bandwidth per device if every device sends on its own: cards are not pooled."""
    return _cards(group, level, kind) / math.prod(group.ranks[:level])


def _card_efficiency(group: Group, level: int, kind: CollectiveKind) -> float:
    link = group.levels[level]
    partial = math.prod(group.ranks[:level]) < math.prod(group.devices[:level])
    return link.eta["partial"] if partial and "partial" in link.eta else _efficiency(link, kind, group.size)


def exchange_seconds(group: Group, level: int) -> float:
    """All-to-all: seconds per byte of the send buffer on `level`, every device sending to every other directly."""
    link, ranks = group.levels[level], group.ranks[level]
    inside = math.prod(group.ranks[:level])
    if link.node_bytes_per_s:
        return (group.size - inside) / group.size / _card_rate(group, level, "all_to_all")
    if link.topology == "torus":
        return ranks / 4 / _line(group, level, "all_to_all")
    reached = inside * ranks
    return (reached - 1) / group.size / _fabric(link, "all_to_all", reached)


def send_seconds(group: Group, level: int) -> float:
    """Permute: seconds per byte over `level`, every device sending to one other."""
    link = group.levels[level]
    if link.node_bytes_per_s:
        return 1 / _card_rate(group, level, "permute")
    if link.topology == "torus":
        rate = _efficiency(link, "permute", 2) * link.link_bytes_per_s / group.stride[level]
        return max(1.0, group.ranks[level] / 4) / rate
    return 1 / _fabric(link, "permute", 2)


def _efficiency(level: Level, kind: CollectiveKind, ranks: int) -> float:
    """The share of the link bandwidth that `kind` over so many ranks reaches."""
    offloaded = [offload.eta for offload in OFFLOADS if kind in offload.kinds and offload.applies(level, ranks)]
    for key in (*offloaded, kind, "default"):
        if key in level.eta:
            return level.eta[key]
        if key in level.eta_by_ranks:
            return interpolate(level.eta_by_ranks[key], ranks)
    return 1.0


def interpolate(table: Mapping[int, float], count: int) -> float:
    """Value at `count`, linear in its logarithm between the entries and constant beyond them."""
    counts = sorted(table)
    if count <= counts[0]:
        return table[counts[0]]
    for low, high in itertools.pairwise(counts):
        if count <= high:
            weight = math.log(count / low) / math.log(high / low)
            return table[low] * (1 - weight) + table[high] * weight
    return table[counts[-1]]
