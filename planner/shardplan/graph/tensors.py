"""The choices of a tensor: the layouts it may be kept or served in, their bytes, and the prices of moves between them.

Placements are coded per mesh axis as in `shardplan.cost.moves`: 0 .. n-1 shard the tensor's n shardable pseudo-dims,
n is R, n+1 is P and, for tensors with a gradient, n+2 is R/P. Tensors of one `TensorKind` share one `TensorSpace`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.coalesce import in_bucket
from shardplan.cost.moves import CollectiveSeconds, Index, MoveSpace, Seconds, move_space
from shardplan.graph.neighbourhood import OfferedLayouts, gradient_codes, value_codes
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R
from shardplan.schedule.links import Levels

_TIE_PICOSECONDS = 16.0
Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Everything that the price and the choices of a tensor depend on.

    `shards`: the ways it can be sharded, in order. `traffic`: `weight` moves overlap compute, as weight gathering and
    gradient reduction do, `activation` moves do not. `stored`: it is stored in this layout (parameters, graph inputs
    and outputs), so partial values are not allowed. `ordered`: several axes on one dim may take any order (parameters).
    `accumulates`: it may be stored whole while its gradient is accumulated as a partial one (weights whose optimizer
    state is sharded apart from them). `size_bytes`, `gradient_bytes`: payload of the whole value and gradient in one
    microbatch. `coalesces`: a weight, whose gradient is bucketed with others if nothing waits for it. `is_input`: an
    input of the graph.
    """

    shape: tuple[int, ...]
    size_bytes: int
    gradient_bytes: int
    shards: tuple[Placement, ...]
    has_gradient: bool
    traffic: Literal["weight", "activation"]
    stored: bool
    ordered: bool
    microbatches: int
    accumulates: bool = False
    coalesces: bool = False
    is_input: bool = False


