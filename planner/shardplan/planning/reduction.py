"""Reductions: exact changes of the problem of layouts (`apply`), and of its solutions back (`invert`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import MemoryRows
from shardplan.graph.problem import node_order
from shardplan.graph.remat import Recompute
from shardplan.solve import Problem
from shardplan.solve.linear_functions import Functions
from shardplan.solve.problem import Costs, Edge

Data = TypeVar("Data")
Mask = NDArray[np.bool_]
Allowed = Mapping[Any, Mask]
"""Masks of the allowed choices of some nodes (`Node`), and of the allowed pairs of some edges (`Join`), of a cost
graph; the others are unrestricted."""
Restrict = Callable[[CostGraph], Allowed]
"""From a cost graph to what is allowed in it."""


@dataclass(frozen=True)
class LayoutProblem:
    """The problem of layouts of one cost graph. `penalties`: picoseconds that choices cost because they break soft
    constraints; `problem` has them among its costs."""

    built: CostGraph
    memory: MemoryRows
    problem: Problem
    penalties: Mapping[Node, Costs]

    @cached_property
    def functions(self) -> Functions:
        """The problem's costs as functions of many assignments at once."""
        return Functions.of(self.problem)

    def having(self, problem: Problem) -> LayoutProblem:
        """The same with another problem over the same choices."""
        return replace(self, problem=problem)

    def chosen(self, choices: tuple[int, ...]) -> dict[Node, int]:
        """An assignment by nodes."""
        return dict(zip(node_order(self.built), choices, strict=True))


@dataclass(frozen=True)
class Problems:
    """The problems of one question, which a chain of reductions transforms. `sums[0]`: the problem of the base sums of
    all phases; `sums[k]`: that with another sum in place of its phase's base
    (`shardplan.schedule.objective.single_sums`). All have the same choices. `repeated[k]`: the same as if every
    operator were recomputed, if the search chooses what is; `regathered[k]`: the same as if all weights were
    gathered again for backward, if the solver chooses which are."""

    sums: tuple[LayoutProblem, ...]
    repeated: tuple[LayoutProblem, ...] = ()
    regathered: tuple[LayoutProblem, ...] = ()

    def map(self, change: Callable[[LayoutProblem], LayoutProblem]) -> Problems:
        """The same change of every problem."""
        return Problems(*(tuple(map(change, each)) for each in (self.sums, self.repeated, self.regathered)))


@dataclass(frozen=True)
class Assignment:
    """`choices[v]`: the choice of node v; `remat`: what is recomputed, if that was chosen too."""

    choices: tuple[int, ...]
    remat: Recompute | None = None


class Reduction(Generic[Data]):
    """One step of the chain. `apply` returns data that takes assignments back; by default assignments stay the same."""

    def apply(self, problems: Problems) -> tuple[Problems, Data]:
        """The changed problems, and the data for the inversion."""
        raise NotImplementedError

    def invert(self, assignment: Assignment, data: Data) -> Assignment:
        """An assignment of the changed problem, as an assignment of the problem before."""
        del data
        return assignment


def both(one: Restrict | None, other: Restrict | None) -> Restrict | None:
    """The intersection of two restrictions; `None` allows everything."""
    if one is None or other is None:
        return one or other

    def together(built: CostGraph) -> Allowed:
        first, second = one(built), other(built)
        shared = {node: first[node] & second[node] for node in first.keys() & second.keys()}
        return {**first, **second, **shared}

    return together


class Restricting:
    """Problems with every choice that is not allowed made impossible. What is allowed is computed once for each cost
    graph, and equal tables stay the same objects, also in different problems."""

    def __init__(self, wanted: Restrict) -> None:
        self._wanted = wanted
        self._allowed: dict[int, tuple[CostGraph, Allowed]] = {}
        self._made: dict[tuple[int, int], tuple[Costs, Mask, Costs]] = {}

    def __call__(self, problem: Problem, built: CostGraph) -> Problem:
        if id(built) not in self._allowed:
            self._allowed[id(built)] = built, self._wanted(built)
        allowed = self._allowed[id(built)][1]
        nodes = zip(node_order(built), problem.costs, strict=True)
        costs = tuple(self._limited(cost, allowed.get(node)) for node, cost in nodes)
        if all(len(each) == 2 for each in allowed):
            return replace(problem, costs=costs)
        joins = zip(problem.edges, built.joins, strict=True)
        edges = tuple(Edge(edge.u, edge.v, self._limited(edge.table, allowed.get(join))) for edge, join in joins)
        return replace(problem, costs=costs, edges=edges)

    def _limited(self, costs: Costs, mask: Mask | None) -> Costs:
        if mask is None:
            return costs
        key = id(costs), id(mask)
        if key not in self._made:
            self._made[key] = costs, mask, np.where(mask, costs, np.inf)
        return self._made[key][2]


def restrict(problem: Problem, built: CostGraph, allowed: Allowed) -> Problem:
    """`problem` with every choice that is not allowed made impossible; equal tables stay the same objects."""
    return Restricting(lambda _: allowed)(problem, built)
