"""The objective of a step as problems for the solver, and every assignment of a tiny one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.problem import objective_of, to_problem
from shardplan.planning.objective import Maxima
from shardplan.planning.reduction import LayoutProblem, Problems
from shardplan.schedule.objective import Linear, serial_objective, single_sums
from shardplan.solve.problem import Problem

BATCHES = 1 << 15
"""Assignments that are priced at once."""


def serial(built: CostGraph) -> Linear:
    """All times of a step added up, as if nothing ran beside anything else."""
    options = built.options
    return single_sums(serial_objective(training=options.training, microbatches=options.microbatches))[0]


def serial_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of all times added up."""
    return to_problem(built, MemoryRows(built), limit_bytes, serial(built))


def base_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of what computes and blocks: the base of every phase."""
    return to_problem(built, MemoryRows(built), limit_bytes, single_sums(objective_of(built))[0])


def step_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of a step: the sum over phases of the largest of their sums."""
    objective, memory = objective_of(built), MemoryRows(built)
    sums = (
        LayoutProblem(built, memory, to_problem(built, memory, limit_bytes, one), {}) for one in single_sums(objective)
    )
    problems, _ = Maxima(objective.sizes).apply(Problems(tuple(sums)))
    return problems.sums[0].problem


def count(problem: Problem) -> int:
    """How many combinations of choices there are, allowed or not."""
    return int(np.prod([float(len(cost)) for cost in problem.costs]))


@dataclass(frozen=True)
class Assignments:
    """Every assignment that a problem allows: `choices[i]`, `cost[i]` in picoseconds, `peak[i]` in bytes."""

    choices: NDArray[np.int64]
    cost: NDArray[np.float64]
    peak: NDArray[np.int64]

    def within(self, limit_bytes: float) -> Assignments:
        """Those that fit, the cheapest first."""
        fits = np.flatnonzero(self.peak <= limit_bytes)
        order = fits[np.argsort(self.cost[fits], kind="stable")]
        return Assignments(self.choices[order], self.cost[order], self.peak[order])

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], float, int]]:
        for choices, cost, peak in zip(self.choices.tolist(), self.cost.tolist(), self.peak.tolist(), strict=True):
            yield tuple(choices), cost, peak


def every_assignment(problem: Problem) -> Assignments:
    """All assignments that are allowed, with what they cost: nothing is left to a solver."""
    sizes = [len(cost) for cost in problem.costs]
    parts = []
    for start in range(0, count(problem), BATCHES):
        numbers = np.arange(start, min(start + BATCHES, count(problem)))
        choices = np.stack(np.unravel_index(numbers, sizes), axis=1)
        cost = _sum(problem, problem.costs, [edge.table for edge in problem.edges], choices)
        possible = np.isfinite(cost)
        choices, cost = choices[possible], cost[possible]
        for group in problem.maxima:
            rises = [_sum(problem, one.costs, one.tables, choices) for one in group.sums]
            cost = cost + np.maximum(0.0, np.max(rises, axis=0, initial=0.0))
        parts.append(Assignments(choices, cost, _peak(problem, choices)))
    return Assignments(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("choices", "cost", "peak"))
    )


def _peak(problem: Problem, choices):
    held = np.zeros((len(choices), problem.moments), dtype=np.int64)
    for usage in problem.usages:
        held[:, usage.start : usage.end] += usage.amount[choices[:, usage.node]][:, None]
    return held.max(axis=1, initial=0)


def _sum(problem: Problem, costs, tables, choices):
    """A sum over nodes and edges, for many assignments at once."""
    total = sum(cost[choices[:, node]] for node, cost in enumerate(costs))
    edges = zip(problem.edges, tables, strict=True)
    return total + sum(table[choices[:, edge.u], choices[:, edge.v]] for edge, table in edges)
