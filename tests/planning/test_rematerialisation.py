"""What to recompute, chosen with the layouts: held against every choice tried one by one, and against the flags."""

import itertools
import math
from dataclasses import replace

import onnx
import pytest
from small_models import proto_of
from step_problems import base_problem, step_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import trace
from shardplan.graph.fusion import fuse
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import objective_of
from shardplan.graph.remat import saving_least
from shardplan.model.read import read_model
from shardplan.planning import Planner
from shardplan.planning.chain import Question, answer
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.remat_scope import ONCE, scope
from shardplan.rules import model_rules
from shardplan.schedule.objective import at_multipliers
from shardplan.solve import evaluate, solve
from shardplan.solve.budget import Budget
from shardplan.solve.shortfall import least_limit

CHAIN = """
chain (float[2048,64] x) => (float[2048,8] y)
<float[64,64] w1, float[64,64] w2, float[64,64] w3, float[64,8] w4> {
  a = MatMul (x, w1)
  b = Gelu (a)
  c = MatMul (b, w2)
  d = Gelu (c)
  e = MatMul (d, w3)
  f, g = Split <axis = 1, num_outputs = 2> (e)
  h = Mul (f, g)
  i = Concat <axis = 1> (h, h)
  r = Add (i, d)
  y = MatMul (r, w4)
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    onnx.save(proto_of(CHAIN), path)
    return read_model(path)


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("generic"), "2")


def assignments(model, cluster, problem_of):
    """The problem of every set of operators that may run again, each with what else follows from it."""
    rules, options = model_rules(model), PlanOptions()
    flow = trace(model, rules, training=True)
    fusion = fuse(model, rules, flow)
    labels = scope(model, rules, flow, fusion, options).labels
    for chosen in itertools.product(*labels):
        until = {index: label for index, label in enumerate(chosen) if label != ONCE}
        again = saving_least(model, rules, flow, fusion, until, holds=True)
        yield until, problem_of(build_cost_graph(model, rules, cluster, options, remat=again))


def best_of(tried, limit):
    """The least cost of any choice within a limit: those that cost more even without one are not looked at."""
    best = math.inf
    for free, least, problem in sorted(tried, key=lambda one: one[:2]):
        if free >= best:
            break
        if least <= limit:
            best = min(best, solve(replace(problem, limit=limit)).cost)
    return best


def best_answer(model, cluster, limit, linear=None):
    """What the planner chooses, what to recompute included."""
    graphs = CostGraphs(
        instance_of(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=limit, gap=0.0), lambda _: None)
    )
    found = answer(graphs, Question(limit, linear=linear, chooses_remat=True))
    assert found.solution.outcome == "optimal"
    return found


def test_the_best_of_every_choice_tried_one_by_one(model, cluster):
    problems = list(assignments(model, cluster, base_problem))
    tried = [(solve(problem).cost, least_limit(problem, Budget()), problem) for _, problem in problems]
    assert len(tried) == 128
    plain = next(problem for until, problem in problems if not until)
    most = evaluate(plain, solve(plain).choices).peak_bytes
    least = min(least for _, least, _ in tried)
    assert least < 0.8 * least_limit(plain, Budget())
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    base = at_multipliers(objective_of(built), ())
    found = set()
    for share in (0.0, 0.2, 0.5, 0.9):
        limit = least + round(share * (most - least))
        solved = best_answer(model, cluster, limit, base)
        assert solved.solution.cost == pytest.approx(best_of(tried, limit), abs=len(model.operators))
        found.add(frozenset(solved.layouts.built.recompute.until))
    assert len(found) > 2


def test_the_objective_is_the_least_of_every_choice_tried_one_by_one(model, cluster):
    problems = [problem for _, problem in assignments(model, cluster, step_problem)]
    tried = [(solve(problem).cost, least_limit(problem, Budget()), problem) for problem in problems]
    least = min(least for _, least, _ in tried)
    most = evaluate(problems[0], solve(problems[0]).choices).peak_bytes
    found = set()
    for share in (0.0, 0.2, 0.5):
        limit = least + round(share * (most - least))
        solved = best_answer(model, cluster, limit)
        assert solved.solution.cost == pytest.approx(best_of(tried, limit), abs=len(model.operators))
        found.add(frozenset(solved.layouts.built.recompute.until))
        plan = Planner(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=limit, gap=0.0)).plan()
        assert plan.summary.memory.total <= limit
        assert solved.solution.bound <= 1000 * plan.summary.step_ns + 1000 * len(plan.operators)
    assert len(found) > 1
