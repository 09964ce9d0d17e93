"""The objective of a step as problems for the solver, and every assignment of a tiny one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from shardplan.graph.build import CostGraph
from shardplan.graph.memory import Memory
from shardplan.graph.problem import objective_of, to_problem
from shardplan.planning.objective import Maxima
from shardplan.planning.reduction import Layouts, Posed
from shardplan.schedule.objective import Linear, serial_objective, single_sums
from shardplan.solve.problem import Problem

BATCHES = 4096
"""Assignments that are priced at once."""


def serial(built: CostGraph) -> Linear:
    """All times of a step added up, as if nothing ran beside anything else."""
    options = built.options
    return single_sums(serial_objective(training=options.training, microbatches=options.microbatches))[0]


def serial_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of all times added up."""
    return to_problem(built, Memory(built), limit_bytes, serial(built))


def base_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of what computes and blocks: the base of every phase."""
    return to_problem(built, Memory(built), limit_bytes, single_sums(objective_of(built))[0])


def step_problem(built: CostGraph, limit_bytes: int | None = None) -> Problem:
    """The problem of a step: the sum over phases of the largest of their sums."""
    objective, memory = objective_of(built), Memory(built)
    sums = (Layouts(built, memory, to_problem(built, memory, limit_bytes, one), {}) for one in single_sums(objective))
    posed, _ = Maxima(objective.sizes).apply(Posed(tuple(sums)))
    return posed.sums[0].problem


def count(problem: Problem) -> int:
    """How many combinations of choices there are, allowed or not."""
    return int(np.prod([float(len(cost)) for cost in problem.costs]))


def every_assignment(problem: Problem) -> Iterator[tuple[tuple[int, ...], float, int]]:
    """Choices, cost in picoseconds and peak in bytes of every assignment that is allowed: nothing is left to a
    solver."""
    every = itertools.product(*(range(len(cost)) for cost in problem.costs))
    while batch := list(itertools.islice(every, BATCHES)):
        choices = np.array(batch)
        cost = _sum(problem, problem.costs, [edge.table for edge in problem.edges], choices)
        for group in problem.maxima:
            rises = [_sum(problem, one.costs, one.tables, choices) for one in group.sums]
            cost = cost + np.maximum(0.0, np.max(rises, axis=0))
        held = np.zeros((len(choices), problem.moments), dtype=np.int64)
        for usage in problem.usages:
            held[:, usage.start : usage.end] += usage.amount[choices[:, usage.node]][:, None]
        for number in np.flatnonzero(np.isfinite(cost)):
            yield batch[number], float(cost[number]), int(held[number].max())


def _sum(problem: Problem, costs, tables, choices):
    """A sum over nodes and edges, for many assignments at once."""
    total = sum(cost[choices[:, node]] for node, cost in enumerate(costs))
    edges = zip(problem.edges, tables, strict=True)
    return total + sum(table[choices[:, edge.u], choices[:, edge.v]] for edge, table in edges)
