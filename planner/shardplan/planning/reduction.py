"""Reductions: exact changes of the problem of layouts (`apply`), and of its solutions back (`invert`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Join, Node
from shardplan.graph.memory import Memory
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
class Layouts:
    """The problem of layouts of one cost graph. `penalties`: picoseconds that choices cost because they break soft
    constraints; `problem` has them among its costs."""

    built: CostGraph
    memory: Memory
    problem: Problem
    penalties: Mapping[Node, Costs]

    @cached_property
    def functions(self) -> Functions:
        """The problem's costs as functions of many assignments at once."""
        return Functions.of(self.problem)

    def having(self, problem: Problem) -> Layouts:
        """The same with another problem over the same choices."""
        return replace(self, problem=problem)

    def chosen(self, choices: tuple[int, ...]) -> dict[Node, int]:
        """An assignment by nodes."""
        return dict(zip(node_order(self.built), choices, strict=True))


@dataclass(frozen=True)
class Posed:
    """`sums[0]`: the problem of the base sums of all phases; `sums[k]`: that with another sum in place of its phase's
    base (`shardplan.schedule.objective.single_sums`). All have the same choices. `repeated[k]`: the same as if every
    operator were recomputed, if the search chooses what is; `regathered[k]`: the same as if all weights were gathered
    again for backward, if the solver chooses which are."""

    sums: tuple[Layouts, ...]
    repeated: tuple[Layouts, ...] = ()
    regathered: tuple[Layouts, ...] = ()

    def map(self, change: Callable[[Layouts], Layouts]) -> Posed:
        """The same change of every problem."""
        return Posed(*(tuple(map(change, each)) for each in (self.sums, self.repeated, self.regathered)))


@dataclass(frozen=True)
class Assignment:
    """`choices[v]`: the choice of node v; `remat`: what is recomputed, if that was chosen too."""

    choices: tuple[int, ...]
    remat: Recompute | None = None


class Reduction(Generic[Data]):
    """One step of the chain. `apply` returns data that takes assignments back; by default assignments stay the same."""

    def apply(self, posed: Posed) -> tuple[Posed, Data]:
        """The changed problem, and the data for its inversion."""
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


def restrict(problem: Problem, built: CostGraph, allowed: Allowed) -> Problem:
    """`problem` with every choice that is not allowed made impossible; equal tables stay the same objects."""
    costs = [
        np.where(allowed[node], cost, np.inf) if node in allowed else cost
        for node, cost in zip(node_order(built), problem.costs, strict=True)
    ]
    if all(len(each) == 2 for each in allowed):
        return replace(problem, costs=tuple(costs))
    tables: dict[tuple[int, int], Costs] = {}

    def limited(edge: Edge, join: Join) -> Edge:
        mask = allowed.get(join)
        if mask is None:
            return edge
        key = id(edge.table), id(mask)
        if key not in tables:
            tables[key] = np.where(mask, edge.table, np.inf)
        return edge._replace(table=tables[key])

    edges = tuple(limited(edge, join) for edge, join in zip(problem.edges, built.joins, strict=True))
    return replace(problem, costs=tuple(costs), edges=edges)
