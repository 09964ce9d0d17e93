"""Padding of sizes that axes do not divide, if that makes the step shorter: shards of unequal size."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Final

from shardplan.advice.advise import Asked
from shardplan.cluster.types import Cluster
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import plan_model
from shardplan.planning.standing import OnProgress

MOST_SIZES: Final = 3
"""Number of sizes that are padded in one plan: each takes a search."""


def hold_unevenly(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    plan: Plan,
    left_s: float = math.inf,
    on_progress: OnProgress | None = None,
) -> tuple[Model, Plan]:
    """`model` and `plan`, or a faster plan with its padded model (see `shardplan.padding`).

    Sizes are chosen one after the other by the shortest promised step. `left_s`: seconds left of a time limit. Ctrl-C
    ends it early.
    """
    ends_s, by_clock = time.monotonic() + left_s, False
    for _ in range(MOST_SIZES):
        if not options.cost_model.is_ours or not plan.summary.step_ns:
            break
        by_clock = plan.summary.outcome == "interrupted" or time.monotonic() >= ends_s
        if by_clock:
            break
        quick = replace(options, effort="quick", strict=False)
        best = Asked(model, cluster, quick, plan, ends_s).best_size(is_held=True)
        by_clock = time.monotonic() >= ends_s
        if best is None:
            break
        _, held, _ = best
        limit = max(0.01, ends_s - time.monotonic()) if math.isfinite(ends_s) else None
        try:
            found = plan_model(held, cluster, replace(options, time_limit=limit), on_progress)
        except ShardplanError:
            break
        by_clock = not found.summary.reproducible
        if found.summary.step_ns >= plan.summary.step_ns:
            break
        model, plan = held, found
    is_reproducible = plan.summary.reproducible and not by_clock
    return model, replace(plan, summary=replace(plan.summary, reproducible=is_reproducible))
