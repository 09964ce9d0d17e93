"""Costs of runs of units on one submesh for every layout of the values at both ends, by (min, +) matrix products.

Units meet in one value each. With A_u[i, j] the least cost of unit u when the value before it is kept in layout i and
the one behind it in layout j, a run costs the (min, +) product of the matrices of its units. Equal units have equal
matrices, and runs of equal units equal products: 80 decoder layers take some 160 small products.

Nodes that units share beside that value (masks, tied weights) are chosen in each unit separately, and memory is left
out. So these costs are lower bounds, exact where nothing is shared and memory does not bind.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph
from shardplan.interruption import NEVER, Deadline
from shardplan.layout.layout import Layout
from shardplan.pipeline.bounds.units import AddedCosts, UnitProblem, unit_problems
from shardplan.pipeline.constants import LARGEST_TABLE
from shardplan.pipeline.cut_points import Chain, needed_for
from shardplan.solve.problem import Costs, Problem, Usage
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import Contradiction, Graph, Take, build
from shardplan.solve.reduce.minplus import min_plus
from shardplan.solve.reduce.tables import NONE, Tables

_NOTHING = -1
Factor = tuple[tuple[int, ...], Costs]
"""Variables, and a table with one dim for each."""


@dataclass
class RunCosts:
    """Costs, in picoseconds per step, of all runs of units of a chain on the submesh of a cost graph.

    `added`: extra costs of choices of some nodes. `layouts[b]`: the layouts in which border b may be sent, none of
    them partial; equal ones are the same object. Costs of a unit are computed on first use. At the deadline, what
    computes them raises `GivenUpError`.
    """

    built: CostGraph
    chain: Chain
    deadline: Deadline = NEVER
    added: AddedCosts = field(init=False, default_factory=AddedCosts)
    layouts: tuple[tuple[Layout, ...], ...] = field(init=False)
    _units: Sequence[UnitProblem] = field(init=False)
    _handed: list[NDArray[np.int64]] = field(init=False)
    _own: Costs = field(init=False)
    _kinds: list[int] = field(init=False)
    _like: list[UnitProblem] = field(init=False)
    _matrices: dict[int, Costs] = field(init=False)
    _without_added: dict[tuple[object, ...], Costs] = field(init=False, default_factory=dict)
    _products: list[Costs] = field(init=False)
    _longer: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        self._units = unit_problems(self.built, self.chain)
        alike: dict[bytes, NDArray[np.int64]] = {}
        whole = [_whole(self.built, border) for border in self.chain.borders]
        self._handed = [alike.setdefault(handed.tobytes(), handed) for handed in whole]
        shared: dict[tuple[int, int], tuple[Layout, ...]] = {}
        for border, handed in zip(self.chain.borders, self._handed, strict=True):
            space = self.built.kept[border]
            if (id(space), id(handed)) not in shared:
                shared[id(space), id(handed)] = tuple(space.layout(int(choice)) for choice in handed)
        self.layouts = tuple(
            shared[id(self.built.kept[border]), id(handed)]
            for border, handed in zip(self.chain.borders, self._handed, strict=True)
        )
        self._own = _work_for_itself(self.built, self.chain)
        self.set_added(AddedCosts())

    def with_added(self, added: AddedCosts) -> RunCosts:
        """The costs when choices of some nodes cost more."""
        dearer = copy(self)
        dearer.set_added(added)
        return dearer

    def set_added(self, added: AddedCosts) -> None:
        """Discards all costs; from now on these are added."""
        self.added = added
        self._kinds, self._like, self._matrices, self._products, self._longer = [], [], {}, [], {}
        seen: dict[tuple[object, ...], int] = {}
        for unit in self._units:
            kind = seen.setdefault(unit.key(added), len(seen))
            self._kinds.append(kind)
            if kind == len(self._like):
                self._like.append(unit)

    def of(self, first: int, last: int) -> Costs:
        """Costs of units `first` .. `last` - 1, shape (layouts of the border before, of the one behind); size 1 where
        there is no border."""
        product = _NOTHING
        for kind in self._kinds[first:last]:
            product = self._behind(product, kind)
        costs: Costs = self._between(product, first, last) + self._own[first:last].max()
        return costs

    def kinds(self, first: int, last: int) -> tuple[int, ...]:
        """Numbers that are equal for equal units."""
        return tuple(self._kinds[first:last])

    def least(self, first: int, last: int) -> float:
        """The least entry of `of`."""
        return float(self.of(first, last).min())

    def leasts(self) -> Costs:
        """`least` of all runs, shape (first, last); `inf` where there is no run."""
        count = len(self.chain)
        table = np.full((count + 1, count + 1), np.inf)
        known: dict[tuple[int, int, int], float] = {}
        for first in range(count):
            product, own = _NOTHING, 0.0
            for last in range(first + 1, count + 1):
                product = self._behind(product, self._kinds[last - 1])
                own = max(own, float(self._own[last - 1]))
                key = (
                    product,
                    id(self._handed[first - 1]) if first else 0,
                    id(self._handed[last - 1]) if last < count else 0,
                )
                if key not in known:
                    known[key] = float(self._between(product, first, last).min())
                table[first, last] = known[key] + own
        return table

    def _between(self, product: int, first: int, last: int) -> Costs:
        """A product for the layouts in which its ends may be handed over."""
        costs = self._products[product]
        if first:
            costs = costs[self._handed[first - 1]]
        if last < len(self.chain):
            costs = costs[:, self._handed[last - 1]]
        return costs

    def _behind(self, product: int, kind: int) -> int:
        """Number of the product of another (`_NOTHING`: of no units) and one more unit of that kind."""
        key = (product, kind)
        if key not in self._longer:
            self.deadline.check()
            if kind not in self._matrices:
                self._matrices[kind] = self._matrix(self._like[kind])
            end = self._matrices[kind]
            self._longer[key] = len(self._products)
            self._products.append(end if product == _NOTHING else min_plus(self._products[product], end))
        return self._longer[key]

    def _matrix(self, unit: UnitProblem) -> Costs:
        """Units whose nodes have no added cost cost the same under all of them."""
        if any(extra is not None for extra in unit.added_costs(self.added)):
            return _matrix(unit, self.added)
        key = unit.key(self.added)
        if key not in self._without_added:
            self._without_added[key] = _matrix(unit, self.added)
        return self._without_added[key]


def _work_for_itself(built: CostGraph, chain: Chain) -> Costs:
    """Per unit, the least cost of its operators that depend on no weight; a run needs them once."""
    least = [float(data["cost"].min()) for _, data in built.graph.nodes(data=True)]
    cost = {node: value for node, value in zip(built.graph.nodes, least, strict=True) if node[0] == "operator"}
    operators = built.model.operators
    return np.array(
        [sum(cost["operator", operators[index].name] for index in needed_for(chain, set(unit))) for unit in chain.units]
    )


def _whole(built: CostGraph, border: str) -> NDArray[np.int64]:
    """The kept choices of a border in which nothing is partial, neither value nor gradient."""
    space = built.kept[border]
    count = len(space.kind.shards)
    chosen: NDArray[np.int64] = np.flatnonzero((space.codes <= count).all(axis=1))
    return chosen


def _matrix(unit: UnitProblem, added: AddedCosts) -> Costs:
    """Least cost for every pair of choices of the two ends, shape (before, behind)."""
    both = zip(unit.costs, unit.added_costs(added), strict=True)
    costs = tuple(cost if extra is None else cost + extra for cost, extra in both)
    kept = tuple(Usage(end, 0, 1, np.arange(len(unit.costs[end]), dtype=np.int64)) for end in unit.ends)
    shape = [len(unit.costs[end]) for end in unit.ends]
    try:
        graph = build(Problem(costs, unit.edges, kept, limit=1 << 40), Tables())
        eliminate(graph)
        graph.propagate()
        table = _contracted(graph, unit.ends) / graph.scale
    except Contradiction:
        return np.full(_two_sided(shape, unit), np.inf)
    out = np.full(shape, np.inf)
    where = [_labels(graph, end, size) for end, size in zip(unit.ends, shape, strict=True)]
    out[np.ix_(*[original for original, _ in where])] = table[np.ix_(*[label for _, label in where])]
    return out.reshape(_two_sided(shape, unit))


def _two_sided(shape: Sequence[int], unit: UnitProblem) -> tuple[int, int]:
    """Where a unit has one end only, the other side of its matrix has one place."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if not shape:
        return 1, 1
    return (shape[0], 1) if unit.ends[0] == 0 else (1, shape[0])


