"""The step of a plan whose optimizer state is sharded apart from its weights (ZeRO-1), estimated from a known plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Final

from shardplan.cluster.types import Cluster
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.constants import MANY_OPERATORS
from shardplan.planning.decided import Decided
from shardplan.units import NS_PER_S, PS_PER_S

LEAST: Final = 0.02
"""Share of the step that advice must save, by its lower bound and by its search."""
FAR_BELOW: Final = 0.85
"""A search with everything free takes longer than the others: it follows if the bound is below this share of what is
wanted."""


def promised_step_s(planner: Planner, plan: Plan, below_s: float, work: float, ends_s: float = math.inf) -> float:
    """A lower bound on the step of another request than that of `plan`: at the multipliers of `plan`, and at usual
    ones, since the plan's may suit only their own mesh. Infinite if it is `below_s` or more, if there is no plan, or no
    time (`ends_s`, `time.monotonic`). `work`: of each of the two plain problems. Raises `ShardplanError` for a request
    that cannot be planned."""
    least_s = 0.0
    for multipliers in (plan.summary.multipliers, planner.usual_multipliers):
        if time.monotonic() >= ends_s:
            return math.inf
        solution = planner.solve_at(multipliers, work=work, enough_s=below_s).solution
        if solution.outcome == "interrupted":
            raise KeyboardInterrupt
        least_s = max(least_s, solution.bound / PS_PER_S)
        if solution.choices is None or least_s >= below_s:
            return math.inf
    return least_s


def least_step_s(
    model: Model, cluster: Cluster, options: PlanOptions, plan: Plan, below_s: float, work: float, bound_work: float
) -> float:
    """The seconds of the best step that is found at the multipliers of `plan` and at usual ones: where everything is
    free, and where the operators are split as in `plan` and only the places of weights and of their state are free. If
    none of these is shorter by the share `LEAST`, a search follows with the operators split so; of a deep model none,
    which would take longer than the search for `plan`. If the lower bound is far below, or `plan` is on another mesh, a
    search with everything free is the last. Infinite if no step below a lower bound of `below_s` is possible. `work`,
    `bound_work`: of a search, and of the bound. Raises `ShardplanError` for a request that cannot be planned."""
    decided = plan if plan.mesh == cluster.mesh else None
    planner = Planner(model, cluster, replace(options, shard_optimizer=True), reasons=False, decided=decided)
    least_s = promised_step_s(planner, plan, below_s, bound_work)
    if math.isinf(least_s):
        return math.inf
    as_split = None if decided is None else Decided.of_plan(decided).as_split
    if as_split is not None:
        for multipliers in (plan.summary.multipliers, planner.usual_multipliers):
            planner.solve_at(multipliers, as_split, work)
    step_s = min((one.step_s for one in planner.known.values() if one.keeps(planner.limit_bytes)), default=math.inf)
    wanted_s = (1 - LEAST) * plan.summary.step_ns / NS_PER_S
    if step_s >= wanted_s and as_split is not None and len(model.operators) < MANY_OPERATORS:
        step_s = min(step_s, planner.plan(as_split, work=work).summary.step_ns / NS_PER_S)
    if step_s >= wanted_s and (as_split is None or least_s < FAR_BELOW * wanted_s):
        step_s = min(step_s, planner.plan(work=work).summary.step_ns / NS_PER_S)
    return step_s
