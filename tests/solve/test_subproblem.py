"""A part of a problem: the optimum of its free nodes, against all of their assignments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from random_problems import problem_of_maxima

from shardplan.solve import Problem, evaluate
from shardplan.solve.linear_functions import Functions
from shardplan.solve.subproblem import Subproblem


def at(problem: Problem, choices: tuple[int, ...], multipliers: tuple[tuple[float, ...], ...]) -> float:
    """The cost of an assignment if every maximum is replaced by its sums times multipliers."""
    base, *sums = (float(total[0]) for total in Functions.of(problem).totals(np.array([choices])))
    weights = [weight for group in multipliers for weight in group]
    return base + float(np.dot(weights, sums))


@pytest.mark.parametrize("seed", range(30))
def test_free_nodes_are_optimal_and_others_keep_their_choices(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    rng = np.random.default_rng(seed)
    everything = list(product(*(range(len(cost)) for cost in problem.costs)))
    allowed = [choices for choices in everything if np.isfinite(evaluate(problem, choices).cost)]
    choices = allowed[rng.integers(len(allowed))]
    free = sorted(rng.choice(len(choices), size=min(3, len(choices)), replace=False).tolist())
    multipliers = tuple(tuple(rng.choice([0.0, 0.25], len(maximum.sums)).tolist()) for maximum in problem.maxima)

    found = Subproblem.of(problem, choices, free).best_at(multipliers)

    assert found is not None
    assert all(found[node] == choice for node, choice in enumerate(choices) if node not in free)
    near = (other for other in allowed if all(other[n] == c for n, c in enumerate(choices) if n not in free))
    assert at(problem, found, multipliers) == min(at(problem, other, multipliers) for other in near)
