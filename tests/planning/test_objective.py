"""The search for the weight at which what hides fits under the compute."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.planning.objective import MOST_WEIGHTS, improves, next_weight


@dataclass(frozen=True)
class Trial:
    """A plan that is best at a weight."""

    weight: float
    plan: tuple[float, float]
    bound_s: float

    @property
    def f1_s(self):
        return self.plan[0]

    @property
    def f2_s(self):
        return self.plan[1]

    @property
    def step_s(self):
        return max(self.plan)


def shortest_step(plans):
    """The best of the trials at the weights that are asked for, of which each has the cheapest of `plans` (f1, f2), and
    the greatest bound."""
    trials = []
    while (weight := next_weight(trials)) is not None:
        f1, f2 = min(plans, key=lambda plan: (weight * plan[0] + (1 - weight) * plan[1], plan))
        trial = Trial(weight, (f1, f2), weight * f1 + (1 - weight) * f2)
        if not improves(trial, trials):
            break
        trials.append(trial)
    assert len(trials) <= MOST_WEIGHTS
    return min(trials, key=lambda trial: trial.step_s), max(trial.bound_s for trial in trials)


def test_what_fits_under_the_compute_is_optimal_at_once():
    found, bound = shortest_step([(3.0, 2.0), (5.0, 1.0)])
    assert (found.plan, found.weight, bound) == ((3.0, 2.0), 1.0, 3.0)


def test_a_plan_that_hides_more_than_it_computes_loses_to_an_honest_one():
    """The first is cheapest when all may hide, but it communicates for 30 s."""
    found, bound = shortest_step([(7.0, 30.0), (11.0, 5.0)])
    assert found.plan == (11.0, 5.0)
    assert bound <= 11.0


costs = st.floats(0.1, 100.0)


@given(st.lists(st.tuples(costs, costs), min_size=1, max_size=8))
def test_the_bound_holds_for_every_plan_and_the_answer_is_one_of_them(plans):
    found, bound = shortest_step(plans)
    best = min(max(plan) for plan in plans)
    assert found.plan in plans
    assert found.step_s == max(found.plan)
    assert bound <= best * (1 + 1e-9)
    assert found.step_s <= max(min(plans)) * (1 + 1e-9)  # never worse than taking everything to be hidden


@pytest.mark.parametrize("plans", [[(1.0, 9.0), (4.0, 4.5), (9.0, 1.0)]])
def test_the_crossing_finds_what_lies_between(plans):
    found, _ = shortest_step(plans)
    assert found.plan == (4.0, 4.5)
