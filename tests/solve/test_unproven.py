"""A gap may be left unproven."""

import numpy as np
import pytest

from shardplan.solve import Edge, Problem, Usage, evaluate, solve


def chain(seed: int, count: int = 12, choices: int = 5) -> Problem:
    """A chain whose cheap choices hold much."""
    rng = np.random.default_rng(seed)
    costs = tuple(np.sort(rng.integers(0, 1000, choices)).astype(float) for _ in range(count))
    edges = tuple(
        Edge(node, node + 1, rng.integers(0, 300, (choices, choices)).astype(float)) for node in range(count - 1)
    )
    held = np.arange(choices, 0, -1) * 100
    usages = tuple(Usage(node, node, min(node + 4, count), held) for node in range(count))
    return Problem(costs, edges, usages, 1100)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_unproven_is_said(seed):
    problem = chain(seed)
    best, found = solve(problem), solve(problem, unproven=0.5)
    assert evaluate(problem, found.choices).feasible
    assert found.bound <= best.cost <= found.cost
