"""What a run of units costs on one submesh, for every layout of the values at its two ends, by (min, +) products.

Units meet in one value each. With A_u[i, j] the least cost of unit u when the value before it is kept in layout i and
the one behind it in layout j, a run costs the (min, +) product of the matrices of its units. Equal units have equal
matrices, and runs of equal units equal products: 80 decoder layers take some 160 small products.

What units share beside that value (masks, tied weights) is chosen in each by itself here, and memory is left out; so
these costs are lower bounds on what a run takes, and are what it takes where nothing is shared and memory is plenty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.layout.layout import Layout
from shardplan.solve.eliminate import eliminate
from shardplan.solve.graph import Contradiction, Graph, Take, build
from shardplan.solve.minplus import min_plus
from shardplan.solve.problem import Costs, Edge, Problem, Usage
from shardplan.solve.tables import NONE, Tables
from shardplan.stages.cut import Chain, needed_for

_LARGEST_TABLE = 1 << 24
Factor = tuple[tuple[int, ...], Costs]
"""Variables, and a table with one dim for each."""


@dataclass(frozen=True)
class _Piece:
    """One unit as a small problem: costs and edges over nodes numbered from 0; `ends`: numbers of its border nodes."""

    costs: tuple[Costs, ...]
    edges: tuple[Edge, ...]
    ends: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        joined = tuple((edge.u, edge.v, id(edge.table)) for edge in self.edges)
        return (tuple(map(id, self.costs)), joined, self.ends)


@dataclass
class RunCosts:
    """Costs, in picoseconds per step, of all runs of units of a chain on the submesh of a cost graph.

    `charges`: what choices of some nodes cost besides. `layouts[b]`: the layouts that border b may be handed over in,
    none of them partial.
    """

    built: CostGraph
    chain: Chain
    charges: Mapping[Node, Costs] = field(default_factory=dict)
    layouts: tuple[tuple[Layout, ...], ...] = field(init=False)
    _matrices: list[Costs] = field(init=False)
    _kinds: list[int] = field(init=False)
    _handed: list[NDArray[np.int64]] = field(init=False)
    _own: Costs = field(init=False)
    _products: dict[tuple[tuple[int, int], ...], Costs] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._handed = [_whole(self.built, border) for border in self.chain.borders]
        spaces = [self.built.kept[border] for border in self.chain.borders]
        self.layouts = tuple(
            tuple(space.layout(int(choice)) for choice in handed)
            for space, handed in zip(spaces, self._handed, strict=True)
        )
        self._own = _work_for_itself(self.built, self.chain)
        seen: dict[tuple[object, ...], int] = {}
        self._matrices, self._kinds = [], []
        for piece in _pieces(self.built, self.chain, self.charges):
            if piece.key not in seen:
                seen[piece.key] = len(self._matrices)
                self._matrices.append(_matrix(piece))
            self._kinds.append(seen[piece.key])

    def of(self, first: int, last: int) -> Costs:
        """Units `first` .. `last` - 1, shape (layouts of the border before, of the one behind); 1 where there is
        none."""
        product: Costs = self._product(first, last) + self._own[first:last].max()
        if first:
            product = product[self._handed[first - 1]]
        if last < len(self.chain):
            product = product[:, self._handed[last - 1]]
        return product

    def least(self, first: int, last: int) -> float:
        """The least entry of `of`."""
        return float(self.of(first, last).min())

    def _product(self, first: int, last: int) -> Costs:
        runs = _run_lengths(self._kinds[first:last])
        if runs not in self._products:
            end = self._matrices[self._kinds[last - 1]]
            self._products[runs] = end if last - first == 1 else min_plus(self._product(first, last - 1), end)
        return self._products[runs]


def _work_for_itself(built: CostGraph, chain: Chain) -> Costs:
    """Per unit, the least cost of what it needs that depends on no weight; a run needs it once."""
    least = [float(data["cost"].min()) for _, data in built.graph.nodes(data=True)]
    cost = {node: value for node, value in zip(built.graph.nodes, least, strict=True) if node[0] == "operator"}
    operators = built.model.operators
    return np.array(
        [sum(cost["operator", operators[index].name] for index in needed_for(chain, set(unit))) for unit in chain.units]
    )


def _run_lengths(kinds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: list[list[int]] = []
    for kind in kinds:
        if found and found[-1][0] == kind:
            found[-1][1] += 1
        else:
            found.append([kind, 1])
    return tuple((kind, count) for kind, count in found)


def _whole(built: CostGraph, border: str) -> NDArray[np.int64]:
    """The kept choices of a border in which nothing is partial, neither value nor gradient."""
    space = built.kept[border]
    count = len(space.kind.shards)
    chosen: NDArray[np.int64] = np.flatnonzero((space.codes <= count).all(axis=1))
    return chosen


def _pieces(built: CostGraph, chain: Chain, charges: Mapping[Node, Costs]) -> list[_Piece]:
    """The units as problems; the cost of a border counts to the unit that makes it."""
    home = _homes(built, chain)
    nodes: list[list[Node]] = [[] for _ in chain.units]
    for node in built.graph.nodes:
        unit = home.get(node)
        if unit is not None:
            nodes[unit].append(node)
    edges: list[list[tuple[Node, Node, Costs]]] = [[] for _ in chain.units]
    alone: dict[Node, list[Costs]] = {node: [charge] for node, charge in charges.items() if node in home}
    shared: dict[tuple[int, int], Costs] = {}
    borders = {("kept", border): unit for unit, border in enumerate(chain.borders)}
    for _, _, data in built.graph.edges(data=True):
        source, target, table = data["source"], data["target"], data["table"]
        units = [home.get(source), home.get(target)]
        if source in borders and units[1] == borders[source] + 1:
            units[0] = units[1]
        if units[0] is not None and units[0] == units[1]:
            edges[units[0]].append((source, target, table))
            continue
        for node, axis in ((source, 1), (target, 0)):
            if home.get(node) is not None:
                key = (id(table), axis)
                if key not in shared:
                    shared[key] = table.min(axis=axis)
                alone.setdefault(node, []).append(shared[key])
    added: dict[bytes, Costs] = {}
    return [_piece(built, chain, unit, nodes[unit], edges[unit], alone, added) for unit in range(len(chain))]


def _piece(
    built: CostGraph,
    chain: Chain,
    unit: int,
    nodes: Sequence[Node],
    edges: Sequence[tuple[Node, Node, Costs]],
    alone: Mapping[Node, Sequence[Costs]],
    added: dict[bytes, Costs],
) -> _Piece:
    before: list[Node] = [("kept", chain.borders[unit - 1])] if unit else []
    number = {node: place for place, node in enumerate((*before, *nodes))}
    costs = []
    for node in number:
        own = built.graph.nodes[node]["cost"]
        total = np.zeros(len(own)) if node in before else np.sum([own, *alone.get(node, ())], axis=0)
        costs.append(added.setdefault(total.tobytes(), total))
    ends = [number[node] for node in before]
    if unit < len(chain.borders):
        ends.append(number["kept", chain.borders[unit]])
    joined = tuple(Edge(number[source], number[target], table) for source, target, table in edges)
    return _Piece(tuple(costs), joined, tuple(ends))


def _homes(built: CostGraph, chain: Chain) -> dict[Node, int]:
    """The unit that every node belongs to; nodes that several units share have none."""
    unit_of = {built.model.operators[index].name: unit for unit, run in enumerate(chain.units) for index in run}
    places = [unit_of.get(operator.name) for operator in built.model.operators]
    home: dict[Node, int] = {("operator", name): unit for name, unit in unit_of.items()}
    borders = {border: unit for unit, border in enumerate(chain.borders)}
    for node in built.graph.nodes:
        kind, name = node
        if kind == "operator":
            continue
        readers = {places[reader] for reader, _ in built.flow.readers.get(name, ())}
        maker = built.flow.makers.get(name)
        if name in borders and kind == "kept":
            home[node] = borders[name]
        elif maker is not None and places[maker[0]] is None:
            continue
        elif name in borders or maker is None:
            if len(readers) == 1 and None not in readers:
                home[node] = next(unit for unit in readers if unit is not None)
        else:
            made_in = places[maker[0]]
            assert made_in is not None
            home[node] = made_in
    return home


def _matrix(piece: _Piece) -> Costs:
    """Least cost for every pair of choices of the two ends, shape (before, behind)."""
    kept = tuple(Usage(end, 0, 1, np.arange(len(piece.costs[end]), dtype=np.int64)) for end in piece.ends)
    shape = [len(piece.costs[end]) for end in piece.ends]
    try:
        graph = build(Problem(piece.costs, piece.edges, kept, limit=1 << 40), Tables())
        eliminate(graph)
        graph.settle()
        table = _contracted(graph, piece.ends) / graph.scale
    except Contradiction:
        return np.full(_two_sided(shape, piece), np.inf)
    out = np.full(shape, np.inf)
    where = [_labels(graph, end, size) for end, size in zip(piece.ends, shape, strict=True)]
    out[np.ix_(*[original for original, _ in where])] = table[np.ix_(*[label for _, label in where])]
    return out.reshape(_two_sided(shape, piece))


def _two_sided(shape: Sequence[int], piece: _Piece) -> tuple[int, int]:
    """Where a unit has one end only, the other side of its matrix has one place."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if not shape:
        return 1, 1
    return (shape[0], 1) if piece.ends[0] == 0 else (1, shape[0])


def _labels(graph: Graph, node: int, size: int) -> tuple[list[int], list[int]]:
    """The original choices of a node that are left, and what they are called now."""
    left = list(range(size))
    for step in graph.trail:
        if isinstance(step, Take) and step.node == node:
            left = [left[row] for row in step.rows]
    return left, list(range(len(left)))


def _contracted(graph: Graph, ends: Sequence[int]) -> Costs:
    """The least cost of what elimination left, for every choice of the ends: variables are minimised out one by one,
    the cheapest first. Where that takes too large a table, each of its parts is minimised by itself: a lower bound."""
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
        groups = [touching] if _size(graph, scope) <= _LARGEST_TABLE else [[factor] for factor in touching]
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
