"""The choices near some layouts: on a mesh with too many axes for all layouts, a search goes from plan to plan.

In the neighbourhood of a set of layouts, with some mesh axes free, are the layouts that differ from one of the set only
on the free axes. A tensor is kept, served, read and made in layouts near to those that it has in some plan; the choices
of operators follow. Tensors of one kind share all layouts that are near for any of them, so that equal layers still
have equal tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, Placement
from shardplan.layout.transitions import State

if TYPE_CHECKING:
    from shardplan.graph.tensors import TensorKind

Codes = NDArray[np.int64]
_MOST_BETWEEN = 32
"""Number of combinations of different layouts on the fixed axes up to which moves may pass through them: more finds
cheaper moves, with matrices that grow with the square."""


def value_codes(codes: Codes, count: int) -> Codes:
    """The codes of the values of layouts of a tensor with `count` shards: that of R/P is whole."""
    return np.where(codes == count + 2, count, codes)


def gradient_codes(codes: Codes, count: int) -> Codes:
    """The codes of the gradients: that of P is whole, that of R/P partial."""
    return np.where(codes == count + 1, count, np.where(codes == count + 2, count + 1, codes))


class OfferedLayouts(Protocol):
    """The only layouts that the tensors of one kind may have. Placement codes are those of `shardplan.graph.tensors`:
    shards, R, P, R/P."""

    def codes(self) -> Codes:
        """All of them as codes, shape (layouts, axes)."""

    def states(self) -> tuple[State, ...]:
        """The plain layouts that values and gradients have in them and on the paths between them."""


class Offer(Protocol):
    """The only layouts that a cost graph offers."""

    def to(self, names: Collection[str], kind: TensorKind, sizes: tuple[int, ...]) -> OfferedLayouts:
        """Those of the tensors `names`, which are of one kind, on a mesh of these sizes."""


@dataclass(frozen=True)
class Neighbourhood:
    """`layouts`: the given layouts by tensor; `free`: axes on which every placement is allowed."""

    layouts: Mapping[str, frozenset[Layout]]
    free: frozenset[int] = frozenset()

    def to(self, names: Collection[str], kind: TensorKind, sizes: tuple[int, ...]) -> NearbyLayouts:
        """The layouts near to those of any of the tensors."""
        layouts = frozenset[Layout]().union(*(self.layouts.get(name, ()) for name in names))
        return NearbyLayouts(layouts, self.free, kind.shards, sizes)


@dataclass(frozen=True)
class NearbyLayouts:
    """The nearby layouts for the tensors of one kind, with these shards, on a mesh with so many axes.

    Placement codes are those of `shardplan.graph.tensors`: shards, R, P, R/P.
    """

    layouts: frozenset[Layout]
    free: frozenset[int]
    shards: tuple[Placement, ...]
    sizes: tuple[int, ...]

    def codes(self) -> Codes:
        """All nearby layouts as codes, shape (layouts, axes), in ascending order."""
        return self._spread([self._coded(layout) for layout in self.layouts], len(self.shards) + 3)

    def states(self) -> tuple[State, ...]:
        """The plain layouts of values and gradients in these layouts, and those on the paths between them."""
        count = len(self.shards)
        codes = [row for layout in self.layouts for row in self._plain(self._coded(layout))]
        held = [sorted({row[axis] for row in codes}) for axis in range(len(self.sizes))]
        fixed = [[0] if axis in self.free else codes_of for axis, codes_of in enumerate(held)]
        if np.prod([len(each) for each in fixed]) <= _MOST_BETWEEN:
            codes += list(itertools.product(*fixed))
        found = dict.fromkeys(_state(row, count) for row in self._spread(codes, count + 2).tolist())
        for layout in self.layouts:
            for half in (layout.forward, layout.gradient):
                found[State(tuple(half.axes_of(s) for s in self.shards), _axes(self._coded(half), count + 1))] = None
        return tuple(found)

    def _coded(self, layout: Layout) -> tuple[int, ...]:
        return tuple(self._code(placement) for placement in layout.placements)

    def _code(self, placement: Placement) -> int:
        count = len(self.shards)
        if placement.is_shard:
            return self.shards.index(placement)
        return count + 1 if placement.kind == "P" else count + 2 if placement == RP else count

    def _plain(self, codes: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        """The value's and the gradient's half."""
        row, count = np.array(codes, dtype=np.int64), len(self.shards)
        yield tuple(value_codes(row, count).tolist())
        yield tuple(gradient_codes(row, count).tolist())

    def _spread(self, codes: Iterable[tuple[int, ...]], alphabet: int) -> Codes:
        """The layouts with every placement on the free axes."""
        free = sorted(axis for axis in self.free if self.sizes[axis] > 1)
        fixed = sorted(set(codes))
        ways = np.array(list(itertools.product(range(alphabet), repeat=len(free))), dtype=np.int64)
        rows = np.repeat(np.array(fixed, dtype=np.int64).reshape(len(fixed), len(self.sizes)), len(ways), axis=0)
        rows[:, free] = np.tile(ways.reshape(len(ways), len(free)), (len(fixed), 1))
        return np.unique(rows, axis=0)


def _state(codes: list[int], count: int) -> State:
    return State(tuple(_axes(codes, dim) for dim in range(count)), _axes(codes, count + 1))


def _axes(codes: Iterable[int], wanted: int) -> tuple[int, ...]:
    return tuple(axis for axis, code in enumerate(codes) if code == wanted)
