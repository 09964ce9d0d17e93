"""`solve --mesh auto` and `solve --stages`: the best logical mesh, and the best pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import InfeasibleError, ShardplanError, error
from shardplan.verbs.session import Session, Verb, option

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.graph.options import PlanOptions
    from shardplan.model.types import Model
    from shardplan.pipeline.manual.stages import ManualStages
    from shardplan.pipeline.schedule import Schedule
    from shardplan.plan.types import Plan
    from shardplan.study.meshes import MeshTrial

AUTO = "auto"
_MOST_PROCESSES = 4

devices_option = option(
    "--devices",
    metavar="SIZES",
    help="With --mesh auto: the devices to lay a mesh over, such as 4x8.  [default: the profile's]",
)


stages_option = option(
    "--stages",
    metavar="auto|N|PLAN",
    help="Cut the model into a pipeline: of N stages, of as many as are best, or as another plan (.json) is cut.",
)
schedule_option = option(
    "--schedule",
    metavar="NAME",
    default="1f1b",
    show_default=True,
    help="Of the pipeline: 1f1b, gpipe or interleaved:V.",
)


def mesh_options(function: Verb) -> Verb:
    """Add `--devices`, `--stages` and `--schedule`."""
    return devices_option(stages_option(schedule_option(function)))


@dataclass(frozen=True)
class Staging:
    """A pipeline as asked for: `stages` is None where the number is left to us."""

    stages: int | ManualStages | None
    schedule: Schedule


def read_staging(given: Mapping[str, Any]) -> Staging | None:
    """What `--stages` and `--schedule` ask for; None for no pipeline. Raises `ShardplanError`."""
    manual = None
    if given["constraint_files"]:
        from shardplan.pipeline.manual.stages import read_stages

        manual = read_stages(given["constraint_files"])
    if given["stages"] is None and manual is None:
        return None
    from shardplan.pipeline.schedule import parse_schedule

    schedule = parse_schedule(given["schedule"])
    if manual is not None:
        if given["stages"] is not None:
            raise click.UsageError("--stages, and stages in a constraints file: only one can say where to cut")
        return Staging(manual, schedule)
    text = given["stages"]
    if text.endswith(".json"):
        from shardplan.pipeline.manual.stages import stages_of
        from shardplan.plan.file import read_plan

        return Staging(stages_of(read_plan(text), text), schedule)
    if text != AUTO and not (text.isascii() and text.isdigit() and int(text) > 0):
        hint = "a positive number, auto, or the file of a plan (.json)"
        raise ShardplanError(error("bad-stages", f"--stages '{text}' is no number of stages", hint=hint))
    return Staging(None if text == AUTO else int(text), schedule)


def plan_pipeline(session: Session, model: Model, cluster: Cluster, options: PlanOptions, staging: Staging) -> Plan:
    """The best pipeline. Raises `InfeasibleError` when none fits."""
    from shardplan.pipeline.plan import plan_stages

    try:
        return plan_stages(model, cluster, options, staging.schedule, staging.stages, session.say)
    except InfeasibleError:
        from shardplan.plan.encode import infeasible_summary

        limit = options.memory_limit_bytes or cluster.device.usable_bytes
        session.failure = {"plan": None, "summary": infeasible_summary(limit)}
        raise


def physical(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given` with the devices as the mesh, where that is left to us."""
    if given["mesh"] == AUTO and given["stages"] is not None:
        raise click.UsageError("--mesh auto and --stages: stages choose their meshes among the parts of one --mesh")
    if given["mesh"] == AUTO:
        return {**given, "mesh": given["devices"]}
    if given["devices"] is not None:
        raise click.UsageError("--devices goes with --mesh auto; otherwise --mesh says which devices there are")
    return given


def search_meshes(session: Session, model: Model, cluster: Cluster, options: PlanOptions) -> tuple[MeshTrial, ...]:
    """What came of every logical mesh over the devices of `cluster`.

    Raises `InfeasibleError` when no plan fits on any of them.
    """
    from shardplan.cluster.build import profile_from_resolved
    from shardplan.render.meshes import meshes_record
    from shardplan.study.meshes import best_of, logical_meshes, try_meshes

    profile = profile_from_resolved(cluster.resolved)
    meshes = logical_meshes(profile)
    deep = max(len(text.split(",")) for text in meshes) > 2  # small ones are solved before a process has begun
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES) if deep else 1
    trials = try_meshes(model, profile, options, meshes, processes=processes)
    if best_of(trials) is None:
        session.failure = {"plan": None, "meshes": meshes_record(trials)}
        raise InfeasibleError(*next(trial.diagnostics for trial in trials if trial.diagnostics))
    return trials


def again(plan: Plan, file: str) -> Callable[[Model, Cluster, PlanOptions], Plan]:
    """Solves a plan with stages, read from `file`, anew, as it was asked for."""
    from shardplan.pipeline.plan import plan_stages
    from shardplan.pipeline.schedule import parse_schedule

    asked = plan.model.get("stages")
    schedule = parse_schedule(str(plan.model.get("schedule")))
    if asked == "manual":
        from shardplan.pipeline.manual.stages import stages_asked_for

        by_hand = stages_asked_for(plan, file)  # what held for all stages is among what each was planned under
        return lambda model, cluster, options: plan_stages(
            model, cluster, replace(options, constraints=()), schedule, by_hand
        )
    count = asked if isinstance(asked, int) else None
    return lambda model, cluster, options: plan_stages(model, cluster, options, schedule, count)
