"""Transitions: every single collective that can change a plain layout.

A *plain* layout has the placements `S`, `R` and `P` only: it is the forward or the gradient half of a dual pair. Every
distinct shard placement (dim and segments) is a *pseudo-dim* of the algebra; `S(1)` and `S(1;3x768)` are two of them. A
layout is then one ordered list of axes per pseudo-dim (major first), a set of partial axes, and the rest replicated:

| collective     | what happens to its group of axes                                                               |
|----------------|-------------------------------------------------------------------------------------------------|
| slice          | R, each appended (made minor-most) to the list of some pseudo-dim; free                           |
| mask           | R, or a suffix of the lists, becomes P: zeros elsewhere; free; for sums only                      |
| reduce_scatter | P, each appended to the list of some pseudo-dim                                                  |
| all_reduce     | P becomes R                                                                                     |
| all_to_all     | a suffix of some lists is taken off and appended to other lists                                   |
| permute        | any other arrangement with as many tiles per pseudo-dim and as many partial values               |
| all_gather     | a suffix of the lists becomes R                                                                 |

A group may hold several axes: that is one fused collective. An all-to-all exchanges equal pieces between all members of
its group, so a list that loses axes in it gains none (between a plain and a segmented shard of one dim the pieces
differ, but no device sends more than the payload). A permute sends whole local tensors: if source and target have
equally many tiles of every kind, every tile has equally many copies in both, so a one-to-one assignment of senders to
receivers exists. It stays within the axes whose digit of the tile number changes, because the other digits count the
same on both sides.

This module is about structure only: the caller checks legality for a shape, and prices. No transition is omitted as
useless: under the usual laws of prices alone (monotone in payload, fused no dearer than parts, reduce-scatter and
all-gather no dearer than all-reduce, all-reduce no dearer than both) every kind above can be on a cheapest path.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement, R

Axes = tuple[int, ...]
Lists = tuple[Axes, ...]
"""One list of axes per pseudo-dim, major first."""


class State(NamedTuple):
    """A plain layout without names: what the hot loops work on. `partial` is in mesh order."""

    lists: Lists
    partial: Axes


class Frame(NamedTuple):
    """Everything that the structure of transitions depends on: axis sizes, number of pseudo-dims, kinds of partial
    values.

    `partial`: states with partial axes exist. `masks`: partial values are sums, so zeros may fill them up.
    """

    sizes: tuple[int, ...]
    dims: int
    partial: bool
    masks: bool


class Hop(NamedTuple):
    """One collective out of a state. Its payload is the `pieces`-th part of the tensor; 0 where nothing moves."""

    kind: CollectiveKind
    axes: Axes
    pieces: int
    state: State


@dataclass(frozen=True, slots=True)
class Space:
    """The plain layouts over an alphabet: a `Frame` with the placements its pseudo-dims and partial axes stand for."""

    sizes: tuple[int, ...]
    shards: tuple[Placement, ...]
    partial: Placement | None

    @classmethod
    def of(cls, mesh: Mesh, alphabet: Iterable[Placement]) -> Space:
        """The space of all layouts of `mesh` whose placements are `R` or in `alphabet`; its order does not matter.

        `ValueError` for `R/P`, which is a dual pair and no plain placement, and for two kinds of partial values, which
        cannot stand in one layout (a sum of maxima is not the maximum of sums).
        """
        placements = tuple(dict.fromkeys(alphabet))
        partials = [p for p in placements if p.kind == "P"]
        if any(p.kind == "R/P" for p in placements):
            raise ValueError("R/P is a pair of forward and gradient; a plain layout has S, R and P only")
        if len(partials) > 1:
            raise ValueError(f"one layout cannot hold both {partials[0]} and {partials[1]}")
        shards = sorted((p for p in placements if p.is_shard), key=lambda p: (p.dim, p.segments))
        return cls(mesh.shape, tuple(shards), partials[0] if partials else None)

    @property
    def frame(self) -> Frame:
        masks = self.partial is not None and self.partial.reduction == "sum"
        return Frame(self.sizes, len(self.shards), self.partial is not None, masks)

    def encode(self, layout: Layout) -> State:
        """The state of a plain layout whose placements are in the alphabet."""
        lists = tuple(layout.axes_of(shard) for shard in self.shards)
        partial = () if self.partial is None else layout.axes_of(self.partial)
        return State(lists, partial)

    def decode(self, state: State) -> Layout:
        """The layout of a state, in normal form."""
        placements = [R] * len(self.sizes)
        order = list(range(len(self.sizes)))
        for shard, axes in zip(self.shards, state.lists, strict=True):
            for slot, axis in zip(sorted(axes), axes, strict=True):
                placements[axis] = shard
                order[slot] = axis
        for axis in state.partial:
            assert self.partial is not None
            placements[axis] = self.partial
        return Layout(tuple(placements), tuple(order))


def collective(kind: CollectiveKind, axes: Axes, pieces: int) -> Collective:
    """The collective of a hop: share 1 / pieces, 0 where nothing moves."""
    return Collective(kind, axes, Fraction(1, pieces) if pieces else Fraction(0))


def transitions(mesh: Mesh, layout: Layout, alphabet: Iterable[Placement]) -> Iterator[tuple[Layout, Collective]]:
    """Every (target, collective) that leads out of a plain `layout` in one step, in a fixed order.

    `alphabet`: the shard placements that may occur, and `P` if partial axes may. Those of `layout` are always added.
    """
    space = Space.of(mesh, (*(p for p in layout.placements if p.kind != "R"), *alphabet))
    for hop in hops(space.frame, space.encode(layout)):
        yield space.decode(hop.state), collective(hop.kind, hop.axes, hop.pieces)


def hops(frame: Frame, state: State) -> Iterator[Hop]:
    """All collectives out of `state`, in the order in which equally cheap ones are preferred: shrink, keep, grow."""
    return itertools.chain.from_iterable(make(frame, state) for make in _MAKERS)


class StateGraph:
    """The states of a frame by number, and their hops, found when first asked for and then kept.

    `kinds`: every (kind, axes, pieces) met so far; a hop is a number of a target state and a number of a kind.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.states = states(frame)
        self.index = {state: number for number, state in enumerate(self.states)}
        self.kinds: list[tuple[CollectiveKind, Axes, int]] = []
        self._numbers: dict[tuple[CollectiveKind, Axes, int], int] = {}
        self._out: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def out(self, state: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Targets and kinds of all hops out of a state, in order of preference."""
        if state not in self._out:
            found = list(hops(self.frame, self.states[state]))
            targets = tuple([self.index[hop.state] for hop in found])
            self._out[state] = targets, tuple([self._number((hop.kind, hop.axes, hop.pieces)) for hop in found])
        return self._out[state]

    def _number(self, key: tuple[CollectiveKind, Axes, int]) -> int:
        number = self._numbers.setdefault(key, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(key)
        return number


@functools.lru_cache(maxsize=16)
def state_graph(frame: Frame) -> StateGraph:
    """The one shared graph of a frame."""
    return StateGraph(frame)


@functools.lru_cache(maxsize=8)
def states(frame: Frame) -> tuple[State, ...]:
    """Every state of a frame, the fully replicated one first."""
    found = []
    replicated, partial = frame.dims, frame.dims + 1
    for choice in itertools.product((replicated, *range(frame.dims), partial), repeat=len(frame.sizes)):
        if partial in choice and not frame.partial:
            continue
        held = [tuple(axis for axis, slot in enumerate(choice) if slot == wanted) for wanted in range(partial + 1)]
        orders = itertools.product(*(itertools.permutations(axes) for axes in held[: frame.dims]))
        found += [State(lists, held[partial]) for lists in orders]
    return tuple(found)


def _slices(frame: Frame, state: State) -> Iterator[Hop]:
    for group in _groups(_replicated(frame, state)):
        for added in _appendings(group, tuple(range(frame.dims)), frame.dims):
            yield Hop("slice", group, 0, State(_plus(state.lists, added), state.partial))


def _masks(frame: Frame, state: State) -> Iterator[Hop]:
    if not frame.masks:
        return
    replicated = _replicated(frame, state)
    for kept, taken in (((state.lists), ()), *_suffixes(state.lists)):
        for group in ((), *_groups(replicated)):
            axes = tuple(sorted(taken + group))
            if axes:
                yield Hop("mask", axes, 0, State(kept, tuple(sorted(state.partial + axes))))


def _reduce_scatters(frame: Frame, state: State) -> Iterator[Hop]:
    pieces = _tiles(frame, state)
    for group in _groups(state.partial):
        left = tuple(axis for axis in state.partial if axis not in group)
        for added in _appendings(group, tuple(range(frame.dims)), frame.dims):
            yield Hop("reduce_scatter", group, pieces, State(_plus(state.lists, added), left))


def _all_reduces(frame: Frame, state: State) -> Iterator[Hop]:
    pieces = _tiles(frame, state)
    for group in _groups(state.partial):
        left = tuple(axis for axis in state.partial if axis not in group)
        yield Hop("all_reduce", group, pieces, State(state.lists, left))


def _all_to_alls(frame: Frame, state: State) -> Iterator[Hop]:
    pieces = _tiles(frame, state)
    for kept, taken in _suffixes(state.lists):
        gaining = tuple(dim for dim in range(frame.dims) if kept[dim] == state.lists[dim])
        for added in _appendings(taken, gaining, frame.dims):
            yield Hop("all_to_all", taken, pieces, State(_plus(kept, added), state.partial))


def _permutes(frame: Frame, state: State) -> Iterator[Hop]:
    pieces = _tiles(frame, state)
    roles = _roles(frame, state)
    for other, other_roles in _arrangements(frame)[_tile_counts(frame, state)]:
        axes = tuple(axis for axis, role in enumerate(roles) if role != other_roles[axis])
        if axes:
            yield Hop("permute", axes, pieces, other)


def _all_gathers(frame: Frame, state: State) -> Iterator[Hop]:
    for kept, taken in _suffixes(state.lists):
        target = State(kept, state.partial)
        yield Hop("all_gather", taken, _tiles(frame, target), target)


_MAKERS = (_slices, _masks, _reduce_scatters, _all_reduces, _all_to_alls, _permutes, _all_gathers)


def _tiles(frame: Frame, state: State) -> int:
    """How many tiles the tensor is cut into."""
    return math.prod(frame.sizes[axis] for axes in state.lists for axis in axes)


def _replicated(frame: Frame, state: State) -> Axes:
    used = {axis for axes in state.lists for axis in axes} | set(state.partial)
    return tuple(axis for axis in range(len(frame.sizes)) if axis not in used)


def _plus(lists: Lists, added: Lists) -> Lists:
    return tuple([axes + more for axes, more in zip(lists, added, strict=True)])


@functools.lru_cache(maxsize=1024)
def _groups(axes: Axes) -> tuple[Axes, ...]:
    """Every nonempty subset, in mesh order, small ones first."""
    return tuple(group for size in range(1, len(axes) + 1) for group in itertools.combinations(axes, size))


@functools.lru_cache(maxsize=4096)
def _suffixes(lists: Lists) -> tuple[tuple[Lists, Axes], ...]:
    """Every way to take suffixes, at least one axis in all: (what is left of the lists, what is taken, mesh order)."""
    found = []
    for taken in itertools.product(*(range(len(axes) + 1) for axes in lists)):
        if any(taken):
            kept = tuple(axes[: len(axes) - count] for axes, count in zip(lists, taken, strict=True))
            gone = (axes[len(axes) - count :] for axes, count in zip(lists, taken, strict=True))
            found.append((kept, tuple(sorted(itertools.chain.from_iterable(gone)))))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _appendings(axes: Axes, dims: tuple[int, ...], count: int) -> tuple[Lists, ...]:
    """Every way to hand out `axes` to some of `dims`, in every order, as what is added to each of `count` lists."""
    found: list[Lists] = []
    for choice in itertools.product(dims, repeat=len(axes)):
        held = (tuple(a for a, dim in zip(axes, choice, strict=True) if dim == wanted) for wanted in range(count))
        found += itertools.product(*(itertools.permutations(group) for group in held))
    return tuple(found)


Role = tuple[int, int, int]


def _roles(frame: Frame, state: State) -> tuple[Role, ...]:
    """What each axis does: (pseudo-dim, weight of its digit in the tile number, place in the list if it has size 1)."""
    roles = [(-1, 0, 0)] * len(frame.sizes)
    for axis in state.partial:
        roles[axis] = (-2, 0, 0)
    for dim, axes in enumerate(state.lists):
        weight = 1
        for place, axis in enumerate(reversed(axes)):
            size = frame.sizes[axis]
            roles[axis] = (dim, weight, place if size == 1 else 0)
            weight *= size
    return tuple(roles)


def _tile_counts(frame: Frame, state: State) -> tuple[int, ...]:
    """Tiles per pseudo-dim, then the number of partial values."""
    return tuple([math.prod([frame.sizes[axis] for axis in axes]) for axes in (*state.lists, state.partial)])


@functools.lru_cache(maxsize=8)
def _arrangements(frame: Frame) -> dict[tuple[int, ...], tuple[tuple[State, tuple[Role, ...]], ...]]:
    """Tile counts -> the states that have them, with their roles."""
    found: dict[tuple[int, ...], list[tuple[State, tuple[Role, ...]]]] = {}
    for state in states(frame):
        found.setdefault(_tile_counts(frame, state), []).append((state, _roles(frame, state)))
    return {counts: tuple(members) for counts, members in found.items()}
