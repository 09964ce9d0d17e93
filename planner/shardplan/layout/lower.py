"""From a move between two layouts to its cheapest sequence of single collectives.

The same function prices a move and emits it, so what is priced is what runs. It is a shortest path over plain layouts
(Dijkstra): exact for every price function, where a greedy order is only usually right.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement
from shardplan.layout.transitions import Space, StateGraph, collective, state_graph

Price = Callable[[Collective], float]
"""Seconds of one collective on the tensor at hand; not negative; `inf` where it must not be used."""

TICKS_PER_SECOND = 10**15
"""Prices are added as whole femtoseconds, so equal sums are equal in whatever order they were added up."""
_TENSOR_BYTES, _OVERHEAD_BYTES = 1 << 20, 64
_STEP_BITS = 10
_NEVER = 1 << 200


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
    taken, then the one whose steps before the last cost less, then the first in the order of `transitions`.

    Raises `ValueError` if no sequence exists, which is so only if partial maxima, minima or products are wanted on axes
    where there are none, and if a price is negative or not a number.
    """
    start, goal = source.forward, target.forward
    if start == goal:
        return ()
    ends = [p for p in (*start.placements, *goal.placements) if p.kind != "R"]
    return _shortest(Space.of(mesh, (*ends, *shards)), start, goal, price, legal)


def wire_share(collective: Collective, mesh: Mesh) -> Fraction:
    """What one device sends, as a fraction of the whole tensor, in a bandwidth-optimal algorithm.

    With n devices in the group: (n-1)/n of the payload; twice that for an all-reduce; all of it for a permute.
    Source: Chan et al., "Collective communication: theory, practice, and experience" (2007), lower bounds on bandwidth.
    """
    ways = mesh.ways(collective.axes)
    if collective.is_free or ways == 1:
        return Fraction(0)
    if collective.kind == "permute":
        return collective.share
    rounds = 2 if collective.kind == "all_reduce" else 1
    return collective.share * rounds * (ways - 1) / ways


@functools.lru_cache(maxsize=64)
def by_bytes(mesh: Mesh) -> Price:
    """A price without a cluster: the bytes that one device sends of a tensor of 1 MiB, and 64 more for each collective
    that sends any."""

    @functools.cache
    def price(collective: Collective) -> float:
        sent = wire_share(collective, mesh)
        return float(sent * _TENSOR_BYTES + _OVERHEAD_BYTES) if sent else 0.0

    return price


def _shortest(
    space: Space, start: Layout, goal: Layout, price: Price, legal: Callable[[Layout], bool] | None
) -> tuple[Step, ...]:
    """Dijkstra over state numbers, keyed by (ticks, steps, order of discovery).

    Ticks and steps share one integer, ticks in the upper bits, so that one comparison decides.
    """
    graph = state_graph(space.frame)
    first, last = graph.index[space.encode(start)], graph.index[space.encode(goal)]
    ticks = _Ticks(graph, price)
    allowed: dict[int, bool] = {last: True}
    best: dict[int, int] = {first: 0}
    reached: dict[int, tuple[int, int]] = {}
    queue = [(0, 0, first)]
    serial = itertools.count(1)
    while queue:
        label, _, state = heapq.heappop(queue)
        if state == last:
            return _path(space, graph, reached, first, last)
        if best[state] != label:
            continue  # a dearer entry of a state that has since been reached more cheaply
        bound = best.get(last, _NEVER)
        for target, kind in zip(*graph.out(state), strict=True):
            reach = label + ticks[kind]
            if reach >= bound or reach >= best.get(target, _NEVER):
                continue
            if target not in allowed:
                allowed[target] = legal is None or legal(space.decode(graph.states[target]))
            if allowed[target]:
                best[target] = reach
                reached[target] = (state, kind)
                heapq.heappush(queue, (reach, next(serial), target))
                bound = best.get(last, _NEVER)
    raise ValueError(f"no sequence of collectives leads from {start} to {goal}")


class _Ticks(dict[int, int]):
    """Kind -> price in whole femtoseconds, shifted to make room for the number of steps, plus one step."""

    def __init__(self, graph: StateGraph, price: Price) -> None:
        self.graph, self.price = graph, price

    def __missing__(self, kind: int) -> int:
        single = collective(*self.graph.kinds[kind])
        seconds = self.price(single)
        if seconds < 0 or math.isnan(seconds):
            raise ValueError(f"the price of {single} is {seconds}; a price is at least 0")
        self[kind] = _NEVER if math.isinf(seconds) else (round(seconds * TICKS_PER_SECOND) << _STEP_BITS) + 1
        return self[kind]


def _path(
    space: Space, graph: StateGraph, reached: dict[int, tuple[int, int]], first: int, last: int
) -> tuple[Step, ...]:
    backwards = []
    state = last
    while state != first:
        before, kind = reached[state]
        backwards.append(Step(collective(*graph.kinds[kind]), space.decode(graph.states[state])))
        state = before
    return tuple(reversed(backwards))
