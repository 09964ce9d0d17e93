"""Reconstruction of the layouts between the collectives that a plan lists for a move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.lower import Step
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, Placement
from shardplan.layout.transitions import transitions


def retrace(
    mesh: Mesh,
    shape: Sequence[int],
    source: Layout,
    target: Layout,
    collectives: Sequence[Collective],
    shards: Iterable[Placement] = (),
) -> tuple[Step, ...] | None:
    """The steps that lead from `source` to `target` (plain layouts) by exactly these collectives; None if they do not.

    Layouts on the way use the placements of the two ends, and where those do not suffice `shards` and partial sums.
    Where several ways exist they move the same bytes, and the first in the order of `transitions` is taken.
    """
    ends = {p for p in (*source.placements, *target.placements) if p.kind != "R"}
    sums = {P()} if all(p.kind != "P" for p in ends) else set()
    for alphabet in (ends, ends | set(shards) | sums):
        found = _search(mesh, tuple(shape), source, target, tuple(collectives), alphabet)
        if found is not None:
            return found
    return None


def _search(
    mesh: Mesh,
    shape: tuple[int, ...],
    source: Layout,
    target: Layout,
    collectives: tuple[Collective, ...],
    alphabet: set[Placement],
) -> tuple[Step, ...] | None:
    """Depth first; a layout from which the rest leads nowhere is not tried twice."""
    dead: set[tuple[Layout, int]] = set()

    def from_here(layout: Layout, done: int) -> tuple[Step, ...] | None:
        if done == len(collectives):
            return () if layout == target else None
        if (layout, done) in dead:
            return None
        for following, collective in transitions(mesh, layout, alphabet):
            is_last = done + 1 == len(collectives)
            if collective != collectives[done] or (
                following != target if is_last else not is_legal(following, mesh, shape)
            ):
                continue
            rest = from_here(following, done + 1)
            if rest is not None:
                return (Step(collective, following), *rest)
        dead.add((layout, done))
        return None

    return from_here(source, 0)
