"""All single collectives between all plain layouts over an alphabet, as arrays: for prices of whole move matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement
from shardplan.layout.transitions import Frame, Space, State, collective, state_graph, states

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """Transition `t` leads from `states[source[t]]` to `states[target[t]]` by `collectives[kind_index[t]]`.

    `states[0]` is the fully replicated layout. Transitions are sorted by source and, from one source, in the order in
    which equally cheap ones are preferred. Several may join one pair: the caller's prices decide. Legality for a shape
    is the caller's too: drop the transitions of states that are not legal.
    """

    states: tuple[Layout, ...]
    source: Ints
    target: Ints
    kind_index: Ints
    collectives: tuple[Collective, ...]
    index: dict[Layout, int] = field(repr=False)
    """Layout -> its position in `states`."""


def transition_table(mesh: Mesh, alphabet: Iterable[Placement]) -> TransitionTable:
    """The table of `mesh` over the shard placements in `alphabet`, and over `P` if it is in there; `R` always is.

    Raises `ValueError` as `Space.of` does. Cached: equal arguments give the same object, and alphabets of equal length
    share their arrays, which do not depend on what the pseudo-dims are called.
    """
    return _named(Space.of(mesh, alphabet))


def transitions_among(mesh: Mesh, alphabet: Iterable[Placement], chosen: Iterable[State]) -> TransitionTable:
    """The table of some states alone, and of the fully replicated one: collectives that lead elsewhere are left out.

    Raises `ValueError` as `Space.of` does.
    """
    space = Space.of(mesh, alphabet)
    graph = state_graph(space.frame)
    numbers = sorted({0, *(graph.index[state] for state in chosen)})
    kinds: dict[int, int] = {}
    place = np.full(len(graph.states), -1, dtype=np.int64)
    place[numbers] = np.arange(len(numbers))
    found = []
    for source, state in enumerate(numbers):
        targets = place[_targets(space.frame, state)]
        for hop in np.flatnonzero(targets >= 0).tolist():
            kind = graph.out(state)[1][hop]
            found.append((source, int(targets[hop]), kinds.setdefault(kind, len(kinds))))
    columns = np.array(found, dtype=np.int32).reshape(-1, 3).T
    layouts = tuple(space.decode(graph.states[number]) for number in numbers)
    collectives = tuple(collective(*graph.kinds[kind]) for kind in kinds)
    return TransitionTable(
        layouts, columns[0], columns[1], columns[2], collectives, {one: at for at, one in enumerate(layouts)}
    )


@functools.lru_cache(maxsize=1 << 14)
def _targets(frame: Frame, state: int) -> NDArray[np.int64]:
    """The states that the collectives out of a state lead to."""
    return np.array(state_graph(frame).out(state)[0], dtype=np.int64)


@functools.lru_cache(maxsize=64)
def _named(space: Space) -> TransitionTable:
    source, target, kind_index, collectives = _arrays(space.frame)
    layouts = tuple(space.decode(state) for state in states(space.frame))
    index = {layout: position for position, layout in enumerate(layouts)}
    return TransitionTable(layouts, source, target, kind_index, collectives, index)


@functools.lru_cache(maxsize=16)
def _arrays(frame: Frame) -> tuple[Ints, Ints, Ints, tuple[Collective, ...]]:
    graph = state_graph(frame)
    hops = [graph.out(state) for state in range(len(graph.states))]
    source = np.repeat(np.arange(len(hops), dtype=np.int32), [len(targets) for targets, _ in hops])
    target = np.fromiter((target for targets, _ in hops for target in targets), np.int32)
    numbers: dict[int, int] = {}  # by first use here: those of the shared graph depend on what was asked of it before
    kind_index = np.fromiter((numbers.setdefault(kind, len(numbers)) for _, kinds in hops for kind in kinds), np.int32)
    collectives = tuple(collective(*graph.kinds[kind]) for kind in numbers)
    arrays = (source, target, kind_index)
    for array in arrays:
        array.flags.writeable = False  # shared by all tables of this frame
    return (*arrays, collectives)
