"""One problem of several sums: a base, and for every phase the maximum of what its other sums add."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_problems import every_assignment

from shardplan.planning.objective import Maxima
from shardplan.planning.reduction import LayoutProblem, Problems
from shardplan.solve import solve
from shardplan.solve.problem import Edge, Problem

SIZES = (2, 3, 2)
ENDS = ((0, 1), (1, 2))


def drawn(numbers, closed):
    """A chain of three nodes whose costs are drawn; the pairs of the first edge that are `closed` are not allowed."""
    draw = iter(numbers)
    costs = tuple(np.array([float(next(draw)) for _ in range(size)]) for size in SIZES)
    tables = [np.array([[float(next(draw)) for _ in range(SIZES[v])] for _ in range(SIZES[u])]) for u, v in ENDS]
    tables[0] = np.where(closed, np.inf, tables[0])
    return Problem(costs, tuple(Edge(u, v, table) for (u, v), table in zip(ENDS, tables, strict=True)))


COUNT = sum(SIZES) + sum(SIZES[u] * SIZES[v] for u, v in ENDS)
problems = st.lists(st.lists(st.integers(0, 50), min_size=COUNT, max_size=COUNT), min_size=4, max_size=4)
closed_pairs = st.lists(st.booleans(), min_size=5, max_size=5)


def of_sums(numbers, closed, sizes):
    """The problems of four sums, and the one problem that `Maxima` makes of them."""
    shut = np.array([*closed, False]).reshape(SIZES[0], SIZES[1])
    sums = [drawn(each, shut) for each in numbers]
    problems = Problems(tuple(LayoutProblem(None, None, problem, {}) for problem in sums))
    (whole,) = Maxima(sizes).apply(problems)[0].sums
    return sums, whole.problem


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (0, 3, 0), (1, 1, 1)])
@given(problems, closed_pairs)
def test_an_assignment_costs_its_base_and_the_largest_rise_of_every_phase(sizes, numbers, closed):
    sums, whole = of_sums(numbers, closed, sizes)
    costs = [{choices: cost for choices, cost, _ in every_assignment(problem)} for problem in sums]
    found = {choices: cost for choices, cost, _ in every_assignment(whole)}
    assert found.keys() == costs[0].keys()
    for choices, cost in found.items():
        base, *others = (each[choices] for each in costs)
        rises, start = [], 0
        for size in sizes:
            rises += [max([0.0, *(other - base for other in others[start : start + size])])] if size else []
            start += size
        assert cost == base + sum(rises)


@given(problems, closed_pairs)
def test_the_solver_finds_the_least_of_it_and_proves_it(numbers, closed):
    sums, whole = of_sums(numbers, closed, (1, 2))
    best = min(cost for _, cost, _ in every_assignment(whole))
    solution = solve(whole)
    assert (solution.cost, solution.bound) == (best, best)
    assert solution.cost >= solve(replace(sums[0], maxima=())).cost


def test_one_sum_stays_as_it_is():
    sums, _ = of_sums([[1] * COUNT] * 4, [False] * 5, (3,))
    problems = Problems((LayoutProblem(None, None, sums[0], {}),))
    assert Maxima(()).apply(problems) == (problems, None)
