"""From a model, a cluster and options to the best plan."""

from __future__ import annotations

from collections.abc import Callable

from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning.finer import CoarsePlans
from shardplan.planning.planner import Planner
from shardplan.planning.standing import OnProgress
from shardplan.planning.start_plan import StartPlan


def plan_model(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: OnProgress | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
    coarse: CoarsePlans | None = None,
    start: StartPlan | None = None,
) -> Plan:
    """The best plan for `model` on `cluster`, with its proof. `on_warning` is called with warnings about the request
    and the search, and with a note on `start`. `coarse`, `start`: as in `Planner`.

    Raises `ShardplanError` for a model that cannot be planned as asked, `InfeasibleError` (`NoneFitsError` if it is not
    proven) when no plan fits in memory, `LimitError` and `KeyboardInterrupt` when it ends before any plan is found.
    """
    return Planner(model, cluster, options, on_progress, on_warning, coarse=coarse, start=start).plan()
