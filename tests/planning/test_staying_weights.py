"""The reduction that makes it a choice which gathered weights stay, and its bound against every schedule."""

import random

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph, regathering
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import objective_of, to_problem
from shardplan.models import transformer
from shardplan.planning.reduction import Assignment, LayoutProblem, Problems
from shardplan.planning.staying_weights import StayingWeights, staying
from shardplan.rules import model_rules
from shardplan.schedule.objective import single_sums
from shardplan.solve import evaluate, solve

SIZES = {"style": "gpt", "layers": 2, "hidden": 256, "heads": 4, "vocab": 1024, "seq": 64, "batch": 8}


@pytest.fixture(scope="module")
def built():
    model, cluster = transformer(**SIZES), make_cluster(load_profile("generic"), "2x2")
    return build_cost_graph(model, model_rules(model), cluster, PlanOptions())


@pytest.fixture(scope="module")
def combined(built):
    memory, linear = MemoryRows(built), single_sums(objective_of(built))[0]
    stay, again = (to_problem(graph, memory, None, linear) for graph in (built, regathering(built)))
    problems = Problems(
        (LayoutProblem(built, memory, stay, {}),), regathered=(LayoutProblem(built, memory, again, {}),)
    )
    reduced, sizes = StayingWeights().apply(problems)
    return stay, again, reduced.sums[0].problem, sizes


def assignments(built, problem, seed):
    """The best assignment for costs drawn at random."""
    draw = random.Random(seed)
    costs = tuple(cost + [draw.randrange(10**9) for _ in cost] for cost in problem.costs)
    return solve(type(problem)(costs, problem.edges)).choices


def extended(choices, sizes, problem, *, again):
    """An assignment of layouts in which every weight stays, or is gathered again."""
    twice = [cost.size == 2 * size for cost, size in zip(problem.costs, sizes, strict=True)]
    return tuple(c + size * (again and two) for c, size, two in zip(choices, sizes, twice, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_both_problems_are_in_it(built, combined, seed):
    stay, again, problem, sizes = combined
    choices = assignments(built, stay, seed)
    costs = [
        evaluate(problem, extended(choices, sizes, problem, again=False)).cost,
        evaluate(problem, extended(choices, sizes, problem, again=True)).cost,
    ]
    assert costs[0] == evaluate(stay, choices).cost
    # the smaller weights of an operator always stay
    assert costs[0] <= costs[1] <= evaluate(again, choices).cost
    assert costs[1] - costs[0] >= 0.9 * (evaluate(again, choices).cost - costs[0])


@pytest.mark.parametrize("seed", range(4))
def test_what_stays_takes_memory(built, combined, seed):
    stay, _, problem, sizes = combined
    choices = assignments(built, stay, seed)
    held, freed = (evaluate(problem, extended(choices, sizes, problem, again=again)) for again in (False, True))
    assert freed.peak_bytes == evaluate(stay, choices).peak_bytes
    assert held.peak_bytes >= freed.peak_bytes


def test_choices_are_those_of_layouts_again(combined):
    stay, _, problem, sizes = combined
    choices = solve(problem).choices
    back = StayingWeights().invert(Assignment(choices), sizes).choices
    assert all(choice < cost.size for choice, cost in zip(back, stay.costs, strict=True))
    assert evaluate(stay, back).cost <= evaluate(problem, choices).cost


def test_without_a_limit_nothing_is_gathered_again(combined):
    stay, _, problem, _ = combined
    assert solve(problem).cost == solve(stay).cost


def test_under_a_limit_it_costs_no_less_than_if_all_stayed_for_nothing(combined):
    stay, again, problem, _ = combined
    limit = int(0.9 * evaluate(stay, solve(stay).choices).peak_bytes)
    costs = [solve(type(one)(one.costs, one.edges, one.usages, limit)).cost for one in (stay, problem, again)]
    assert costs == sorted(costs)


def test_every_weight_that_may_stay_has_one_that_decides(built):
    deciding = {name for name, *_ in staying(built, MemoryRows(built)).values()}
    weights = {parameter.tensor for parameter in built.model.parameters}
    matrices = {name for name in weights if len(built.model.tensor(name).shape) == 2}
    held = {built.model.operators[index].inputs[position] for index, position in built.recompute.held}
    assert matrices & held
    assert matrices & held <= deciding
