"""Random problems for the solver, and their optima by enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from step_problems import every_assignment

from shardplan.solve import Edge, LinearSum, Maximum, Problem, Usage, evaluate
from shardplan.solve.problem import rises


def random_problem(seed: int, nodes: int, choices: int = 3, forbidden: float = 0.2, tight: float = 0.3) -> Problem:
    """A random graph of about twice as many edges as nodes; about `tight` of the way from the least to the largest
    memory."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, choices + 1, nodes)
    costs = tuple(np.floor(rng.random(size) * 50) for size in sizes)
    edges = []
    for _ in range(2 * nodes if nodes > 1 else 0):
        u = int(rng.integers(nodes))
        v = int((u + 1 + rng.integers(min(nodes - 1, 12))) % nodes)
        table = np.floor(rng.random((sizes[u], sizes[v])) * 50)
        table[rng.random(table.shape) < forbidden] = math.inf
        table[:, 0] = np.where(np.isinf(table[:, 0]), 40.0, table[:, 0])
        table[0] = np.where(np.isinf(table[0]), 40.0, table[0])
        edges.append(Edge(u, v, table))
    usages = []
    for node in range(nodes):
        start = int(rng.integers(10))
        amount = rng.integers(0, 100, sizes[node])
        usages.append(Usage(node, start, start + int(rng.integers(1, 6)), amount.astype(np.int64)))
    low, high = (sum(int(take(u.amount)) for u in usages) for take in (np.min, np.max))
    peak = evaluate(Problem(costs, (), tuple(usages)), [0] * nodes).peak_bytes
    return Problem(costs, tuple(edges), tuple(usages), int(min(peak, low + tight * (high - low))))


def optimum(problem: Problem) -> float:
    """By enumeration, which prices all assignments at once; `evaluate` says the same of the best."""
    found = every_assignment(problem).within(math.inf if problem.limit is None else problem.limit)
    if not len(found.cost):
        return math.inf
    priced = evaluate(problem, found.choices[0].tolist())
    assert priced.feasible
    assert priced.cost == found.cost[0]
    return priced.cost


def problem_of_maxima(seed: int, memory: bool) -> Problem:
    """A chain with two more edges and one to three maxima of one to three sums, all dense, that pull apart: at the best
    multipliers a gap is left. Some tables are shared, and some pairs are forbidden."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, int(rng.integers(4, 7))).tolist()
    groups = rng.integers(1, 4, int(rng.integers(1, 4))).tolist()
    ends = [*itertools.pairwise(range(len(sizes)))]
    ends += [tuple(sorted(rng.choice(len(sizes), 2, replace=False).tolist())) for _ in range(2)]
    shared: dict[tuple[int, ...], np.ndarray] = {}

    def numbers(low: int, high: int, *shape: int) -> np.ndarray:
        return rng.integers(low, high, shape).astype(float)

    def table(u: int, v: int) -> np.ndarray:
        made = numbers(0, 60, sizes[u], sizes[v])
        made[rng.random(made.shape) < 0.1] = math.inf
        return shared.setdefault(made.shape, made) if rng.random() < 0.4 else made

    def linear() -> LinearSum:
        shift = int(rng.integers(-40, 30))
        tables = {id(edge.table): numbers(shift - 40, shift + 40, *edge.table.shape) for edge in edges}
        return LinearSum(
            tuple(numbers(shift - 40, shift + 40, size) for size in sizes),
            tuple(tables[id(edge.table)] for edge in edges),
        )

    edges = tuple(Edge(u, v, table(u, v)) for u, v in ends)
    costs = tuple(numbers(0, 60, size) for size in sizes)
    maxima = tuple(Maximum(tuple(linear() for _ in range(count))) for count in groups)
    if not memory:
        return Problem(costs, edges, maxima=maxima)
    starts = rng.integers(0, 6, len(sizes))
    usages = tuple(
        Usage(node, int(starts[node]), int(starts[node] + rng.integers(1, 6)), rng.integers(0, 100, size))
        for node, size in enumerate(sizes)
    )
    return Problem(costs, edges, usages, int(rng.integers(60, 60 * len(sizes))), maxima)


def between(first: Problem, second: Problem) -> Problem:
    """The problem of the larger of two sums: those of two problems that differ in nothing but their finite costs."""
    return replace(first, maxima=(Maximum(rises(first, [second])),))