def _labels(graph: Graph, node: int, size: int) -> tuple[list[int], list[int]]:
    """The original choices of a node that are left, and what they are called now."""
    left = list(range(size))
    for step in graph.postsolve:
        if isinstance(step, Take) and step.node == node:
            left = [left[row] for row in step.rows]
    return left, list(range(len(left)))


def _contracted(graph: Graph, ends: Sequence[int]) -> Costs:
    """The least cost of what elimination left, for every choice of the ends: variables are minimised out one by one,
    the cheapest first. If that needs too large a table, each of its parts is minimised separately: a lower bound."""
    arrays = graph.tables.arrays
    factors: list[Factor] = []
    for node in graph.alive:
        if graph.costs[node] != NONE:
            factors.append(((node,), arrays[graph.costs[node]]))
        factors += [((node, other), arrays[m]) for other, m in graph.neighbours[node].items() if node < other]
    inner = [node for node in graph.alive if node not in ends]
    while inner:
        node = min(inner, key=lambda n: (_size(graph, _scope(factors, n)), n))
        inner.remove(node)
        touching = [factor for factor in factors if node in factor[0]]
        factors = [factor for factor in factors if node not in factor[0]]
        scope = _scope(touching, node)
        groups = [touching] if _size(graph, scope) <= LARGEST_TABLE else [[factor] for factor in touching]
        for group in groups:
            variables = tuple(v for v in _scope(group, node) if v != node)
            factors.append((variables, _joined(graph, group, (*variables, node)).min(axis=-1)))
    return _joined(graph, factors, tuple(ends)) + graph.const


def _scope(factors: Sequence[Factor], node: int) -> tuple[int, ...]:
    return tuple(sorted({v for variables, _ in factors if node in variables for v in variables}))


def _size(graph: Graph, variables: Sequence[int]) -> float:
    return float(np.prod([float(graph.sizes[v]) for v in variables]))


def _joined(graph: Graph, factors: Sequence[Factor], variables: tuple[int, ...]) -> Costs:
    """The sum of tables over all of `variables`, in that order."""
    total = np.zeros([graph.sizes[v] for v in variables])
    for names, table in factors:
        order = sorted(range(len(names)), key=lambda place: variables.index(names[place]))
        shape = [graph.sizes[v] if v in names else 1 for v in variables]
        total = total + np.transpose(table, order).reshape(shape)
    return total
