"""The shortest step of all choices of layouts and of what runs again: tried one by one on tiny graphs."""

import itertools

import numpy as np
import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import trace
from shardplan.graph.fusion import fuse
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import to_problem
from shardplan.graph.remat import saving_least
from shardplan.model.read import read_model
from shardplan.planning import Planner
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
BATCHES = 4096
"""Assignments that are priced at once."""


def model_of(text, folder):
    path = folder / "tiny.onnx"
    onnx.save(proto_of(text), path)
    return read_model(path)


def labelled(model, cluster, options):
    """For every set of operators that may run again, its problems at weights one and zero."""
    rules = model_rules(model)
    flow = trace(model, rules, training=True)
    fusion = fuse(model, rules, flow)
    for chosen in itertools.product(*scope(model, rules, flow, fusion, options).labels):
        until = {index: label for index, label in enumerate(chosen) if label != ONCE}
        again = saving_least(model, rules, flow, fusion, until)
        planner = Planner(model, cluster, options)
        yield [
            to_problem(built, Memory(built), None)
            for weight in (1.0, 0.0)
            for built in [
                build_cost_graph(
                    model,
                    rules,
                    cluster,
                    options,
                    pricing=planner.instance.pricing,
                    overlap_weight=weight,
                    constraints=planner.instance.constraints,
                    complete=True,
                    again=again,
                )
            ]
        ]


def every_step(first, second):
    """Step in seconds and peak in bytes of every assignment: nothing is left to a solver."""
    sizes = [len(cost) for cost in first.costs]
    every = itertools.product(*map(range, sizes))
    while batch := list(itertools.islice(every, BATCHES)):
        choices = np.array(batch)
        sums = []
        for problem in (first, second):
            cost = sum(table[choices[:, node]] for node, table in enumerate(problem.costs))
            cost = cost + sum(edge.table[choices[:, edge.u], choices[:, edge.v]] for edge in problem.edges)
            sums.append(cost / PS_PER_S)
        held = np.zeros((len(choices), first.moments), dtype=np.int64)
        for usage in first.usages:
            held[:, usage.start : usage.end] += usage.amount[choices[:, usage.node]][:, None]
        step = np.maximum(*sums)
        possible = np.isfinite(step)
        yield from zip(step[possible].tolist(), held[possible].max(axis=1).tolist(), strict=True)


@pytest.mark.parametrize(
    ("text", "profile", "mesh"),
    [(TWO, "generic", "2"), (THREE, "generic", "2"), (LARGE_WEIGHTS, "h100-dgx", "2x1")],
    ids=["two", "three", "large weights"],
)
def test_auto_is_the_best_of_everything_there_is(text, profile, mesh, tmp_path):
    model, cluster = model_of(text, tmp_path), make_cluster(load_profile(profile), mesh)
    found = [sorted(set(every_step(*pair))) for pair in labelled(model, cluster, PlanOptions(remat="auto"))]
    assert len(found) >= 2
    least = min(peak for steps in found for _, peak in steps)
    most = min(steps[0] for steps in found)[1]
    assert least < most
    seen = set()
    for share in (0.0, 0.1, 0.3, 0.6, 1.0):
        limit = least + round(share * (most - least))
        best_s = min(step for steps in found for step, peak in steps if peak <= limit)
        options = PlanOptions(remat="auto", memory_limit_bytes=limit, gap=0.0)
        summary = Planner(model, cluster, options).plan().summary
        assert summary.step_ns == pytest.approx(best_s * 1e9, abs=1 + len(model.operators) / 1000)
        assert summary.step_bound_ns <= summary.step_ns
        seen.add(summary.step_ns)
    assert len(seen) > 1
    with pytest.raises(InfeasibleError):
        Planner(model, cluster, PlanOptions(remat="auto", memory_limit_bytes=least - 1), reasons=False).plan()
