"""Prices of all moves of a tensor at once: the cheapest path of single collectives between any two plain layouts.

`MoveSpace` holds what depends only on the mesh and the number of shardable dims: the plain layouts (states) and the
single collectives between them. `MoveSpace.prices` gives the matrix of cheapest seconds for one shape and size;
`shardplan.layout.lower` finds the path itself and must agree with it (a test checks this).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import ShardplanError, error
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, Placement, R, S
from shardplan.layout.table import TransitionTable, transition_table, transitions_among
from shardplan.layout.transitions import State

Seconds = NDArray[np.float64]
Index = NDArray[np.int64]
Numbers = NDArray[np.int32]
_BLOCK_ENTRIES = 1 << 21
"""Paths to so many targets are shortened together that the work fits in a cache and little memory."""
STEP_S = 4e-15
"""Charge for every step in the search of the cheapest path: an all-reduce costs as much as a reduce-scatter and an
all-gather, and rounding must not decide between them."""
MOST_S = 1e6
"""Above this, the prices of other collectives are lost in a floating-point sum with it."""
CollectiveSeconds = Callable[[Collective, float], float]
"""Seconds of a collective on a tensor of so many bytes."""


class MoveSpace:
    """Plain layouts over `count` shardable pseudo-dims of a tensor on `mesh`, and the collectives between them.

    Placement codes, one per mesh axis: 0 .. count-1 shard that pseudo-dim, `count` is R, `count + 1` is P. Pseudo-dims
    are numbered, not named: `shards[j]` of a tensor is pseudo-dim j here, so all tensors with as many shards use one
    space. Axes of one device are R in every state. `chosen`: only these states and the replicated one; a move may then
    cost more than the cheapest path, which may lead over other states.
    """

    def __init__(self, mesh: Mesh, count: int, chosen: tuple[State, ...] | None = None) -> None:
        table = _table(mesh, (*(S(dim) for dim in range(count)), P()), chosen)
        self.mesh = mesh
        self.count = count
        self.states: tuple[Layout, ...] = table.states
        self.index = table.index
        self.source = table.source
        self.target = table.target
        self.collective = table.kind_index
        self.collectives: tuple[Collective, ...] = table.collectives
        codes = [[_code(placement, count) for placement in state.placements] for state in table.states]
        self.codes: Index = np.array(codes, dtype=np.int64).reshape(len(codes), len(mesh))
        self.tiles: Index = _tiles(self.codes, mesh, count)
        self.radix = np.array([(count + 2) ** axis for axis in reversed(range(len(mesh)))], dtype=np.int64)
        self.canonical: Index = np.full((count + 2) ** len(mesh), -1, dtype=np.int64)
        in_mesh_order = [state.order == tuple(range(len(mesh))) for state in table.states]
        for number in np.flatnonzero(in_mesh_order):
            self.canonical[int(self.codes[number] @ self.radix)] = number

    def state_of(self, codes: Index) -> Index:
        """Numbers of the mesh-order states with the given codes, shape (..., axes) -> (...)."""
        states: Index = self.canonical[codes @ self.radix]
        return states

    def legal(self, shape: Sequence[int], shards: Sequence[Placement]) -> NDArray[np.bool_]:
        """Which states a tensor of `shape` may take, pseudo-dim j being `shards[j]`.

        Every dim (or segment) must be divisible by the number of its pieces; a dim may be sharded both plainly and by
        segments only when the segments are equal and the plain pieces divide their number.
        """
        legal = np.ones(len(self.states), dtype=np.bool_)
        for number, shard in enumerate(shards):
            unit = math.gcd(*shard.segments) if shard.segments else shape[shard.dim]
            legal &= unit % self.tiles[:, number] == 0
        for number, shard in enumerate(shards):
            for other, plain in enumerate(shards):
                if other != number and plain.dim == shard.dim and shard.segments:
                    both = (self.tiles[:, number] > 1) & (self.tiles[:, other] > 1)
                    mixable = not plain.segments and len(set(shard.segments)) == 1
                    divides = len(shard.segments) % self.tiles[:, other] == 0
                    legal &= ~both | (divides if mixable else False)
        return legal

    def prices(self, legal: NDArray[np.bool_], size_bytes: int, seconds: CollectiveSeconds) -> Seconds:
        """Seconds of the cheapest path from every state (row) to every state (column); `inf` from and to illegal ones.

        `seconds` may be `inf` for collectives that must not be used. The algorithm is Bellman-Ford over many targets at
        once. Raises `ShardplanError` (`bad-price`) for a price that is not a number, negative or above `MOST_S`: then
        there is no cheapest path, or one more step would be lost in rounding.
        """
        price = np.array([seconds(collective, float(size_bytes)) for collective in self.collectives])
        self._check(price, size_bytes)
        usable = legal[self.source] & legal[self.target]
        source, target = self.source[usable], self.target[usable]
        step = price[self.collective[usable]][:, None]
        best = np.full((len(self.states), len(self.states)), np.inf)
        numbers = np.flatnonzero(legal)
        best[numbers, numbers] = 0.0
        if not len(source):
            return best
        starts = np.flatnonzero(np.r_[True, source[1:] != source[:-1]])
        rows = source[starts]
        columns = max(1, _BLOCK_ENTRIES // len(source))
        for first in range(0, len(self.states), columns):
            _relax(best[:, first : first + columns], step, target, starts, rows)
        return best

    def split(
        self,
        legal: NDArray[np.bool_],
        size_bytes: int,
        seconds: CollectiveSeconds,
        groups: Sequence[int],
        count: int,
    ) -> Seconds:
        """The seconds of `prices` by groups of collectives, shape (count, states, states).

        `groups[c]`: group of collective c. Illegal pairs are `inf` in the first group. The path is the cheapest, and
        among equally cheap ones the shortest, as `shardplan.layout.lower` finds it.
        """
        best = self.prices(legal, size_bytes, lambda collective, size: seconds(collective, size) + STEP_S)
        price = np.array([seconds(collective, float(size_bytes)) for collective in self.collectives])
        parts = np.zeros((count, *best.shape))
        if count == 1:
            parts[0] = self.prices(legal, size_bytes, seconds)
            return parts
        usable = legal[self.source] & legal[self.target]
        usable &= np.isfinite(price[self.collective])
        source, target, kind = self.source[usable], self.target[usable], self.collective[usable]
        first = np.full(best.shape, -1, dtype=np.int64)
        bounds = np.flatnonzero(np.r_[True, source[1:] != source[:-1], True]) if len(source) else np.zeros(1, np.int64)
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            reached = (price[kind[begin:end]] + STEP_S)[:, None] + best[target[begin:end]]
            first[source[begin]] = begin + reached.argmin(axis=0)
        number = np.arange(len(best))
        goes = np.isfinite(best) & (number[:, None] != number[None, :]) & (first >= 0)
        rows, columns = np.nonzero(goes)
        step = first[rows, columns]
        group_of = np.asarray(groups, dtype=np.int64)[kind[step]]
        pairs, then = rows * len(best) + columns, target[step].astype(np.int64) * len(best) + columns
        found, changed = parts.reshape(count, -1), np.ones(best.size, dtype=np.bool_)
        for _ in range(len(best)):  # no path has more steps than there are states
            left = np.flatnonzero(changed[then])
            if not len(left):
                break
            after = found[:, then[left]]
            after[group_of[left], np.arange(len(left))] += price[kind[step[left]]]
            changed[:] = False
            changed[pairs[left]] = (after != found[:, pairs[left]]).any(axis=0)
            found[:, pairs[left]] = after
        parts[0][~np.isfinite(best)] = np.inf
        return parts

    def _check(self, price: Seconds, size_bytes: int) -> None:
        wrong = np.flatnonzero(~(price >= 0.0) | ((price > MOST_S) & np.isfinite(price)))
        if len(wrong):
            collective, found = self.collectives[int(wrong[0])], float(price[wrong[0]])
            axes = ", ".join(self.mesh.names[axis] for axis in collective.axes)
            summary = f"{collective.kind.replace('_', '-')} of {size_bytes} bytes over {axes} is priced at {found} s"
            hint = f"a price is from 0 to {MOST_S:g} s: check bandwidths, latencies and payloads of the cost model"
            raise ShardplanError(error("bad-price", summary, hint=hint))

    def layout(self, state: int, shards: Sequence[Placement]) -> Layout:
        """The plain layout of a state, for a tensor whose pseudo-dims are `shards`."""
        placements = [_placement(int(code), self.count, shards) for code in self.codes[state]]
        return Layout.of(*placements, order=self.states[state].order)


def _relax(best: Seconds, step: Seconds, target: Numbers, starts: Index, rows: Numbers) -> None:
    """Shortens the paths to some targets, in place, until no first step of any state shortens one."""
    while True:
        reached = np.minimum.reduceat(step + best[target], starts, axis=0)
        improved = np.minimum(best[rows], reached)
        if np.array_equal(improved, best[rows]):
            return
        best[rows] = improved


@functools.lru_cache(maxsize=64)
def move_space(mesh: Mesh, count: int, chosen: tuple[State, ...] | None = None) -> MoveSpace:
    """The move space of `mesh` for tensors with `count` shardable pseudo-dims; built once."""
    return MoveSpace(mesh, count, chosen)


def _table(mesh: Mesh, alphabet: Sequence[Placement], chosen: tuple[State, ...] | None) -> TransitionTable:
    """The transitions on axes of several devices: nothing is split or moved on the others, which would only multiply
    the states."""
    real = mesh.real_axes
    if chosen is not None:
        place = {axis: number for number, axis in enumerate(real)}

        def within(axes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place[axis] for axis in axes)

        chosen = tuple(State(tuple(map(within, state.lists)), within(state.partial)) for state in chosen)
    inner = Mesh(tuple(mesh.axes[axis] for axis in real))
    table = transition_table(inner, alphabet) if chosen is None else transitions_among(inner, alphabet, chosen)
    if len(real) == len(mesh):
        return table

    idle = tuple(axis for axis in range(len(mesh)) if axis not in real)

    def widened(layout: Layout) -> Layout:
        placements = dict(zip(real, layout.placements, strict=True))
        order = (*(real[axis] for axis in layout.order), *idle)
        return Layout.of(*(placements.get(axis, R) for axis in range(len(mesh))), order=order)

    states = tuple(map(widened, table.states))
    collectives = tuple(replace(one, axes=tuple(real[axis] for axis in one.axes)) for one in table.collectives)
    return replace(
        table, states=states, collectives=collectives, index={state: number for number, state in enumerate(states)}
    )


def _code(placement: Placement, count: int) -> int:
    return placement.dim if placement.is_shard else count if placement == R else count + 1


def _placement(code: int, count: int, shards: Sequence[Placement]) -> Placement:
    return shards[code] if code < count else R if code == count else P()


def _tiles(codes: Index, mesh: Mesh, count: int) -> Index:
    """Number of pieces of every pseudo-dim in every state: shape (states, count)."""
    sizes = np.array(mesh.shape, dtype=np.int64)
    tiles = np.ones((len(codes), count), dtype=np.int64)
    for dim in range(count):
        tiles[:, dim] = np.where(codes == dim, sizes, 1).prod(axis=1)
    return tiles