class TensorSpace:
    """Choices and move prices of all tensors of one kind.

    `forward`, `gradient`: state numbers of the value and gradient of every kept choice, shape (choices,).
    """

    def __init__(self, kind: TensorKind, mesh: Mesh, prices: MovePrices, nearby: OfferedLayouts | None = None) -> None:
        """`nearby`: the only layouts that are offered."""
        self._layouts: dict[int, Layout] = {}
        self.kind = kind
        self.nearby = None if nearby is None else nearby.codes()
        self.space: MoveSpace = move_space(mesh, len(kind.shards), None if nearby is None else nearby.states())
        self.legal = self.space.legal(kind.shape, kind.shards)
        self._prices = prices
        self.level_sets = prices.level_sets
        self._forward_s = prices.of(kind, self.legal, "forward", space=self.space)
        self._gradient_s = None
        if kind.has_gradient:
            self._gradient_s = prices.of(kind, self.legal, "backward", space=self.space)
        self._shares_s: dict[Direction, Seconds] = {}
        self.codes = self._kept_codes(mesh)
        self.forward = self.forward_state(self.codes)
        self.gradient = self.gradient_state(self.codes)
        if kind.ordered:
            self._add_orders(mesh)
        tiles = self.space.tiles.prod(axis=1)
        self.state_bytes: Index = -(-kind.size_bytes // tiles)
        self.ties = self._tie_picoseconds(tiles[self.forward])

    def priced_by(self, prices: MovePrices) -> TensorSpace:
        """The same choices at other prices for what is sent in buckets."""
        other = copy(self)
        other.__dict__.update(_prices=prices, _shares_s={})
        return other

    def __len__(self) -> int:
        return len(self.forward)

    def code(self, placement: Placement) -> int | None:
        """Code of a placement given to this tensor; `None` when the tensor cannot be sharded so."""
        count = len(self.kind.shards)
        if placement.is_shard:
            return self.kind.shards.index(placement) if placement in self.kind.shards else None
        if placement.kind == "P":
            return count + 1
        return count + 2 if placement == RP and self.kind.has_gradient else count

    def forward_state(self, codes: Index) -> Index:
        """States of the values of layouts given by pair codes, shape (..., axes) -> (...); -1 where there is none."""
        return self.space.state_of(value_codes(codes, len(self.kind.shards)))

    def gradient_state(self, codes: Index) -> Index:
        """States of the gradients of layouts given by pair codes: R/P has a partial gradient, P a replicated one."""
        return self.space.state_of(gradient_codes(codes, len(self.kind.shards)))

    @cached_property
    def offered(self) -> frozenset[Layout]:
        """The plain layouts that moves may pass through."""
        return frozenset(self.space.layout(state, self.kind.shards) for state in range(len(self.space.states)))

    def offers(self, codes: Index) -> NDArray[np.bool_]:
        """Whether some offered layout begins with these pair codes, shape (layouts, axes or fewer)."""
        if self.nearby is None:
            return np.ones(len(codes), dtype=np.bool_)
        radix = (len(self.kind.shards) + 3) ** np.arange(codes.shape[1])
        return np.isin(codes @ radix, self.nearby[:, : codes.shape[1]] @ radix)

    def layout(self, choice: int) -> Layout:
        """The dual-pair layout of a kept choice."""
        if choice not in self._layouts:
            order = self.space.states[int(self.forward[choice])].order
            self._layouts[choice] = Layout.of(*self.placements(self.codes[choice]), order=order)
        return self._layouts[choice]

    def placements(self, codes: Sequence[int] | Index) -> list[Placement]:
        count = len(self.kind.shards)
        others = {count: R, count + 1: P(), count + 2: RP}
        return [others.get(int(code)) or self.kind.shards[int(code)] for code in codes]

    def value_move(self, source: Index, target: Index) -> Seconds:
        """Seconds of one move of the value by level set, shape (level sets, source states, target states)."""
        return self._forward_s[:, source[:, None], target[None, :]]

    def comes_free(self, source: Index, target: Index) -> NDArray[np.bool_]:
        """Whether a value moves from states (rows) to states (columns) without communication: it stays, or a device
        takes a part of its own."""
        free: NDArray[np.bool_] = self.value_move(source, target).sum(axis=0) == 0.0
        return free

    def extremum_move(self, source: Index, target: Index) -> Seconds:
        """As `value_move` where partial values are maxima, minima or products: zeros do not fill those up."""
        seconds = self._prices.without_masks(self.kind, self.legal, self.space)
        return seconds[:, source[:, None], target[None, :]]

    def gradient_move(self, source: Index, target: Index) -> Seconds:
        """As `value_move`, of one move of the gradient."""
        if self._gradient_s is None:
            return self._nothing(source, target)
        return self._gradient_s[:, source[:, None], target[None, :]]

    def _nothing(self, source: Index, target: Index) -> Seconds:
        return np.zeros((len(self.level_sets), len(source), len(target)))

    def gradient_share(self, source: Index, target: Index) -> Seconds:
        """As `gradient_move`, for the last move of a step's gradient, which shares buckets with those of other
        weights."""
        if self._gradient_s is None:
            return self._nothing(source, target)
        return self._shares("backward")[:, source[:, None], target[None, :]]

    def value_share(self, source: Index, target: Index) -> Seconds:
        """As `value_move`, for a new weight that is gathered in a bucket with others."""
        return self._shares("forward")[:, source[:, None], target[None, :]]

    def _shares(self, direction: Direction) -> Seconds:
        if direction not in self._shares_s:
            make = self._prices.shares if self.kind.coalesces else self._prices.of
            self._shares_s[direction] = make(self.kind, self.legal, direction, space=self.space)
        return self._shares_s[direction]

    def _tie_picoseconds(self, pieces: Index) -> NDArray[np.float64]:
        """A few picoseconds per choice that break ties: for a weight or an input, which are there all the time, by the
        bytes on a device, for other activations by the number of splits."""
        if self.kind.ordered or self.kind.is_input:
            held = np.ceil(_TIE_PICOSECONDS / pieces)
            return np.asarray(held - held.min() if self.kind.is_input else held)
        return np.asarray((self.codes < len(self.kind.shards)).sum(axis=1), dtype=np.float64)

    def _kept_codes(self, mesh: Mesh) -> Index:
        count = len(self.kind.shards)
        others = [count] if self.kind.stored else [count, count + 2, count + 1]
        if self.kind.accumulates:
            others = [count, count + 2]
        if not self.kind.stored and not self.kind.has_gradient:
            others = [count, count + 1]
        alphabets = [[count] if size == 1 else others[:1] + list(range(count)) + others[1:] for size in mesh.shape]
        if self.nearby is None:
            codes = np.array(list(itertools.product(*alphabets)), dtype=np.int64).reshape(-1, len(mesh))
        else:
            offered = [np.isin(self.nearby[:, axis], alphabet) for axis, alphabet in enumerate(alphabets)]
            codes = self.nearby[np.all(offered, axis=0)]
        state = self.forward_state(codes)
        return codes[(state >= 0) & self.legal[state]]

    def _add_orders(self, mesh: Mesh) -> None:
        """Append the layouts that differ from a kept one only in which of several axes on one dim is major; axes of
        size 1 shard nothing."""
        known = set(self.forward.tolist())
        partial = len(self.kind.shards) + 1
        sharded_only = (self.space.codes != partial).all(axis=1)
        real = np.array(mesh.shape) > 1
        sharded_only &= (self.space.codes[:, ~real] == len(self.kind.shards)).all(axis=1)
        known |= set(self.space.canonical.tolist())
        extra = [state for state in np.flatnonzero(self.legal & sharded_only) if int(state) not in known]
        states = np.array(extra, dtype=np.int64)
        self.codes = np.concatenate([self.codes, self.space.codes[states]])
        self.forward = np.concatenate([self.forward, states])
        self.gradient = np.concatenate([self.gradient, states])


class MovePrices:
    """Prices of moves on one cluster; kinds that differ only in their choices share one stack of matrices.

    `seconds(collective, size_bytes)`: time of a collective on a tensor of so many bytes. `level_sets`: the sets of link
    levels that some collective occupies, which number the first dim of every stack; `levels_of(collective)`: which of
    them. `bucket_bytes`: of gradients that are sent together (see `shardplan.cost.coalesce`).
    """

    def __init__(
        self,
        mesh: Mesh,
        seconds: CollectiveSeconds,
        levels_of: Callable[[Sequence[int]], Levels],
        bucket_bytes: float = 0.0,
    ) -> None:
        self.mesh = mesh
        self.bucket_bytes = bucket_bytes
        self.seconds = seconds
        self.levels_of = levels_of
        axes = mesh.real_axes
        groups = [group for count in range(len(axes) + 1) for group in itertools.combinations(axes, count)]
        self.level_sets: tuple[Levels, ...] = tuple(dict.fromkeys(levels_of(group) for group in groups[1:])) or (
            levels_of(()),
        )
        self._stacks: dict[tuple[object, ...], Seconds] = {}

    def in_buckets(self, bucket_bytes: float) -> MovePrices:
        """The same prices with buckets of another size; both share the matrices of moves by themselves."""
        other = copy(self)
        other.bucket_bytes = bucket_bytes
        return other

    def of(
        self,
        kind: TensorKind,
        legal: NDArray[np.bool_],
        direction: Direction,
        bucket_bytes: float = 0.0,
        *,
        space: MoveSpace | None = None,
    ) -> Seconds:
        """Seconds between all plain layouts of a value (`forward`) or a gradient (`backward`) by level set, in a bucket
        of so many bytes if not 0: shape (level sets, states, states). `space`: the states, by default all."""
        size_bytes = kind.size_bytes if direction == "forward" else kind.gradient_bytes
        space = space or move_space(self.mesh, len(kind.shards))
        return self._stack(space, (bucket_bytes,), legal, size_bytes, self.one(bucket_bytes))

    def shares(
        self, kind: TensorKind, legal: NDArray[np.bool_], direction: Direction, *, space: MoveSpace | None = None
    ) -> Seconds:
        """As `of`, for values or gradients of many weights sent together: the bucket is filled by the device's bytes
        before or after the move, whichever are more."""
        space = space or move_space(self.mesh, len(kind.shards))
        pieces = space.tiles.prod(axis=1)
        least = np.minimum(pieces[:, None], pieces[None, :])
        seconds = self.of(kind, legal, direction, space=space).copy()
        for count in sorted({int(count) for count in pieces[legal]}):
            bucket_bytes = self.bucket_bytes * count
            if (kind.size_bytes if direction == "forward" else kind.gradient_bytes) < bucket_bytes:
                full = self.of(kind, legal, direction, bucket_bytes, space=space)
                seconds[:, least == count] = full[:, least == count]
        return seconds

    def without_masks(self, kind: TensorKind, legal: NDArray[np.bool_], space: MoveSpace) -> Seconds:
        """As `of` for values, when nothing may become partial on the way."""

        def price(collective: Collective, size_bytes: float) -> float:
            return np.inf if collective.kind == "mask" else self.seconds(collective, size_bytes)

        return self._stack(space, ("without masks",), legal, kind.size_bytes, price)

    def _stack(
        self,
        space: MoveSpace,
        rest: tuple[object, ...],
        legal: NDArray[np.bool_],
        size_bytes: int,
        price: CollectiveSeconds,
    ) -> Seconds:
        key = (space, legal.tobytes(), size_bytes, *rest)
        if key not in self._stacks:
            self._stacks[key] = space.split(legal, size_bytes, price, self._groups(space), len(self.level_sets))
        return self._stacks[key]

    def _groups(self, space: MoveSpace) -> list[int]:
        """The number of the level set of every collective; those that occupy no link take no time."""
        number = {levels: index for index, levels in enumerate(self.level_sets)}
        return [number.get(self.levels_of(collective.axes), 0) for collective in space.collectives]

    def one(self, bucket_bytes: float) -> CollectiveSeconds:
        """Time of a collective by itself, or of its share in a bucket of so many bytes."""
        return in_bucket(self.seconds, bucket_bytes) if bucket_bytes else self.seconds
