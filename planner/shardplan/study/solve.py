"""From a request or its instance to a plan: on one mesh, as a pipeline, or on the best of all logical meshes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from shardplan.advice.uneven import hold_unevenly
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError, OnWarning
from shardplan.garbage import few_collections
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.pipeline.plan import plan_stages
from shardplan.plan.recorded_request import cluster_of
from shardplan.plan.types import Plan
from shardplan.planning import plan_model
from shardplan.planning.standing import OnProgress
from shardplan.request import Request
from shardplan.study.instance import ReadRequest, read
from shardplan.study.meshes import INTERRUPTED, OUT_OF_TIME, MeshTrial, best_of, logical_meshes, try_meshes


@dataclass(frozen=True)
class Solved:
    """`plan`, with its model and cluster (dims of the model may be padded). `trials`: the results for every logical
    mesh, if one was to be chosen."""

    plan: Plan
    model: Model
    cluster: Cluster
    trials: tuple[MeshTrial, ...] = ()


class NoMeshError(InfeasibleError):
    """It is proven that no plan fits on any of the logical meshes `trials`."""

    def __init__(self, trials: tuple[MeshTrial, ...]) -> None:
        self.trials = trials
        super().__init__(*next(trial.diagnostics for trial in trials if trial.diagnostics))


def plan(request: Request, on_progress: OnProgress | None = None, on_warning: OnWarning | None = None) -> Plan:
    """The fastest plan that `request` allows.

    Raises `ShardplanError` with everything that is wrong with its inputs, `InfeasibleError` when it is proven that no
    plan fits in memory, `LimitError` when the time limit ends the search before any plan is found.
    """
    instance = read(request)
    if on_warning is not None:
        for diagnostic in (*instance.model.warnings, *instance.cluster.warnings):
            on_warning(diagnostic)
    return solve(instance, on_progress, on_warning).plan


def solve(
    instance: ReadRequest,
    on_progress: OnProgress | None = None,
    on_warning: OnWarning | None = None,
    *,
    processes: int = 1,
    most_axes: int | None = None,
) -> Solved:
    """`plan` for inputs that were read. `processes`: that search logical meshes in parallel; `most_axes`: meshes with
    more axes are left out."""
    started_s = time.monotonic()
    with few_collections():
        found = _solved(instance, on_progress, on_warning, processes, most_axes)
    if instance.is_uneven:
        model, plan = _held_unevenly(instance, found.plan, started_s, on_progress)
        found = replace(found, model=model, plan=plan)
    return replace(found, plan=replace(found.plan, sources=instance.sources))


def _held_unevenly(
    instance: ReadRequest, plan: Plan, started_s: float, on_progress: OnProgress | None
) -> tuple[Model, Plan]:
    options = instance.options
    left_s = math.inf if options.time_limit is None else options.time_limit - (time.monotonic() - started_s)
    return hold_unevenly(instance.model, instance.cluster, options, plan, left_s, on_progress)


def _solved(
    instance: ReadRequest,
    on_progress: OnProgress | None,
    on_warning: OnWarning | None,
    processes: int,
    most_axes: int | None,
) -> Solved:
    model, cluster, options = instance.model, instance.cluster, instance.options
    if instance.staging is not None:
        schedule, stages = instance.staging.schedule, instance.staging.stages
        return Solved(plan_stages(model, cluster, options, schedule, stages, on_warning, on_progress), model, cluster)
    if not instance.is_auto:
        plan = plan_model(model, cluster, options, on_progress, on_warning, start=instance.start)
        return Solved(plan, model, cluster)
    profile = profile_from_resolved(cluster.resolved)
    meshes = [text for text in logical_meshes(profile) if most_axes is None or len(text.split(",")) <= most_axes]
    deep = max(len(text.split(",")) for text in meshes) > 2  # small ones are solved before a process has begun
    trials = try_meshes(
        model, profile, options, meshes, processes=processes if deep else 1, on_progress=on_progress,
        start=instance.start, on_warning=on_warning,
    )  # fmt: skip
    best = best_of(trials)
    if best is None or best.plan is None:
        late = [trial for trial in trials if trial.reason == OUT_OF_TIME]
        raise LimitError(*late[0].diagnostics) if late else NoMeshError(trials)
    if on_warning is not None:
        for diagnostic in best.diagnostics:
            on_warning(diagnostic)
    summary = best.plan.summary
    if any(trial.reason == INTERRUPTED for trial in trials):
        summary = replace(summary, outcome="interrupted")
    if any(_is_by_clock(trial, options) for trial in trials):
        summary = replace(summary, reproducible=False)
    best = replace(best, plan=replace(best.plan, summary=summary))
    assert best.plan is not None
    return Solved(best.plan, model, cluster_of(best.plan, "the plan"), trials)


def _is_by_clock(trial: MeshTrial, options: PlanOptions) -> bool:
    """Whether time or Ctrl-C decided what is known of a mesh, and so which one is the best."""
    if trial.plan is not None:
        return not trial.plan.summary.reproducible
    return trial.reason == INTERRUPTED or (trial.reason == OUT_OF_TIME and options.time_limit is not None)
