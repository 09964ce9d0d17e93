"""The search for the weight at which what hides fits under the compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.graph.overlap import Trial, shortest_step


def solver(plans):
    """`solve_at` for a list of (f1, f2): the cheapest of them at a weight."""

    def solve_at(weight):
        f1, f2 = min(plans, key=lambda plan: (weight * plan[0] + (1 - weight) * plan[1], plan))
        return Trial(weight, (f1, f2), f1, f2, weight * f1 + (1 - weight) * f2)

    return solve_at


def test_what_fits_under_the_compute_is_optimal_at_once():
    found, bound = shortest_step(solver([(3.0, 2.0), (5.0, 1.0)]))
    assert (found.plan, found.weight, bound) == ((3.0, 2.0), 1.0, 3.0)


def test_a_plan_that_hides_more_than_it_computes_loses_to_an_honest_one():
    """The first is cheapest when all may hide, but it communicates for 30 s."""
    found, bound = shortest_step(solver([(7.0, 30.0), (11.0, 5.0)]))
    assert found.plan == (11.0, 5.0)
    assert bound <= 11.0


def test_no_plan_no_answer():
    assert shortest_step(lambda _: None) is None


costs = st.floats(0.1, 100.0)


@given(st.lists(st.tuples(costs, costs), min_size=1, max_size=8))
def test_the_bound_holds_for_every_plan_and_the_answer_is_one_of_them(plans):
    found, bound = shortest_step(solver(plans))
    best = min(max(plan) for plan in plans)
    assert found.plan in plans
    assert found.step_s == max(found.plan)
    assert bound <= best * (1 + 1e-9)
    assert found.step_s <= max(min(plans)) * (1 + 1e-9)  # never worse than taking everything to be hidden


@pytest.mark.parametrize("plans", [[(1.0, 9.0), (4.0, 4.5), (9.0, 1.0)]])
def test_the_crossing_finds_what_lies_between(plans):
    found, _ = shortest_step(solver(plans))
    assert found.plan == (4.0, 4.5)
