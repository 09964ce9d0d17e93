"""Crossovers of two assignments, against the evaluator."""

from __future__ import annotations

from itertools import combinations, islice, permutations

import numpy as np
import pytest
from random_problems import optimum, problem_of_maxima

from shardplan.solve import LinearSum, Maximum, Plane, Problem, Start, evaluate, solve
from shardplan.solve.linear_functions import Functions
from shardplan.solve.search.crossover_of_problems import Crossovers, crossovers
from shardplan.solve.search.stretches import with_stretches_of


def crossover_costs(functions: Functions, head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The cost of every crossover of two assignments: entry t has `head` on the first t nodes, `tail` on the rest."""
    every = Crossovers(functions, [tuple(head.tolist()), tuple(tail.tolist())])
    return every.costs(np.array([0]), np.array([1]))[0]


@pytest.mark.parametrize("seed", range(40))
def test_every_crossover_costs_what_the_evaluator_says(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    rng = np.random.default_rng(seed)
    head, tail = (np.array([rng.integers(len(cost)) for cost in problem.costs]) for _ in range(2))
    costs = crossover_costs(Functions.of(problem), head, tail)
    for place, cost in enumerate(costs.tolist()):
        choices = tuple(np.concatenate([head[:place], tail[place:]]).tolist())
        expected = evaluate(problem, choices).cost
        assert cost == expected or (np.isinf(cost) and np.isinf(expected))


@pytest.mark.parametrize("seed", range(20))
def test_crossovers_are_new_allowed_and_none_below_the_optimum(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    rng = np.random.default_rng(seed)
    pool = list(dict.fromkeys(tuple(int(rng.integers(len(cost))) for cost in problem.costs) for _ in range(4)))
    found = crossovers(Functions.of(problem), pool, 5)
    assert len(found) <= 5
    assert not set(found) & set(pool)
    costs = [evaluate(problem, choices).cost for choices in found]
    assert costs == sorted(costs)
    assert all(optimum(problem) <= cost < np.inf for cost in costs)
    pairs = permutations(np.array(pool), 2)
    least = min((crossover_costs(Functions.of(problem), head, tail).min() for head, tail in pairs), default=np.inf)
    if found and least < min(evaluate(problem, choices).cost for choices in pool):
        assert costs[0] == least


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_allowed_and_each_makes_an_assignment_cheaper(seed: int) -> None:
    problem = problem_of_maxima(seed, memory=False)
    rng = np.random.default_rng(seed)
    start, *others = (tuple(int(rng.integers(len(cost))) for cost in problem.costs) for _ in range(6))
    functions = Functions.of(problem)
    found = list(islice(with_stretches_of(functions, start, others), 10))
    costs = [evaluate(problem, choices).cost for choices in (start, *found)]
    assert all(optimum(problem) <= cost < np.inf for cost in costs[1:])
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    pool = (start, *others)
    assert all(choice in {one[node] for one in pool} for choices in found for node, choice in enumerate(choices))
    ends = list(combinations(range(len(start) + 1), 2))
    replaced = ((*start[:i], *one[i:j], *start[j:]) for one in others for i, j in ends)
    least = min(evaluate(problem, choices).cost for choices in replaced)
    if least < costs[0]:
        assert found
        assert costs[1] == least or any(edge.v - edge.u > 1 for edge in problem.edges)


def test_an_assignment_takes_stretches_of_two_others() -> None:
    """Each layer has a choice that only one of the others takes; no crossover of two of the three has both."""
    costs = np.array([3.0, 1.0])
    problem = Problem(tuple(costs for _ in range(6)), ())
    functions = Functions.of(problem)
    *_, best = with_stretches_of(functions, (0,) * 6, [(0, 1, 1, 0, 0, 0), (0, 0, 0, 0, 1, 0)])
    assert best == (0, 1, 1, 0, 1, 0)


def layers(count: int) -> Problem:
    """Equal layers that compute 3 or send 2: any average makes all of them do the same, and half and half is best."""
    sends, computes = np.array([0.0, 2.0]), np.array([3.0, 0.0])
    longer = Maximum((LinearSum(tuple(computes - sends for _ in range(count)), ()),))
    return Problem(tuple(sends for _ in range(count)), (), maxima=(longer,))


def test_equal_layers_are_crossed_over_where_averages_change_them_all_at_once() -> None:
    """Of 50 layers, 20 compute for 60 and 30 send for 60; all of one kind take 100 or 150."""
    solution = solve(layers(50), averages=10)
    assert solution.cost == 60.0
    assert solution.choices is not None
    assert sorted(solution.choices) == [0] * 20 + [1] * 30
    assert solution.bound <= 60.0


@pytest.mark.parametrize("seed", range(20))
def test_planes_of_a_problem_that_allows_less_say_where_to_begin(seed: int) -> None:
    """One average where they meet proves what many did; whatever planes are given, a bound stays one."""
    problem = problem_of_maxima(seed, memory=False)
    many = solve(problem, averages=10)
    assert len(many.planes) == len(many.candidates)
    once = solve(problem, averages=1, start=Start(planes=many.planes))
    assert once.bound == pytest.approx(many.bound, rel=0.02)
    best = optimum(problem)
    sums = sum(len(maximum.sums) for maximum in problem.maxima)
    wrong = [Plane(-1e3, (7.0,) * sums), Plane(1.0, (-1e3,) * sums), Plane(5.0, (1.0,) * (sums + 1))]
    assert all(solve(problem, averages=1, start=Start(planes=[plane])).bound <= best for plane in wrong)
