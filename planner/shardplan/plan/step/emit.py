"""The moves that an assignment causes, lowered to collectives, in the order in which a step runs them.

Moves are lowered by `shardplan.layout.lower` at the prices of the cost graph, over the same layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import cast

import numpy as np

from shardplan.cost.coalesce import COALESCED
from shardplan.cost.moves import STEP_S
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.edges import gradient_count
from shardplan.graph.tensors import Direction, TensorSpace
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.lower import lower
from shardplan.layout.placement import P
from shardplan.plan.step.bucketing import UNNUMBERED, UNNUMBERED_ONWARD
from shardplan.plan.step.buckets import shard_count
from shardplan.plan.types import CollectiveStep, Move, MoveKind, Phase
from shardplan.units import NS_PER_S

_ANY_LAYOUT_AXES = 3
"""Number of mesh axes up to which a move may pass through any layout of its tensor."""
_ENDS_AXES = 4
"""The same for layouts of the placements of its two ends: with four axes there are too many others (a UNet took 20 s
for 0.1 % of the step). With more axes it passes through those offered, as its price in the cost graph does."""


class Emitter:
    """Lowers the moves of one assignment; equal moves of equal tensors are lowered once. Moves that can share a bucket
    are `UNNUMBERED` and have the times of the cost graph."""

    def __init__(self, built: CostGraph, choice: Mapping[Node, int], regathered: frozenset[str] = frozenset()) -> None:
        """`regathered`: weights that do not stay gathered from forward to backward, though they could."""
        self.built = built
        self.regathered = regathered
        self.bucket_bytes = built.prices.bucket_bytes
        self.choice = choice
        self._lowered = cast("dict[tuple[object, ...], tuple[CollectiveStep, ...]]", built.lowered)
        self._patterns = cast("dict[tuple[object, ...], tuple[Move, ...]]", built.emitted)
        self._around = cast("dict[tuple[object, ...], tuple[tuple[Move, ...], tuple[Move, ...]]]", built.emitted_around)

    def moves(self) -> tuple[Move, ...]:
        """All moves with at least one collective: forward in operator order, backward in reverse, then those of the
        update."""
        forward: list[Move] = []
        backward: list[Move] = []
        regathered, choice = self.regathered, self.choice
        for index, nodes in enumerate(self.built.nodes_around):
            freed = regathered.intersection(self.built.model.operators[index].inputs) if regathered else regathered
            key = (index, freed, *[choice[node] for node in nodes])
            if key not in self._around:
                found = list(self._moves_around(index))
                there = tuple(move for move in found if move.phase == "forward")
                self._around[key] = there, tuple(move for move in found if move.phase != "forward")
            there, back = self._around[key]
            forward += there
            backward += back
        updates = [move for name in self.built.updated for move in self._updating(name) if move.steps]
        return (*forward, *reversed(backward), *updates)

    def _moves_around(self, index: int) -> Iterator[Move]:
        """The moves of what an operator reads and makes."""
        operator = self.built.model.operators[index]
        for position, name in enumerate(operator.inputs):
            if name in self.built.served and self.built.flow.readers[name][0] == (index, position):
                yield from self._serving(name)
            if name in self.built.kept:
                yield from self._reading(index, position, name)
        for position, name in enumerate(operator.outputs):
            if name in self.built.kept:
                yield from self._storing(index, position, name)

    def _cached_moves(
        self, key: tuple[object, ...], name: str, reader: str, make: Callable[[], Iterator[Move]]
    ) -> Iterator[Move]:
        """The moves with at least one collective, made once for all tensors and readers with equal `key`."""
        if key not in self._patterns:
            self._patterns[key] = tuple(move for move in make() if move.steps)
        for move in self._patterns[key]:
            yield Move(
                name, move.source, move.target, reader, move.phase, move.steps, regather=move.regather,
                count=move.count, bucket=move.bucket, kind=move.kind,
            )  # fmt: skip

    def kept_layout(self, name: str) -> Layout:
        return self.built.kept[name].layout(self.choice["kept", name])

    def served_layout(self, name: str) -> Layout:
        """The layout in which readers take the tensor: the kept one if nothing is served."""
        if name not in self.built.served:
            return self.kept_layout(name)
        return self.built.served[name].layout(self.choice["served", name])

    def _storing(self, index: int, position: int, name: str) -> Iterator[Move]:
        space, strategy = self.built.operators[index].strategies, self._strategy(index)
        iterations = self.built.model.iterations(self.built.model.operators[index].makes_in)
        forwards, choice = self.built.recompute.forwards(index), self.choice["kept", name]
        key = ("stored", id(self.built.kept[name]), id(space), position, forwards, iterations, choice, strategy)
        return self._cached_moves(key, name, "", lambda: self._stored(index, position, name, iterations, forwards))

    def _stored(self, index: int, position: int, name: str, iterations: int, forwards: int) -> Iterator[Move]:
        space, strategy = self.built.operators[index].strategies, self._strategy(index)
        made = space.layout("results", position, strategy)
        assert made is not None
        kept, micro = self.kept_layout(name), self.built.options.microbatches
        yield self._move(name, made, kept, "", "forward", "blocking", count=iterations * micro * forwards)
        if self.built.kept[name].kind.has_gradient:
            yield self._move(name, kept, made, "", "backward", "blocking", count=iterations * micro)

    def _serving(self, name: str) -> Iterator[Move]:
        kept, served = self.built.kept[name], self.built.served[name]
        choices = self.choice["kept", name], self.choice["served", name]
        codes = kept.codes[choices[0]], served.codes[choices[1]]
        stays = bool(kept.comes_free(kept.forward[[choices[0]]], served.forward[[choices[1]]])[0, 0])
        regather = self.built.recompute.serves(name) > 1 or name in self.regathered
        iterations = self.built.model.iterations(self.built.flow.lives_in.get(name, ()))
        layouts = self.kept_layout(name), self.served_layout(name)
        last = stays and kept.kind.coalesces and iterations == 1
        return self._cached_moves(
            ("served", id(kept), id(served), regather, iterations, *choices), name, "",
            lambda: self._moves_to_reader(
                name, *layouts, "", codes, regather=regather, iterations=iterations, last=last
            ),
        )  # fmt: skip

    def _reading(self, index: int, position: int, name: str) -> Iterator[Move]:
        operator, space = self.built.model.operators[index], self.built.operators[index].strategies
        node = self.built.source_of_reads(name)
        source = self.built.served.get(name) or self.built.kept[name]
        regather, iterations = self._regathers(index, position, name), self.built.model.iterations(operator.reads_in)
        key = ("read", id(source), id(space), position, regather, iterations, self.choice[node], self._strategy(index))
        return self._cached_moves(key, name, operator.name, lambda: self._read(index, position, name))

    def _read(self, index: int, position: int, name: str) -> Iterator[Move]:
        operator, space = self.built.model.operators[index], self.built.operators[index].strategies
        read = space.layout("operands", position, self._strategy(index))
        assert read is not None
        node = self.built.source_of_reads(name)
        source = self.built.graph.nodes[node]["space"]
        codes = source.codes[self.choice[node]], space.layout_codes("operands", position)[self._strategy(index)]
        stays = bool(source.comes_free(source.forward[[self.choice[node]]], source.forward_state(codes[1])[None])[0, 0])
        regather, iterations = self._regathers(index, position, name), self.built.model.iterations(operator.reads_in)
        last = stays and source.kind.coalesces and iterations == 1
        layouts = self.served_layout(name), read
        yield from self._moves_to_reader(
            name, *layouts, operator.name, codes, regather=regather, iterations=iterations, last=last
        )

    def _regathers(self, index: int, position: int, name: str) -> bool:
        """Whether an operand is re-gathered for its reader's backward."""
        recompute = self.built.recompute
        freed = name in self.regathered and (index, position) in recompute.held
        return freed or recompute.reads(index, position) > 1

    def _moves_to_reader(
        self,
        name: str,
        source: Layout,
        target: Layout,
        reader: str,
        codes: tuple[np.ndarray, np.ndarray],
        *,
        regather: bool,
        iterations: int,
        last: bool,
    ) -> Iterator[Move]:
        """The moves of a value to its reader, possibly again for backward, and of its gradient back; `last`: bucketed
        with those of other weights (see `shardplan.graph.edges.to_read`)."""
        space, micro = self.built.kept[name], iterations * self.built.options.microbatches
        weight = space.kind.traffic == "weight"
        there: MoveKind = "prefetched" if weight else "blocking"
        yield self._move(name, source, target, reader, "forward", there, count=micro)
        if space.kind.has_gradient:
            count = iterations * int(gradient_count(space, codes[0][None], codes[1][None])[0, 0])
            back: MoveKind = "deferred" if weight else "blocking"
            yield self._move(name, target, source, reader, "backward", back, count=count, together=last)
        if regather:
            yield self._move(name, source, target, reader, "backward", there, count=micro, regather=True)

    def updated_layout(self, name: str) -> Layout | None:
        """The layout of a weight's optimizer state, if it differs from the weight's."""
        if name not in self.built.updated:
            return None
        updated = self.built.updated[name].layout(self.choice["updated", name])
        return None if updated == self.kept_layout(name) else updated

    def _updating(self, name: str) -> Iterator[Move]:
        kept, updated = self.kept_layout(name), self.updated_layout(name)
        if updated is not None:
            yield self._move(name, kept, updated, "", "backward", "deferred", count=1, together=True, onward=True)
            yield self._move(name, updated, kept, "", "update", "prefetched", count=1, together=True)

    def _strategy(self, index: int) -> int:
        return self.choice["operator", self.built.model.operators[index].name]

    def _move(
        self,
        name: str,
        source: Layout,
        target: Layout,
        reader: str,
        phase: Phase,
        kind: MoveKind,
        *,
        count: int,
        regather: bool = False,
        together: bool = False,
        onward: bool = False,
    ) -> Move:
        """One move; in backward the gradient moves, unless the value is re-gathered."""
        space = self.built.kept[name]
        value = phase != "backward" or regather
        start, goal = (source.forward, target.forward) if value else (source.gradient, target.gradient)
        direction: Direction = "forward" if value else "backward"
        together = together and self.bucket_bytes > 0
        steps = self._lower(space, start, goal, direction, together=together)
        together = together and any(step.collective.kind in COALESCED for step in steps)
        bucket = None if not together else UNNUMBERED_ONWARD if onward else UNNUMBERED
        return Move(name, start, goal, reader, phase, steps, regather=regather, count=count, bucket=bucket, kind=kind)

    def _lower(
        self, space: TensorSpace, source: Layout, target: Layout, direction: Direction, *, together: bool
    ) -> tuple[CollectiveStep, ...]:
        key = (id(space), source, target, direction, self.bucket_bytes if together else 0.0)
        if key not in self._lowered:
            self._lowered[key] = self._lower_anew(space, source, target, direction, together=together)
        return self._lowered[key]

    def _lower_anew(
        self, space: TensorSpace, source: Layout, target: Layout, direction: Direction, *, together: bool
    ) -> tuple[CollectiveStep, ...]:
        if source == target:
            return ()
        kind, prices, mesh = space.kind, self.built.prices, self.built.cluster.mesh
        size_bytes = kind.size_bytes if direction == "forward" else kind.gradient_bytes
        ways = min(shard_count(layout, mesh) for layout in (source, target))
        bucket_bytes = self.bucket_bytes * ways if together else 0.0
        seconds = prices.one(bucket_bytes)

        def price(collective: Collective) -> float:
            return seconds(collective, float(size_bytes)) + STEP_S

        partial = {p for p in (*source.placements, *target.placements) if p.kind == "P"} or {P()}
        is_wide = len(mesh) > _ENDS_AXES and space.nearby is not None and partial == {P()}

        def legal(layout: Layout) -> bool:
            return is_legal(layout, mesh, kind.shape) and (not is_wide or layout in space.offered)

        shards = (*kind.shards, *partial) if len(mesh) <= _ANY_LAYOUT_AXES or is_wide else partial
        steps = lower(mesh, source, target, price, shards=shards, legal=legal)
        return tuple(_emitted(one.collective, size_bytes, seconds(one.collective, float(size_bytes))) for one in steps)


def _emitted(collective: Collective, size_bytes: int, seconds: float) -> CollectiveStep:
    payload = collective.share * Fraction(size_bytes)
    return CollectiveStep(collective, -(-payload.numerator // payload.denominator), round(seconds * NS_PER_S))
