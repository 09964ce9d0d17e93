"""The subproblem of some nodes of a problem while all others keep their choices of an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shardplan.solve.bound.averages import averaged
from shardplan.solve.constants import MULTIPLIER_DIGITS
from shardplan.solve.linear_functions import Choices, Functions
from shardplan.solve.problem import Costs, LinearSum, Maximum, Problem, SumMultipliers
from shardplan.solve.solver import solve


@dataclass(frozen=True)
class Subproblem:
    """`problem`: that of the free `nodes`, without memory and without what the other nodes cost among themselves.
    `choices`: an assignment of the whole problem."""

    problem: Problem
    nodes: tuple[int, ...]
    choices: Choices

    @classmethod
    def of(cls, whole: Problem, choices: Choices, nodes: Sequence[int]) -> Subproblem:
        """The subproblem of `whole` in which all but `nodes` keep their choices."""
        place = {node: number for number, node in enumerate(nodes)}
        inside = [e for e, edge in enumerate(whole.edges) if edge.u in place and edge.v in place]
        across = [e for e, edge in enumerate(whole.edges) if (edge.u in place) != (edge.v in place)]

        def added(costs: Sequence[Costs], tables: Sequence[Costs]) -> tuple[Costs, ...]:
            """Costs of the free nodes with those of their edges to the others."""
            own = [costs[node] for node in nodes]
            for e in across:
                u, v = whole.edges[e].u, whole.edges[e].v
                free, row = (place[u], tables[e][:, choices[v]]) if u in place else (place[v], tables[e][choices[u]])
                own[free] = own[free] + row
            return tuple(own)

        def restricted(one: LinearSum) -> LinearSum:
            return LinearSum(added(one.costs, one.tables), tuple(one.tables[e] for e in inside))

        problem = Problem(
            costs=added(whole.costs, [edge.table for edge in whole.edges]),
            edges=tuple(whole.edges[e]._replace(u=place[whole.edges[e].u], v=place[whole.edges[e].v]) for e in inside),
            maxima=tuple(Maximum(tuple(map(restricted, maximum.sums))) for maximum in whole.maxima),
        )
        return cls(problem, tuple(nodes), choices)

    @cached_property
    def functions(self) -> Functions:
        """The costs and sums of `problem`."""
        return Functions.of(self.problem)

    def best_at(self, multipliers: SumMultipliers) -> Choices | None:
        """The assignment of the whole problem whose free nodes cost least if every maximum is replaced by its sums
        times `multipliers`; `None` if none is allowed."""
        weights = [int(weight * 2**MULTIPLIER_DIGITS) for group in multipliers for weight in group]
        found = solve(averaged(self.problem, self.functions, weights, MULTIPLIER_DIGITS)).choices
        if found is None:
            return None
        own = dict(zip(self.nodes, found, strict=True))
        return tuple([own.get(node, choice) for node, choice in enumerate(self.choices)])
