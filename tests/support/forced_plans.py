"""Plans that are not the fastest but another: by a hand-written recipe, or at random. Every one is legal and priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Coalesce
from shardplan.extras.peers.restrictions import alpa_products
from shardplan.graph.build import CostGraph, build_cost_graph, in_buckets
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.problem import node_order, objective_of, to_problem
from shardplan.model.types import Model
from shardplan.plan.assemble import PricedAssignment, Proof, assemble, price
from shardplan.plan.step.phases import EAGER
from shardplan.plan.step.staying_weights import copies
from shardplan.plan.types import Plan
from shardplan.planning.recipes import recipes_for
from shardplan.planning.reduction import restrict
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import RUNTIMES
from shardplan.rules import model_rules
from shardplan.schedule.objective import plain_sum
from shardplan.solve import solve
from shardplan.solve.problem import Costs, Problem

_UNPROVEN = 0.02
"""Relative gap that is left of a plan in little memory: a good plan is wanted, not the proof that it is the best."""
_EXPOSED = 0.1
"""Share of all traffic that counts beside what computes and blocks."""
TRAINING, INFERENCE = PlanOptions(), PlanOptions(mode="inference")


def cluster_of(mesh: str, bucket_bytes: float | None = None):
    """The generic cluster; `bucket_bytes`: of gradients that are sent together, if not what the profile says."""
    cluster = make_cluster(load_profile("generic"), mesh)
    return cluster if bucket_bytes is None else replace(cluster, coalesce=Coalesce(bucket_bytes))


def forced_plan(
    model: Model,
    mesh: str,
    options: PlanOptions = TRAINING,
    *,
    recipe: str = "",
    runtime: str = "",
    seed: int | None = None,
    limit_bytes: int | None = None,
    bucket_bytes: float | None = None,
    exposed: float = _EXPOSED,
) -> Plan:
    """The plan of a recipe (`2-D`: every axis splits every matrix product, each in its own way), or, with a seed, one
    whose every choice is drawn at random among those that fit. `runtime`: one that says all of it, such as `jax`.
    `exposed`: share of all traffic that counts."""
    cluster = cluster_of(mesh, bucket_bytes)
    built = build_cost_graph(model, model_rules(model), cluster, options)
    built = in_buckets(built, cluster.coalesce.bucket_bytes)  # as of a large model, whose buckets become full
    memory = MemoryRows(built)
    little_exposed = plain_sum(objective_of(built), exposed, exposed, outermost=False)
    problem = to_problem(built, memory, limit_bytes, little_exposed)
    recipes = {**recipes_for(options), "2-D": alpa_products}
    wanted = restrict(problem, built, recipes[recipe](built)) if recipe else problem
    if runtime:
        arrangement, *_ = RUNTIMES[runtime].arrangements(cluster.mesh)
        wanted = restrict(wanted, built, Arrangement(RUNTIMES[runtime], arrangement)(built))
    if seed is not None:
        wanted = replace(wanted, costs=_drawn(wanted, built, np.random.default_rng(seed)))
    solution = solve(wanted, unproven=_UNPROVEN if limit_bytes else 0.0)
    assert solution.choices is not None
    limit = limit_bytes or cluster.device.usable_bytes
    priced = price(built, memory, solution.choices, limit)
    if recipe == "ZeRO-3" or (seed is not None and seed % 2):
        priced = gathering_again(priced)
    return assemble(priced, limit, Proof(0.0))


def gathering_again(priced: PricedAssignment) -> PricedAssignment:
    """The same with all weights re-gathered for backward, as ZeRO-3 does, and as early as in a first schedule."""
    lowered = priced.lowered
    staying = copies(lowered.built, priced.moves, lowered.rows)
    again = frozenset(copy.tensor for copy in staying)
    step = lowered.step(again)
    return replace(priced, fitted=lowered.in_time(lowered.under(EAGER, step, again), step, UNLIMITED_BYTES))


def _drawn(problem: Problem, built: CostGraph, generator: np.random.Generator) -> tuple[Costs, ...]:
    """A cost at random for every choice that there is; the copies of a repeated block between its first and its last
    have those of the second, so that what they have in common is worked out once."""
    costs, like = {}, _copied(built.model)
    for (kind, name), cost in zip(node_order(built), problem.costs, strict=True):
        drawn = np.where(np.isfinite(cost), generator.integers(1 << 30, size=len(cost)), np.inf)
        other = costs.get((kind, like.get(name, name)))
        same = other is not None and np.array_equal(np.isfinite(other), np.isfinite(cost))
        costs[kind, name] = other if same else drawn
    return tuple(costs.values())


def _copied(model: Model) -> dict[str, str]:
    """Operators and tensors of further copies of repeated blocks -> those of the second copy that they stand beside."""
    found: dict[str, str] = {}
    for block in model.blocks:
        for copy in block.copies[2:-1]:
            for index, second in zip(copy, block.copies[1], strict=True):
                one, other = model.operators[index], model.operators[second]
                found[one.name] = other.name
                found |= dict(zip(one.outputs, other.outputs, strict=True))
                for name, beside in zip(one.inputs, other.inputs, strict=True):
                    found.setdefault(name, beside)
    return found
