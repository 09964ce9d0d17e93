"""A cost graph split into one small problem per unit of a chain.

The value between two units is a node of both: its cost belongs to the unit that makes it, and an added cost of reading
it (`AddedCosts.fed`) to the unit behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.pipeline.cut_points import Chain
from shardplan.solve.problem import Costs, Edge


@dataclass(frozen=True)
class AddedCosts:
    """Extra costs of choices of some nodes; equal ones are the same array. `fed`: of borders, added to the unit that
    receives the value."""

    own: Mapping[Node, Costs] = field(default_factory=dict)
    fed: Mapping[Node, Costs] = field(default_factory=dict)


@dataclass(frozen=True)
class UnitProblem:
    """One unit: costs and edges over `nodes`, numbered from 0; the first is the border that it receives (`fed`), if
    any; `ends`: numbers of its border nodes."""

    nodes: tuple[Node, ...]
    fed: bool
    costs: tuple[Costs, ...]
    edges: tuple[Edge, ...]
    ends: tuple[int, ...]

    def added_costs(self, added: AddedCosts) -> tuple[Costs | None, ...]:
        """The added cost of each node, None without one."""
        return tuple(
            (added.fed if self.fed and not number else added.own).get(node) for number, node in enumerate(self.nodes)
        )

    def key(self, added: AddedCosts) -> tuple[object, ...]:
        """Equal for units that are equal under these added costs."""
        joined = tuple((edge.u, edge.v, id(edge.table)) for edge in self.edges)
        return (tuple(map(id, self.costs)), joined, self.ends, tuple(map(id, self.added_costs(added))))


def unit_problems(built: CostGraph, chain: Chain) -> list[UnitProblem]:
    """The units of `chain`. Nodes that units share besides the borders are chosen in each unit separately, at the
    lowest price."""
    home = homes(built, chain)
    nodes: list[list[Node]] = [[] for _ in chain.units]
    for node in built.graph.nodes:
        unit = home.get(node)
        if unit is not None:
            nodes[unit].append(node)
    edges: list[list[tuple[Node, Node, Costs]]] = [[] for _ in chain.units]
    alone: dict[Node, list[Costs]] = {}
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
    return [_unit_problem(built, chain, unit, nodes[unit], edges[unit], alone, added) for unit in range(len(chain))]


def _unit_problem(
    built: CostGraph,
    chain: Chain,
    unit: int,
    own: Sequence[Node],
    edges: Sequence[tuple[Node, Node, Costs]],
    alone: Mapping[Node, Sequence[Costs]],
    added: dict[bytes, Costs],
) -> UnitProblem:
    before: list[Node] = [("kept", chain.borders[unit - 1])] if unit else []
    nodes = (*before, *own)
    number = {node: place for place, node in enumerate(nodes)}
    costs = []
    for node in nodes:
        cost = built.graph.nodes[node]["cost"]
        total = np.zeros(len(cost)) if node in before else np.sum([cost, *alone.get(node, ())], axis=0)
        costs.append(added.setdefault(total.tobytes(), total))
    ends = [number[node] for node in before]
    if unit < len(chain.borders):
        ends.append(number["kept", chain.borders[unit]])
    joined = tuple(Edge(number[source], number[target], table) for source, target, table in edges)
    return UnitProblem(nodes, bool(before), tuple(costs), joined, tuple(ends))


def homes(built: CostGraph, chain: Chain) -> dict[Node, int]:
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
