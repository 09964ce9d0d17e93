"""From a move between two layouts to its cheapest sequence of single collectives.

The same function prices a move and emits it, so what is priced is what runs. It is a shortest path over plain layouts
(Dijkstra): exact for every price function, where a greedy order is only usually right.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement
from shardplan.layout.transitions import Hop, Space, State, collective, hops

Price = Callable[[Collective], float]
"""Seconds of one collective on the tensor at hand; not negative; `inf` where it must not be used."""

TICKS_PER_SECOND = 10**15
"""Prices are added as whole femtoseconds, so equal sums are equal in whatever order they were added up."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a move and the layout it leads to."""

    collective: Collective
    target: Layout


def lower(
    mesh: Mesh,
    source: Layout,
    target: Layout,
    price: Price,
    *,
    shards: Iterable[Placement] = (),
    legal: Callable[[Layout], bool] | None = None,
) -> tuple[Step, ...]:
    """The cheapest sequence of single collectives from `source.forward` to `target.forward`; empty if they are equal.

    Layouts on the way use the placements of source and target and those in `shards` (shard placements, and `P` if
    partial values may arise on the way), and satisfy `legal`, which is not asked about the two ends. To emit what a
    `transition_table` priced, give its alphabet as `shards`. Among equally cheap sequences the one with fewer steps is
    taken, then the first in the order of `transitions`. Raises `ValueError` if no sequence exists, which is so only if
    partial maxima, minima or products are wanted on axes where there are none.
    """
    start, goal = source.forward, target.forward
    if start == goal:
        return ()
    ends = [p for p in (*start.placements, *goal.placements) if p.kind != "R"]
    return _shortest(Space.of(mesh, (*ends, *shards)), start, goal, price, legal)


def backward(
    mesh: Mesh,
    source: Layout,
    target: Layout,
    price: Price,
    *,
    shards: Iterable[Placement] = (),
    legal: Callable[[Layout], bool] | None = None,
) -> tuple[Step, ...]:
    """What the gradient does when the value moves from `source` to `target`: it goes back, by the gradient placements.

    The steps lead from `target.gradient` to `source.gradient`. The transpose of the forward move. Arguments and result as those of `lower`.
    """
    return lower(mesh, target.gradient, source.gradient, price, shards=shards, legal=legal)


def wire_share(collective: Collective, mesh: Mesh) -> Fraction:
    """What one device sends, as a fraction of the whole tensor, in a bandwidth-optimal algorithm.

    With n devices in the group: (n-1)/n of the payload; twice that for an all-reduce; all of it for a permute.
    Source: Chan et al., "Collective communication: theory, practice, and experience" (2007), table 2.
    """
    ways = mesh.ways(collective.axes)
    if collective.is_free or ways == 1:
        return Fraction(0)
    if collective.kind == "permute":
        return collective.share
    rounds = 2 if collective.kind == "all_reduce" else 1
    return collective.share * rounds * (ways - 1) / ways


def by_bytes(mesh: Mesh, tensor_bytes: int = 1 << 20, overhead_bytes: int = 64) -> Price:
    """A price without a cluster: bytes one device sends, plus `overhead_bytes` for each collective that sends any."""

    def price(collective: Collective) -> float:
        sent = wire_share(collective, mesh)
        return float(sent * tensor_bytes + overhead_bytes) if sent else 0.0

    return price


def _shortest(
    space: Space, start: Layout, goal: Layout, price: Price, legal: Callable[[Layout], bool] | None
) -> tuple[Step, ...]:
    """Dijkstra over states, keyed by (ticks, steps, order of discovery); the result as `lower` gives it."""
    frame, first, last = space.frame, space.encode(start), space.encode(goal)
    prices: dict[tuple[object, ...], int | None] = {}
    allowed: dict[State, bool] = {first: True, last: True}
    best: dict[State, tuple[int, int]] = {first: (0, 0)}
    reached: dict[State, tuple[State, Hop]] = {}
    queue = [(0, 0, 0, first)]
    serial = 0
    while queue:
        ticks, steps, _, state = heapq.heappop(queue)
        if state == last:
            return _path(space, reached, first, last)
        if best[state] != (ticks, steps):
            continue  # a dearer entry of a state that has since been reached more cheaply
        for hop in hops(frame, state):
            cost = _ticks(hop, price, prices)
            if cost is None:
                continue
            label = (ticks + cost, steps + 1)
            known = best.get(hop.state)
            if known is not None and known <= label:
                continue
            if hop.state not in allowed:
                allowed[hop.state] = legal is None or legal(space.decode(hop.state))
            if allowed[hop.state]:
                serial += 1
                best[hop.state] = label
                reached[hop.state] = (state, hop)
                heapq.heappush(queue, (*label, serial, hop.state))
    raise ValueError(f"no sequence of collectives leads from {start} to {goal}")


def _ticks(hop: Hop, price: Price, known: dict[tuple[object, ...], int | None]) -> int | None:
    """Price of a hop in whole femtoseconds; None if it must not be used."""
    key = (hop.kind, hop.axes, hop.pieces)
    if key not in known:
        seconds = price(collective(*key))
        if seconds < 0 or math.isnan(seconds):
            raise ValueError(f"the price of {collective(*key)} is {seconds}; a price is at least 0")
        known[key] = None if math.isinf(seconds) else round(seconds * TICKS_PER_SECOND)
    return known[key]


def _path(space: Space, reached: dict[State, tuple[State, Hop]], first: State, last: State) -> tuple[Step, ...]:
    backwards = []
    state = last
    while state != first:
        state, hop = reached[state]
        backwards.append(Step(collective(hop.kind, hop.axes, hop.pieces), space.decode(hop.state)))
    return tuple(reversed(backwards))
