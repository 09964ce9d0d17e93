"""Buckets: moves of one phase, with the same collectives over the same axes on the same dtype, sent together.

A bucket is sent as one collective. `shardplan.plan.step.bucketing` decides which moves share a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from shardplan.cost.coalesce import COALESCED
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Move


def shard_count(layout: Layout, mesh: Mesh) -> int:
    """The number of shards of which a device has one."""
    return mesh.ways([axis for axis, placement in enumerate(layout.placements) if placement.is_shard])


def least_shard_count(move: Move, mesh: Mesh) -> int:
    """The number of shards of which a device has one before or after a move, whichever is fewer."""
    return min(shard_count(move.source, mesh), shard_count(move.target, mesh))


def device_bytes(move: Move, mesh: Mesh) -> Fraction:
    """A device's bytes of the moved tensor before or after the move, whichever are more."""
    return whole_bytes(move) / least_shard_count(move, mesh)


def whole_bytes(move: Move) -> Fraction:
    """The bytes of the moved tensor on all devices together, each piece once."""
    step = next(step for step in move.steps if step.collective.kind in COALESCED)
    return step.payload_bytes / step.collective.share


def buckets_of(moves: Iterable[Move]) -> Mapping[int, tuple[Move, ...]]:
    """The moves of every bucket, in plan order, by its number."""
    found: dict[int, list[Move]] = {}
    for move in moves:
        if move.bucket is not None:
            found.setdefault(move.bucket, []).append(move)
    return {number: tuple(found[number]) for number in sorted(found)}
