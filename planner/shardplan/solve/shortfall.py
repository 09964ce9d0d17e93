"""How much memory is missing: the least limit under which an assignment exists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardplan.solve.budget import Budget
from shardplan.solve.evaluate import evaluate
from shardplan.solve.exact import Incumbent
from shardplan.solve.fit import fit, frugal
from shardplan.solve.graph import Contradiction, build
from shardplan.solve.problem import Costs, Problem
from shardplan.solve.tables import Tables


def least_limit(problem: Problem, budget: Budget) -> int | None:
    """The smallest limit at which some assignment fits; `None` when forbidden pairs exclude every assignment.

    When the budget ends early, a proven lower bound of it.
    """
    free = _without_costs(problem)
    everything = sum(int(usage.amount.max()) for usage in problem.usages)
    found = Incumbent(1.0)  # there are no costs to scale
    try:
        graph = build(replace(free, limit=everything), Tables())
        graph.settle()
        low = int(graph.base.max(initial=0))
        frugal(graph, found)
    except Contradiction:
        return None
    if found.choices is not None:
        return evaluate(free, found.choices).peak_bytes
    high = _peak_within(free, everything, budget)
    if high is None:
        return None
    while low < high and not budget.expired():
        middle = (low + high) // 2
        peak = _peak_within(free, middle, budget)
        low, high = (middle + 1, high) if peak is None else (low, peak)
    return low


def _peak_within(problem: Problem, limit: int, budget: Budget) -> int | None:
    """Peak of some assignment that fits, or `None` if there is none."""
    bounded = replace(problem, limit=limit)
    found = Incumbent(1.0)
    try:
        fit(build(bounded, Tables()), limit, found, budget)
    except Contradiction:
        return None
    return None if found.choices is None else evaluate(bounded, found.choices).peak_bytes


def _without_costs(problem: Problem) -> Problem:
    """The same problem, where only what is forbidden costs anything."""
    cleared: dict[int, Costs] = {}

    def clear(table: Costs) -> Costs:
        return cleared.setdefault(id(table), np.where(np.isinf(table), np.inf, 0.0))

    edges = tuple(replace(edge, table=clear(edge.table)) for edge in problem.edges)
    return replace(problem, costs=tuple(map(clear, problem.costs)), edges=edges)
