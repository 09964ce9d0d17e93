"""Predicted communication of one step: every collective of every move, and their sums.

Bytes are those of one device. The payload is as in `shardplan.layout.collective.Collective` (all-gather: the gathered
output; reduce-scatter and all-reduce: the input; all-to-all and permute: what is sent), which is what counters of
frameworks see. `wire_bytes` is what leaves the device in a bandwidth-optimal algorithm (`layout.lower.wire_share`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from shardplan.cost.coalesce import COALESCED
from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.layout import Layout
from shardplan.layout.lower import wire_share
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Phase, Plan


@dataclass(frozen=True, slots=True)
class Predicted:
    """One collective of one move. `count`: times per step. `payload_bytes`, `wire_bytes`: of each time.

    `tensor`, `reader`, `source`, `target`, `regather`: of the move, in the graph's own dims (see `plan.types.Move`).
    `step`: place of the collective in the move; `bucket`: of the move.
    """

    phase: Phase
    kind: CollectiveKind
    axes: tuple[str, ...]
    count: int
    payload_bytes: int
    wire_bytes: int
    tensor: str
    reader: str
    source: Layout
    target: Layout
    regather: bool = False
    step: int = 0
    bucket: int | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """Sums over a step: the number of collectives, and bytes of one device."""

    count: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0


Key = tuple[Phase, CollectiveKind, tuple[str, ...]]


def predicted_collectives(plan: Plan) -> tuple[Predicted, ...]:
    """Every collective that sends something, in the plan's order. Members of a bucket are listed separately: see
    `sent_together`.

    Collectives over axes of size 1 send nothing and are left out. Collectives inside operators are not included: see
    `inner_operators`.
    """
    found = []
    for move in plan.moves:
        for place, step in enumerate(move.steps):
            collective = step.collective
            share = wire_share(collective, plan.mesh)
            if not share:
                continue
            wire = math.ceil(step.payload_bytes * share / collective.share)
            axes = tuple(plan.mesh.names[axis] for axis in collective.axes)
            found.append(
                Predicted(
                    move.phase, collective.kind, axes, move.count, step.payload_bytes, wire, move.tensor, move.reader,
                    move.source, move.target, move.regather, place, move.bucket,
                )
            )  # fmt: skip
    return tuple(found)


def sent_together(plan: Plan) -> tuple[Predicted, ...]:
    """As `predicted_collectives`, with one row for each bucket: that of its first move, with the bytes of all."""
    first: dict[tuple[object, ...], int] = {}
    found: list[Predicted] = []
    for row in predicted_collectives(plan):
        key = (row.bucket, row.step)
        if row.bucket is None or row.kind not in COALESCED:
            found.append(row)
        elif key not in first:
            first[key] = len(found)
            found.append(row)
        else:
            found[first[key]] = _merged(found[first[key]], row, plan.mesh)
    return tuple(found)


def _merged(one: Predicted, other: Predicted, mesh: Mesh) -> Predicted:
    payload = one.payload_bytes + other.payload_bytes
    collective = Collective(one.kind, tuple(map(mesh.index, one.axes)), Fraction(1))
    return replace(one, payload_bytes=payload, wire_bytes=math.ceil(payload * wire_share(collective, mesh)))


def total(rows: Iterable[Predicted]) -> Mapping[Key, Total]:
    """Sums by phase, kind and axes, sorted by key."""
    sums: dict[Key, Total] = {}
    for row in rows:
        key = (row.phase, row.kind, row.axes)
        before = sums.get(key, Total())
        sums[key] = Total(
            before.count + row.count,
            before.payload_bytes + row.count * row.payload_bytes,
            before.wire_bytes + row.count * row.wire_bytes,
        )
    return dict(sorted(sums.items()))


def inner_operators(plan: Plan) -> tuple[str, ...]:
    """Operators with collectives inside (halos, statistics of a split norm), whose bytes are not in the moves."""
    return tuple(operator.name for operator in plan.operators if operator.inner_ns)
