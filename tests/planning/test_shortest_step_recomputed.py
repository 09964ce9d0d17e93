"""The shortest step of all choices of layouts and of what runs again: tried one by one on tiny graphs."""

import itertools
import math

import onnx
import pytest
from small_models import proto_of
from step_problems import every_assignment, step_problem

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import trace
from shardplan.graph.fusion import fuse
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import PlanOptions
from shardplan.graph.remat import saving_least
from shardplan.model.read import read_model
from shardplan.plan.assemble import price
from shardplan.planning import Planner
from shardplan.planning.chain import Question, answer
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.remat_scope import ONCE, scope
from shardplan.rules import model_rules
from shardplan.units import PS_PER_S

TWO = """
two (float[2048,256] x) => (float[2048,1] y)
<float[256,1] w> {
  a = Gelu (x)
  y = MatMul (a, w)
}"""
THREE = """
three (float[1024,32] x) => (float[1024,8] y)
<float[32,256] w1, float[256,8] w2> {
  a = MatMul (x, w1)
  b = Tanh (a)
  y = MatMul (b, w2)
}"""
LARGE_WEIGHTS = """
large_weights (float[1024,512] x) => (float[1024,64] y)
<float[512,512] w1, float[512,64] w2> {
  a = MatMul (x, w1)
  b = Tanh (a)
  y = MatMul (b, w2)
}"""
MOST = 25
"""Assignments that are scheduled under one limit: those of the least objective."""


def model_of(text, folder):
    path = folder / "tiny.onnx"
    onnx.save(proto_of(text), path)
    return read_model(path)


def recomputing(model, cluster, options):
    """The cost graphs of every set of operators that may run again."""
    rules = model_rules(model)
    flow = trace(model, rules, training=True)
    fusion = fuse(model, rules, flow)
    for chosen in itertools.product(*scope(model, rules, flow, fusion, options).labels):
        until = {index: label for index, label in enumerate(chosen) if label != ONCE}
        again = saving_least(model, rules, flow, fusion, until, holds=True)
        yield build_cost_graph(model, rules, cluster, options, remat=again)


def scheduled_s(built, choices, limit):
    """The scheduled step of an assignment under a limit on memory, or `inf` where it does not fit."""
    priced = price(built, MemoryRows(built), choices, limit)
    return priced.step_s if priced.memory.total <= limit else math.inf


@pytest.mark.parametrize(
    ("text", "profile", "mesh"),
    [(TWO, "generic", "2"), (THREE, "generic", "2"), (LARGE_WEIGHTS, "h100-dgx", "2x1")],
    ids=["two", "three", "large weights"],
)
def test_auto_is_as_near_to_the_best_of_everything_there_is_as_it_says(text, profile, mesh, tmp_path):
    """The objective is the least there is, no assignment's schedule is shorter than its objective, and none is shorter
    than the plan's by more than the gap."""
    model, cluster = model_of(text, tmp_path), make_cluster(load_profile(profile), mesh)
    graphs = list(recomputing(model, cluster, PlanOptions(remat="auto")))
    found = [every_assignment(step_problem(built)) for built in graphs]
    assert len(found) >= 2
    least = min(int(steps.peak.min()) for steps in found)
    most = int(min((steps.cost.min(), steps.peak[steps.cost.argmin()]) for steps in found)[1])
    assert least < most
    seen = set()
    for share in (0.0, 0.1, 0.3, 0.6, 1.0):
        limit = least + round(share * (most - least))
        options = PlanOptions(remat="auto", memory_limit_bytes=limit, gap=0.0)
        summary = Planner(model, cluster, options).plan().summary
        fitting = [steps.within(limit) for steps in found]
        lowest = min(float(steps.cost[0]) for steps in fitting if len(steps.cost))
        solved = answer(CostGraphs(instance_of(model, cluster, options, print)), Question(limit, chooses_remat=True))
        assert (solved.solution.outcome, solved.solution.bound) == ("optimal", pytest.approx(lowest, abs=1000))
        slack_s = 1e-9 * (1 + 2 * len(model.operators))
        assert summary.step_bound_ns / 1e9 <= lowest / PS_PER_S + slack_s
        for built, steps in zip(graphs, fitting, strict=True):
            for choices, cost, _ in itertools.islice(steps, MOST):
                assert scheduled_s(built, choices, limit) >= max(cost / PS_PER_S, summary.step_bound_ns / 1e9) - slack_s
        seen.add(summary.step_ns)
    assert len(seen) > 1
    with pytest.raises(InfeasibleError):
        Planner(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=least - 1), reasons=False).plan()
