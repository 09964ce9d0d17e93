"""Random problems for the solver, and their optima by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np

from shardplan.solve import Edge, Problem, Usage, evaluate


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
    everything = itertools.product(*(range(len(costs)) for costs in problem.costs))
    return min((each.cost for x in everything if (each := evaluate(problem, x)).feasible), default=math.inf)
