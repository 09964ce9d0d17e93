"""Model + cluster + options -> plan: the whole road, for programs that use shardplan as a library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError
from shardplan.graph.build import CostGraph, build_cost_graph
from shardplan.graph.flow import training_obstacles
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.overlap import Trial, shortest_step
from shardplan.graph.pricing import Pricing
from shardplan.graph.problem import to_problem
from shardplan.graph.tensors import PICOSECONDS
from shardplan.model.types import Model
from shardplan.plan.assemble import Priced, assemble, price
from shardplan.plan.refusals import infeasible, out_of_time, without_rule
from shardplan.plan.types import Plan
from shardplan.rules import model_rules
from shardplan.solve import Progress, solve
from shardplan.solve.problem import Solution

__all__ = ["PlanOptions", "plan_model"]


def plan_model(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: Callable[[Progress], None] | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
) -> Plan:
    """The best plan for `model` on `cluster`, with its proof. `on_warning` hears of what the plan has to put up with.

    Raises `ShardplanError` for a model that cannot be planned as asked, `InfeasibleError` when it is proven that no
    plan fits in memory, `LimitError` when the time limit ends the search before any plan is found, and
    `KeyboardInterrupt` when the user does.
    """
    if options.training and (obstacles := training_obstacles(model)):
        raise ShardplanError(*obstacles)
    rules = model_rules(model)
    for diagnostic in without_rule(model, rules, strict=options.strict):
        if diagnostic.severity == "error":
            raise ShardplanError(diagnostic)
        model = replace(model, warnings=(*model.warnings, diagnostic))
        if on_warning is not None:
            on_warning(diagnostic)
    limit = options.memory_limit_bytes if options.memory_limit_bytes is not None else cluster.device.usable_bytes
    pricing = Pricing.of(cluster)
    refusals: list[ShardplanError | KeyboardInterrupt] = []

    def solve_at(weight: float) -> Trial[tuple[Priced, Memory]] | None:
        built = build_cost_graph(model, rules, cluster, options, pricing=pricing, overlap_weight=weight)
        memory = Memory(built)
        solution = solve(
            to_problem(built, memory, limit),
            time_limit=options.time_limit,
            seed=options.seed,
            presolve=options.presolve,
            on_progress=on_progress,
        )
        if solution.choices is None:
            refusals.append(_no_plan(built, solution, limit))
            return None
        priced = price(built, solution)
        return Trial(weight, (priced, memory), priced.f1_s, priced.f2_s, solution.bound / PICOSECONDS)

    found = shortest_step(solve_at)
    if found is None:
        raise refusals[0]
    trial, step_bound_s = found
    priced, memory = trial.plan
    return assemble(priced, memory, limit, step_bound_s)


def _no_plan(built: CostGraph, solution: Solution, limit_bytes: int) -> ShardplanError | KeyboardInterrupt:
    training = built.options.training
    if solution.outcome == "infeasible":
        shortfall = solution.shortfall_bytes
        return InfeasibleError(infeasible(built.model, built.cluster, limit_bytes, shortfall, training=training))
    if solution.outcome == "interrupted":
        return KeyboardInterrupt()
    return LimitError(out_of_time(built.model, built.cluster))
