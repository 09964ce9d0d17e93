"""Model + cluster + options -> plan: the whole road, for programs that use shardplan as a library."""

from __future__ import annotations

from collections.abc import Callable

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError, ShardplanError, error
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
from shardplan.plan.types import Plan
from shardplan.rules import model_rules
from shardplan.solve import Progress, solve
from shardplan.solve.problem import Solution

__all__ = ["PlanOptions", "plan_model"]


def plan_model(
    model: Model, cluster: Cluster, options: PlanOptions, on_progress: Callable[[Progress], None] | None = None
) -> Plan:
    """The best plan for `model` on `cluster`, with its proof.

    Raises `ShardplanError` for a model that cannot be planned as asked, `InfeasibleError` when it is proven that no
    plan fits in memory, `LimitError` when the time limit ends the search before any plan is found.
    """
    if options.training and (obstacles := training_obstacles(model)):
        raise ShardplanError(*obstacles)
    rules = model_rules(model)
    limit = options.memory_limit_bytes if options.memory_limit_bytes is not None else cluster.device.usable_bytes
    pricing = Pricing.of(cluster)
    refusals: list[ShardplanError] = []

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


def _no_plan(built: CostGraph, solution: Solution, limit_bytes: int) -> ShardplanError:
    name = f"'{built.model.name}' on '{built.cluster.name}' ({built.cluster.mesh})"
    if solution.outcome == "infeasible":
        missing = f"every device is at least {solution.shortfall_bytes} bytes short of the {limit_bytes} it may use"
        return InfeasibleError(error("infeasible", f"no plan for {name} fits in memory: {missing}"))
    return LimitError(error("limit", f"the search for {name} was ended before any plan was found"))
