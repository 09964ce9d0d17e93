"""Cost and memory of an assignment in Python integers: an independent check that shares no code with the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.solve.problem import LinearSum, Problem


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`cost` is `math.inf` if a forbidden choice or pair is taken; `peak_bytes` is the memory at `peak_moment`."""

    cost: int | float
    peak_bytes: int
    peak_moment: int
    feasible: bool


def evaluate(problem: Problem, choices: Sequence[int]) -> Evaluation:
    """Cost and largest memory of one choice per node. Raises `ValueError` when `choices` does not fit the problem."""
    if len(choices) != len(problem.costs):
        raise ValueError(f"{len(choices)} choices for {len(problem.costs)} nodes")
    for node, (choice, costs) in enumerate(zip(choices, problem.costs, strict=True)):
        if not 0 <= choice < len(costs):
            raise ValueError(f"node {node} has choices 0 to {len(costs) - 1}, not {choice}")
    paid = [float(costs[choice]) for choice, costs in zip(choices, problem.costs, strict=True)]
    paid += [float(edge.table[choices[edge.u], choices[edge.v]]) for edge in problem.edges]
    forbidden = any(math.isinf(value) for value in paid)
    peak, moment = _peak(problem, choices)
    fits = problem.limit is None or peak <= problem.limit
    cost = math.inf if forbidden else sum(int(value) for value in paid) + _maxima(problem, choices)
    return Evaluation(cost, peak, moment, fits and not forbidden)


def _maxima(problem: Problem, choices: Sequence[int]) -> int:
    """sum_g max(0, max_k s_gk(choices))."""
    return sum(max([0, *(_sum(problem, one, choices) for one in group.sums)]) for group in problem.maxima)


def _sum(problem: Problem, one: LinearSum, choices: Sequence[int]) -> int:
    paid = [float(costs[choice]) for choice, costs in zip(choices, one.costs, strict=True)]
    pairs = zip(problem.edges, one.tables, strict=True)
    paid += [float(table[choices[edge.u], choices[edge.v]]) for edge, table in pairs]
    return sum(int(value) for value in paid)


def _peak(problem: Problem, choices: Sequence[int]) -> tuple[int, int]:
    steps: dict[int, int] = {}
    for usage in problem.usages:
        if usage.end > usage.start:
            amount = int(usage.amount[choices[usage.node]])
            steps[usage.start] = steps.get(usage.start, 0) + amount
            steps[usage.end] = steps.get(usage.end, 0) - amount
    level, peak, moment = 0, 0, 0
    for at in sorted(steps):
        level += steps[at]
        if level > peak:
            peak, moment = level, at
    return peak, moment
