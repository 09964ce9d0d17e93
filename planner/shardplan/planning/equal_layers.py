"""Equal layers planned alike: a reduction in which every copy of a repeated block takes the choices of the first copy.

The reduced problem has one layer and what is outside of the layers. The costs of all copies are summed, and so are the
tables between the same two nodes. Its bound holds only for plans with equal layers; its assignments and multipliers are
good starting points for the whole problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.problem import node_order
from shardplan.planning.reduction import Assignment, LayoutProblem, Problems, Reduction
from shardplan.solve.linear_functions import Choices, Functions
from shardplan.solve.problem import Costs, Edge, LinearSum, Maximum, Problem

Places = tuple[int, ...]
"""For every node the number of its representative; empty if each node represents itself."""
View = Callable[[Costs], Costs]
"""An array unchanged, transposed, or its diagonal."""


@dataclass(frozen=True)
class EqualLayers(Reduction[Places]):
    """One choice for all copies of a node. The problem stays as it is if more than the share `most_left` of its nodes
    would remain."""

    most_left: float

    def apply(self, problems: Problems) -> tuple[Problems, Places]:
        first = problems.sums[0]
        sizes = [cost.size for cost in first.problem.costs]
        places = first_copies(first.built, sizes) if self.most_left else ()
        if len(set(places)) > self.most_left * len(places) or not places:
            return problems, ()
        return Problems((first.having(folded(first.problem, places)),)), places

    def invert(self, assignment: Assignment, data: Places) -> Assignment:
        if not data:
            return assignment
        return replace(assignment, choices=tuple([assignment.choices[place] for place in data]))


@dataclass(frozen=True)
class MergedCopies:
    """A problem in which the copies of a block may be merged: its costs as `functions` of assignments of one copy.
    `places`: as above, empty if no copies are merged."""

    places: Places
    functions: Functions

    @classmethod
    def of(cls, whole: LayoutProblem, *, merges: bool) -> MergedCopies:
        """The problem with its copies merged, if it `merges` any."""
        places = first_copies(whole.built, [cost.size for cost in whole.problem.costs]) if merges else ()
        return cls(places, Functions.of(folded(whole.problem, places)) if places else whole.functions)

    def merged(self, choices: Choices) -> Choices:
        """An assignment that treats all copies alike, as one of one copy."""
        of_place = dict(zip(self.places, choices, strict=True)) if self.places else {}
        return tuple([of_place[place] for place in range(len(of_place))]) if self.places else choices

    def unmerged(self, choices: Choices) -> Choices:
        """An assignment of one copy, as one of all copies."""
        return tuple([choices[place] for place in self.places]) if self.places else choices


def first_copies(built: CostGraph, sizes: Sequence[int]) -> Places:
    """For every node of a problem of `built`, the corresponding node in the first copy of its block, or the node
    itself. `sizes`: the number of choices of each node in that problem."""
    numbers = built.node_numbers
    leader = list(range(len(numbers)))
    for one, other in _corresponding(built):
        if one in numbers and other in numbers and _same_choices(built, one, other):
            first, later = numbers[one], numbers[other]
            if sizes[first] == sizes[later]:
                leader[later] = leader[first]
    place = {node: number for number, node in enumerate(sorted(set(leader)))}
    return tuple([place[node] for node in leader])


def unlike(built: CostGraph, choice: Mapping[Node, int]) -> tuple[Node, Node] | None:
    """A node and its copy that an assignment treats differently, or `None`."""
    found: dict[int, Node] = {}
    order = node_order(built)
    for node, place in zip(order, first_copies(built, [1] * len(order)), strict=True):
        first = found.setdefault(place, node)
        if choice[first] != choice[node]:
            return first, node
    return None


def _corresponding(built: CostGraph) -> Iterator[tuple[Node, Node]]:
    """Pairs of a node in the first copy of a block and the corresponding node in another copy: operators, their
    results, and the operands that only they read."""
    operators, makers = built.model.operators, built.flow.makers
    for block in built.model.blocks:
        for copy in block.copies[1:]:
            for first, later in zip(block.copies[0], copy, strict=True):
                one, other = operators[first], operators[later]
                yield ("operator", one.name), ("operator", other.name)
                given = zip(one.inputs, other.inputs, strict=True)
                outside = [pair for pair in given if pair[0] not in makers and pair[1] not in makers]
                for names in (*zip(one.outputs, other.outputs, strict=True), *outside):
                    if names[0] != names[1]:
                        yield from (((kind, names[0]), (kind, names[1])) for kind in built.places)


def _same_choices(built: CostGraph, one: Node, other: Node) -> bool:
    """Whether the choices of two nodes mean the same. Equal operators, and tensors of one kind, share one object."""
    if one[0] == "operator":
        first, second = (built.operators[built.number[name]].strategies for _, name in (one, other))
        return first is second
    return built.places[one[0]][one[1]] is built.places[other[0]][other[1]]


def folded(problem: Problem, places: Places) -> Problem:
    """The problem in which all nodes with the same representative take one choice. Equal tables stay the same
    objects."""
    fold = _Fold(problem, places)
    tables = [edge.table for edge in problem.edges]
    return replace(
        problem,
        costs=fold.costs(problem.costs, tables),
        edges=tuple(Edge(*ends, table) for ends, table in zip(fold.between, fold.tables(tables), strict=True)),
        usages=tuple(usage._replace(node=places[usage.node]) for usage in problem.usages),
        maxima=tuple(Maximum(tuple(map(fold.sum, maximum.sums))) for maximum in problem.maxima),
    )


class _Fold:
    """Sums the costs of merged nodes and the tables of merged edges. `between`: edges by their two ends; `inside`:
    edges whose ends are the same node now, whose tables' diagonals become costs."""

    def __init__(self, problem: Problem, places: Places) -> None:
        self.members: list[list[int]] = [[] for _ in range(max(places, default=-1) + 1)]
        for node, place in enumerate(places):
            self.members[place].append(node)
        self.between: dict[tuple[int, int], list[tuple[int, bool]]] = {}
        self.inside: dict[int, list[int]] = {}
        for number, edge in enumerate(problem.edges):
            u, v = places[edge.u], places[edge.v]
            if u == v:
                self.inside.setdefault(u, []).append(number)
            else:
                self.between.setdefault((min(u, v), max(u, v)), []).append((number, u > v))
        self._known: dict[tuple[object, ...], Costs] = {}

    def sum(self, one: LinearSum) -> LinearSum:
        return LinearSum(self.costs(one.costs, one.tables), self.tables(one.tables))

    def costs(self, rows: Sequence[Costs], tables: Sequence[Costs]) -> tuple[Costs, ...]:
        return tuple(
            self._added(
                [
                    *((rows[node], np.asarray) for node in nodes),
                    *((tables[edge], np.diagonal) for edge in self.inside.get(place, ())),
                ]
            )
            for place, nodes in enumerate(self.members)
        )

    def tables(self, tables: Sequence[Costs]) -> tuple[Costs, ...]:
        return tuple(
            self._added([(tables[edge], np.transpose if turned else np.asarray) for edge, turned in edges])
            for edges in self.between.values()
        )

    def _added(self, views: Sequence[tuple[Costs, View]]) -> Costs:
        """The sum of arrays of which many are the same view; each distinct view is read once."""
        counts = Counter((id(array), view) for array, view in views)
        key = tuple(counts.items())
        if key not in self._known:
            once = {(id(array), view): view(array) for array, view in views}
            parts = [once[each] * float(count) for each, count in counts.items()]
            self._known[key] = np.sum(parts, axis=0) if len(parts) > 1 else parts[0]
        return self._known[key]
