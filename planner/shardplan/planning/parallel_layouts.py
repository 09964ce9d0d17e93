"""The layouts that a parallel configuration leaves open, for meshes with too many axes for all of them.

Data-parallel axes shard the batch of every value that has one, context-parallel axes the sequence, expert-parallel axes
the batch or the experts; any of them but the first may also leave a value whole or partial. Axes of one kind over
several links do the same. What they shard of a weight for its memory, they shard behind its tensor- and expert-parallel
shards, on one dim if that divides. A table then has no more choices than that of three axes with all layouts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardplan.graph.experts import experts_of
from shardplan.graph.neighbourhood import Codes, gradient_codes, value_codes
from shardplan.graph.tensors import TensorKind
from shardplan.layout.placement import Placement, S
from shardplan.layout.transitions import State
from shardplan.model.types import Model
from shardplan.planning.parallelism import CONTEXT, DATA, EXPERT, TENSOR
from shardplan.planning.reduction import Mask
from shardplan.rules.batch import batch_dims_of, dims_that_follow
from shardplan.rules.types import Rule

Dims = Mapping[str, frozenset[int]]
"""Dims by kind of axis."""


@dataclass(frozen=True)
class LeftOpen:
    """`kinds`: of the mesh axes; `dims`: by kind of axis, the dims of values that it may shard."""

    kinds: tuple[str, ...]
    dims: Mapping[str, Sequence[Mapping[str, int]]]

    @classmethod
    def of(cls, kinds: tuple[str, ...], model: Model, rules: Sequence[Rule]) -> LeftOpen:
        """What these kinds of axes leave open of `model`, whose operator i has rule `rules[i]`."""
        experts = dict.fromkeys(sorted(experts_of(model)), 0)
        sequences = {name: 1 for name in model.inputs if len(model.tensor(name).shape) > 1}
        batch, by_expert, sequence = (
            batch_dims_of(model, rules), dims_that_follow(model, rules, experts),
            dims_that_follow(model, rules, sequences),
        )  # fmt: skip
        return cls(kinds, {DATA: [batch], EXPERT: [batch, by_expert], CONTEXT: [sequence]})

    def to(self, names: Collection[str], kind: TensorKind, sizes: tuple[int, ...]) -> Layouts:
        """The layouts offered to tensors of one kind."""
        dims = {
            which: frozenset(known[name] for known in every for name in names if name in known)
            for which, every in self.dims.items()
        }
        return Layouts(self.kinds, sizes, dims, kind)


@dataclass(frozen=True)
class Layouts:
    """The layouts offered to the tensors of `kind`. Placement codes are those of `shardplan.graph.tensors`: shards, R,
    P, R/P."""

    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    dims: Dims
    kind: TensorKind

    def codes(self) -> Codes:
        """All offered layouts as codes, shape (layouts, axes)."""
        return self._codes

    @cached_property
    def _codes(self) -> Codes:
        alphabets = [self._alphabet(axis) for axis in range(len(self.sizes))]
        rows = np.array(list(itertools.product(*alphabets)), dtype=np.int64).reshape(-1, len(self.sizes))
        rows = rows[self._divides(rows) & self._alike(rows)]
        return self._on_one_dim(rows) if self._is_weight else rows

    def states(self) -> tuple[State, ...]:
        """The plain layouts of values and gradients in these layouts."""
        both = [value_codes(self._codes, self._count), gradient_codes(self._codes, self._count)]
        halves = np.unique(np.concatenate(both), axis=0)
        return tuple(self._state(row) for row in halves.tolist())

    @property
    def _count(self) -> int:
        return len(self.kind.shards)

    @property
    def _is_weight(self) -> bool:
        return self.kind.traffic == "weight"

    @property
    def _split(self) -> frozenset[str]:
        """Kinds of axes that shard a weight for its operator, and not for its memory only."""
        return frozenset({TENSOR, EXPERT}) if self._is_weight and self.dims.get(EXPERT) else frozenset({TENSOR})

    def _alphabet(self, axis: int) -> list[int]:
        shards, count = list(range(self._count)), self._count
        if self.sizes[axis] == 1:
            return [count]
        kind = self.kinds[axis]
        if self._is_weight and kind != EXPERT:
            is_cut = kind == TENSOR and len(self.kind.shape) > 1 and bool(shards)
            return shards if is_cut else [*shards, count, count + 2]
        known = [place for place in shards if self.kind.shards[place] in map(S, self.dims.get(kind, ()))]
        if not self._is_fixed(kind):
            return [*(known or shards), count, count + 2, *([] if self._is_weight else [count + 1])]
        ways = math.prod(size for other, size in zip(self.kinds, self.sizes, strict=True) if other == kind)
        return [place for place in known if self._unit(place) % ways == 0] or [count, count + 1, count + 2]

    def _is_fixed(self, kind: str) -> bool:
        """Whether axes of a kind shard the dims of theirs and nothing else: the batch, or the experts of a weight."""
        return kind == EXPERT and bool(self.dims[kind]) if self._is_weight else kind == DATA

    def _unit(self, place: int) -> int:
        shard: Placement = self.kind.shards[place]
        return math.gcd(*shard.segments) if shard.segments else self.kind.shape[shard.dim]

    def _pieces(self, rows: Codes, place: int) -> Codes:
        pieces: Codes = np.where(rows == place, np.array(self.sizes), 1).prod(axis=1)
        return pieces

    def _divides(self, rows: Codes) -> Mask:
        mask = np.ones(len(rows), dtype=np.bool_)
        for place in range(self._count):
            mask &= self._unit(place) % self._pieces(rows, place) == 0
        return mask

    def _alike(self, rows: Codes) -> Mask:
        """Axes of one kind do the same, unless they cannot shard a dim together."""
        mask = np.ones(len(rows), dtype=np.bool_)
        for kind in dict.fromkeys(self.kinds):
            axes = [axis for axis, other in enumerate(self.kinds) if other == kind and self.sizes[axis] > 1]
            ways = math.prod(self.sizes[axis] for axis in axes)
            for one, other in itertools.pairwise(axes):
                uneven = [place for place in range(self._count) if self._unit(place) % ways]
                mask &= (rows[:, one] == rows[:, other]) | np.isin(rows[:, [one, other]], uneven).any(axis=1)
        return mask

    def _on_one_dim(self, rows: Codes) -> Codes:
        """Axes that shard a weight for its memory share a dim, unless no dim has room for all of them."""
        flat = [axis for axis, kind in enumerate(self.kinds) if kind not in self._split]
        is_shard = rows[:, flat] < self._count
        first = np.where(is_shard, rows[:, flat], self._count).min(axis=1, initial=self._count)
        alone: Mask = (~is_shard | (rows[:, flat] == first[:, None])).all(axis=1)
        alike = rows.copy()
        alike[:, flat] = np.where(is_shard, -1, rows[:, flat])
        group = np.unique(alike, axis=0, return_inverse=True)[1].reshape(-1)  # numpy 2.0 returns a column
        has_room: Mask = np.bincount(group, weights=alone) > 0
        chosen: Codes = rows[alone | ~has_room[group]]
        return chosen

    def _state(self, codes: Sequence[int]) -> State:
        def at(wanted: int) -> tuple[int, ...]:
            axes = [axis for axis, code in enumerate(codes) if code == wanted]
            if self._is_weight and wanted < self._count:
                axes.sort(key=lambda axis: self.kinds[axis] not in self._split)
            return tuple(axes)

        return State(tuple(map(at, range(self._count))), at(self._count + 1))
