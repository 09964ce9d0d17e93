"""From a problem to a solution: reduce, bound, search, prove, and price the answer once more by other means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardplan.solve.budget import Budget, Phase, Progress
from shardplan.solve.core import core_of
from shardplan.solve.evaluate import evaluate
from shardplan.solve.exact import Incumbent, close, prove
from shardplan.solve.fit import fit
from shardplan.solve.graph import Contradiction, Graph, build
from shardplan.solve.memory import tighten
from shardplan.solve.problem import Outcome, Problem, Solution
from shardplan.solve.shortfall import least_limit
from shardplan.solve.tables import Tables
from shardplan.solve.validate import validate

DIGITS = 50
"""Costs are multiplied by a power of two so that their sum has about so many bits: room for fractions of a cost in
exact arithmetic."""


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    work_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    presolve: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The cheapest assignment that fits in memory, with a proven lower bound.

    `time_limit` in seconds; `work_limit` in units of about a million table entries, which makes a stop reproducible;
    `gap`: with memory rows, the relative gap that is good enough; `seed` moves the search on large cores. `presolve=False` hands the whole integer program to HiGHS. Ctrl-C ends the
    search and returns the best assignment so far. Raises `ShardplanError` for a malformed problem.
    """
    validate(problem)
    del seed
    with Budget(time_limit, work_limit) as budget:
        best = Incumbent(_scale(problem))
        phase: list[Phase] = ["reduce"]
        if on_progress is not None:
            best.report = lambda: on_progress(
                Progress(budget.seconds, best.cost / best.scale, best.bound / best.scale, phase[0])
            )
        try:
            graph = build(problem, Tables(), best.scale)
            if not presolve:
                phase[0] = "prove"
                _whole(graph, best, budget, problem.limit)
            elif problem.limit is None:
                phase[0] = "bound"
                close(graph, best, budget)
            else:
                phase[0] = "bound"
                fit(graph, problem.limit, best, budget, gap)
        except Contradiction:
            best.bound = np.inf
        shortfall = 0
        if best.bound == np.inf and problem.limit is not None:
            needed = least_limit(problem, budget)
            shortfall = 0 if needed is None else needed - problem.limit
        return _solution(problem, best, budget, shortfall)


def _scale(problem: Problem) -> float:
    tables = {id(table): table for table in [*problem.costs, *(edge.table for edge in problem.edges)]}
    largest = {key: float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for key, table in tables.items()}
    total = sum(largest[id(costs)] for costs in problem.costs) + sum(largest[id(edge.table)] for edge in problem.edges)
    return float(2.0 ** max(0, min(30, DIGITS - int(np.ceil(np.log2(total + 1))))))


def _whole(graph: Graph, best: Incumbent, budget: Budget, limit: int | None) -> None:
    """The integer program of everything."""
    graph.settle()
    if limit is not None:
        tighten(graph, limit)
        graph.settle()
    prove(graph, core_of(graph), best, budget, limit)


def _solution(problem: Problem, best: Incumbent, budget: Budget, shortfall: int) -> Solution:
    outcome: Outcome
    cost, bound = best.cost / best.scale, best.bound / best.scale
    if best.choices is not None:
        priced = evaluate(problem, best.choices)
        if priced.cost != cost or not priced.feasible:
            raise AssertionError(f"the search priced its answer {cost}, the evaluator {priced}")
        outcome = "interrupted" if budget.interrupted else "optimal" if best.closed else "feasible"
    else:
        outcome = "infeasible" if bound == np.inf else "interrupted" if budget.interrupted else "limit"
    return Solution(
        outcome=outcome,
        choices=best.choices,
        cost=cost,
        bound=bound,
        shortfall_bytes=shortfall,
        reproducible=not budget.timed_out and not budget.interrupted,
        seconds=budget.seconds,
    )
