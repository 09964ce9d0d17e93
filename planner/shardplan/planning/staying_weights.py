"""Gathered weights under a memory limit: that they stay from forward to backward is chosen together with the layouts.

Two problems with the same nodes and edges, one as if all weights stayed and one as if all were gathered again for
backward, are combined: an operator that reads a weight, and a copy that serves several readers, has its choices twice,
first with the weight staying, which takes memory in between. Of an operator with several weights, this is chosen for
the largest; the others stay and take no memory here. So costs and memory are at most those of a plan, and bounds hold;
the judge (`shardplan.plan.step.fitting`) decides anew what stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from shardplan.graph.build import CostGraph, Join, Node
from shardplan.graph.memory import MemoryRows
from shardplan.planning.reduction import Assignment, Problems, Reduction
from shardplan.solve.problem import Bytes, Costs, Edge, Problem, Usage

Array = TypeVar("Array", Costs, Bytes)
Sizes = tuple[int, ...]
"""By node, the number of its layouts or strategies."""
Staying = Mapping[Node, tuple[str, Bytes, int, int]]
"""By node that decides whether a weight stays: its name, its bytes by choice, and the moments in which it stays."""


class StayingWeights(Reduction[Sizes]):
    """The reduction that makes it a choice which weights stay; if that is not open, the problem stays the same."""

    def apply(self, problems: Problems) -> tuple[Problems, Sizes]:
        if not problems.regathered:
            return problems, ()
        first = problems.sums[0]
        combine = _Combination(first.built, first.memory)
        sums = [
            stay.having(combine.problem(stay.problem, regather.problem))
            for stay, regather in zip(problems.sums, problems.regathered, strict=True)
        ]
        return Problems(tuple(sums)), tuple(cost.size for cost in first.problem.costs)

    def invert(self, assignment: Assignment, data: Sizes) -> Assignment:
        if not data:
            return assignment
        layouts = tuple([choice % size for choice, size in zip(assignment.choices, data, strict=True)])
        return replace(assignment, choices=layouts)


def staying(built: CostGraph, memory: MemoryRows) -> Staying:
    """The weights that may stay gathered, by the node that decides it."""
    found: dict[Node, tuple[str, Bytes, int, int]] = {}
    largest: dict[int, tuple[int, int, str]] = {}
    for index, position in sorted(built.recompute.held):
        name = built.model.operators[index].inputs[position]
        if name in built.served:
            space, last = built.served[name], built.flow.last_reader(name)
            span = last + 1, memory.time.backward(last)
            found["served", name] = name, space.state_bytes[space.forward], *span
        elif name in built.kept:
            ranked = (built.kept[name].kind.size_bytes, -position, name)
            largest[index] = max(ranked, largest.get(index, ranked))
    for index, (_, position, name) in largest.items():
        read = built.operators[index].strategies.reads[-position]
        if read is not None:
            node = ("operator", built.model.operators[index].name)
            amount = built.kept[name].state_bytes[read[0]]
            found[node] = name, amount, index + 1, memory.time.backward(index)
    return found


@dataclass(frozen=True)
class _Pair:
    """Tables of an edge if weights stay and if they are gathered again, and which end decides; `doubled`: which ends
    have their choices twice."""

    stay: Costs
    regather: Costs
    by: int | None
    doubled: tuple[bool, bool]

    def table(self) -> Costs:
        repeats = tuple(2 if two else 1 for two in self.doubled)
        if self.by is None:
            return np.tile(self.stay, repeats)
        other = (repeats[0], 1) if self.by else (1, repeats[1])
        return np.concatenate([np.tile(self.stay, other), np.tile(self.regather, other)], axis=self.by)


class _Combination:
    """Combines problems of one cost graph; equal arrays stay the same objects."""

    def __init__(self, built: CostGraph, memory: MemoryRows) -> None:
        self.built = built
        self.staying = staying(built, memory)
        self.nodes = tuple(node for node, _ in built.node_data)
        self.doubled = [node in self.staying for node in self.nodes]
        self._deciding = [self._decides(join) for join in built.joins]
        self._tables: dict[tuple[object, ...], Costs] = {}
        self._arrays: dict[tuple[object, ...], Any] = {}

    def problem(self, stay: Problem, regather: Problem) -> Problem:
        """The combined problem of one sum."""
        pairs = zip(stay.edges, regather.edges, self._deciding, strict=True)
        return replace(
            stay,
            costs=tuple(self._repeated(cost, v) for v, cost in enumerate(stay.costs)),
            edges=tuple(Edge(one.u, one.v, self._table(one, other, by)) for one, other, by in pairs),
            usages=(*(use._replace(amount=self._repeated(use.amount, use.node)) for use in stay.usages), *self._held()),
        )

    def _decides(self, join: Join) -> int | None:
        """Which end of an edge decides between its two tables."""
        source, target, _ = join
        if source[0] not in ("kept", "served") or target[0] == "updated":
            return None
        for end, node in ((1, target), (0, source)):
            if node in self.staying and self.staying[node][0] == source[1]:
                return end
        return None

    def _table(self, one: Edge, other: Edge, by: int | None) -> Costs:
        doubled = self.doubled[one.u], self.doubled[one.v]
        if not any(doubled):
            return one.table
        key = (id(one.table), id(other.table), by, doubled)
        if key not in self._tables:
            self._tables[key] = _Pair(one.table, other.table, by, doubled).table()
        return self._tables[key]

    def _repeated(self, array: Array, node: int) -> Array:
        if not self.doubled[node]:
            return array
        key = ("doubled", id(array))
        if key not in self._arrays:
            self._arrays[key] = np.tile(array, 2)
        repeated: Array = self._arrays[key]
        return repeated

    def _held(self) -> list[Usage]:
        """Memory of weights that stay."""
        usages = []
        for number, node in enumerate(self.nodes):
            if node in self.staying:
                name, each, begin, end = self.staying[node]
                amount = self.built.model.in_all_copies(name, each)
                key = ("held", amount.tobytes())
                if key not in self._arrays:
                    self._arrays[key] = np.concatenate([amount, np.zeros_like(amount)])
                if end > begin:
                    usages.append(Usage(number, begin, end, self._arrays[key]))
        return usages
