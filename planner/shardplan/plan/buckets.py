"""Which gradients of weights, and which new weights, are sent together.

Moves of one phase that run the same collectives over the same axes on the same dtype are one group. In the order in
which a step has them they go into a bucket until it holds as many bytes of a device as the profile says
(`coalesce: bucket_mb`); a bucket is then sent as one. See `shardplan.cost.coalesce` for what that costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from shardplan.cost.coalesce import COALESCED
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Move

UNNUMBERED: Final = -1
"""Bucket of a move that is to go into one."""


def tiles(layout: Layout, mesh: Mesh) -> int:
    """Of how many pieces a device has one."""
    return mesh.ways([axis for axis, placement in enumerate(layout.placements) if placement.is_shard])


def held_bytes(move: Move, mesh: Mesh) -> Fraction:
    """What a device has of what moves, before or after it: the more of both."""
    step = next(step for step in move.steps if step.collective.kind in COALESCED)
    return step.payload_bytes / step.collective.share / min(tiles(move.source, mesh), tiles(move.target, mesh))


def numbered(moves: Iterable[Move], mesh: Mesh, dtype: Callable[[str], str], bucket_bytes: float) -> list[Move]:
    """`moves`, in the order in which they come up, those `UNNUMBERED` with the numbers of their buckets.

    `dtype(tensor)`: what a tensor consists of.
    """
    found: list[Move] = []
    count = 0
    filling: dict[Hashable, tuple[int, Fraction]] = {}
    for move in moves:
        if move.bucket != UNNUMBERED:
            found.append(move)
            continue
        key = (move.phase, dtype(move.tensor), *((step.collective.kind, step.collective.axes) for step in move.steps))
        number, held = filling.pop(key, (count, Fraction(0)))
        count = max(count, number + 1)
        found.append(replace(move, bucket=number))
        held += held_bytes(move, mesh)
        if held < bucket_bytes:
            filling[key] = number, held
    return found


def buckets_of(moves: Iterable[Move]) -> Mapping[int, tuple[Move, ...]]:
    """The moves of every bucket, in plan order, by its number."""
    found: dict[int, list[Move]] = {}
    for move in moves:
        if move.bucket is not None:
            found.setdefault(move.bucket, []).append(move)
    return {number: tuple(found[number]) for number in sorted(found)}
