"""Problems of several sums: each has its own numbers, and what is equal in several is one object."""

from __future__ import annotations

import numpy as np
import pytest

from shardplan.graph.memory import MemoryRows
from shardplan.graph.problem import node_order, objective_of, to_problem, to_problems
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.recipes import RECIPES
from shardplan.planning.reduction import Restricting
from shardplan.request import Request
from shardplan.schedule.objective import single_sums
from shardplan.solve.bound.averages import averaged
from shardplan.solve.linear_functions import Functions
from shardplan.solve.problem import Maximum, rises
from shardplan.study.instance import read


@pytest.fixture(scope="module")
def setting():
    """A cost graph, its memory, and the problem of every sum of its objective."""
    asked = read(Request(model="transformer:layers=2,hidden=512,heads=8,vocab=1000,seq=256,batch=16", mesh="2x2"))
    built, _ = CostGraphs(instance_of(asked.model, asked.cluster, asked.options, pytest.fail)).asked()
    memory, sums = MemoryRows(built), single_sums(objective_of(built))
    return built, memory, sums, to_problems(built, memory, None, sums)


def arrays(problem):
    return [*problem.costs, *(edge.table for edge in problem.edges)]


def test_problems_made_together_are_those_made_alone(setting):
    built, memory, sums, together = setting
    assert len(sums) > 3
    for linear, problem in zip(sums, together, strict=True):
        alone = to_problem(built, memory, None, linear)
        assert all(map(np.array_equal, arrays(alone), arrays(problem)))
        assert [(edge.u, edge.v) for edge in alone.edges] == [(edge.u, edge.v) for edge in problem.edges]


def test_what_another_sum_does_not_change_is_the_same_object(setting):
    _, _, _, (first, *others) = setting
    same = [one is two for other in others for one, two in zip(arrays(first), arrays(other), strict=True)]
    assert sum(same) > len(same) / 3, "most terms belong to one phase, and the sums of others leave them"
    added = rises(first, others)
    kept = [array for one in added for array in (*one.costs, *one.tables)]
    zeros = {id(array) for array, is_same in zip(kept, same, strict=True) if is_same}
    assert len(zeros) <= len({array.shape for array in kept})
    assert not any(array.any() for array, is_same in zip(kept, same, strict=True) if is_same)


def test_averages_are_the_weighted_sums(setting):
    _, _, _, (first, *others) = setting
    sums = rises(first, others)
    problem = type(first)(first.costs, first.edges, maxima=(Maximum(sums),))
    functions, weights = Functions.of(problem), [3 * number for number in range(len(sums))]
    mixed = averaged(problem, functions, weights, 4)
    for place, array in enumerate(arrays(mixed)):
        parts = [[*one.costs, *one.tables][place] for one in sums]
        wanted = 16 * arrays(first)[place] + sum(weight * part for weight, part in zip(weights, parts, strict=True))
        assert np.array_equal(array, wanted)
    assert not mixed.maxima


def test_a_restriction_is_asked_once_for_a_cost_graph(setting):
    built, _, _, problems = setting
    asked = []
    recipe = RECIPES["ZeRO-3"]
    limited = Restricting(lambda graph: asked.append(graph) or recipe(graph))
    found = [limited(problem, built) for problem in problems]
    assert asked == [built]
    allowed = recipe(built)
    assert allowed
    for before, after in zip(problems, found, strict=True):
        for node, old, new in zip(node_order(built), before.costs, after.costs, strict=True):
            assert np.array_equal(new, np.where(allowed[node], old, np.inf) if node in allowed else old)
    shared = [one is two for one, two in zip(arrays(found[0]), arrays(found[1]), strict=True)]
    unlimited = [one is two for one, two in zip(arrays(problems[0]), arrays(problems[1]), strict=True)]
    assert shared == unlimited
