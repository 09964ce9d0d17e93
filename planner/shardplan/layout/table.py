"""All single collectives between all plain layouts over an alphabet, as arrays: for prices of whole move matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement
from shardplan.layout.transitions import Axes, Frame, Space, collective, hops, states

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


@functools.lru_cache(maxsize=64)
def _named(space: Space) -> TransitionTable:
    source, target, kind_index, collectives = _arrays(space.frame)
    layouts = tuple(space.decode(state) for state in states(space.frame))
    index = {layout: position for position, layout in enumerate(layouts)}
    return TransitionTable(layouts, source, target, kind_index, collectives, index)


@functools.lru_cache(maxsize=16)
def _arrays(frame: Frame) -> tuple[Ints, Ints, Ints, tuple[Collective, ...]]:
    everything = states(frame)
    index = {state: position for position, state in enumerate(everything)}
    known: dict[tuple[CollectiveKind, Axes, int], int] = {}
    counts, target, kind_index = [], [], []
    for state in everything:
        out = hops.__wrapped__(frame, state)  # each state is visited once: caching its hops would only cost memory
        counts.append(len(out))
        target += [index[hop.state] for hop in out]
        kind_index += [known.setdefault((hop.kind, hop.axes, hop.pieces), len(known)) for hop in out]
    source = np.repeat(np.arange(len(everything), dtype=np.int32), counts)
    collectives = tuple(collective(*key) for key in known)
    arrays = (source, np.array(target, np.int32), np.array(kind_index, np.int32))
    for array in arrays:
        array.flags.writeable = False  # shared by all tables of this frame
    return (*arrays, collectives)
