"""Plans that are not the fastest but another: by a hand-written recipe, or at random. Every one is legal and priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import to_problem
from shardplan.graph.recipes import RECIPES, restrict
from shardplan.model.types import Model
from shardplan.plan.assemble import assemble, price
from shardplan.plan.types import Plan
from shardplan.rules import model_rules
from shardplan.solve import solve
from shardplan.solve.evaluate import evaluate

TRAINING, INFERENCE = PlanOptions(), PlanOptions(mode="inference")


def cluster_of(mesh: str):
    return make_cluster(load_profile("generic"), mesh)


def forced_plan(
    model: Model,
    mesh: str,
    options: PlanOptions = TRAINING,
    *,
    recipe: str = "",
    seed: int | None = None,
    limit_bytes: int | None = None,
) -> Plan:
    """The plan of a recipe, or, with a seed, one whose every choice is drawn at random among those that fit."""
    cluster = cluster_of(mesh)
    built = build_cost_graph(model, model_rules(model), cluster, options)
    memory = Memory(built)
    problem = to_problem(built, memory, limit_bytes)
    wanted = restrict(problem, built, RECIPES[recipe](built)) if recipe else problem
    if seed is not None:
        generator = np.random.default_rng(seed)
        drawn = [
            np.where(np.isfinite(cost), generator.integers(1 << 30, size=len(cost)), np.inf) for cost in wanted.costs
        ]
        wanted = replace(wanted, costs=tuple(drawn))
    solution = solve(wanted)
    assert solution.choices is not None
    priced = price(built, replace(solution, cost=evaluate(problem, solution.choices).cost, bound=0.0))
    return assemble(priced, memory, limit_bytes or cluster.device.usable_bytes, 0.0)
