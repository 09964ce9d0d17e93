"""Stages as planned -> one plan: what the command line writes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from shardplan.cluster.mesh import cluster_digest
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.assemble import model_section
from shardplan.plan.types import Memory, Pipeline, Plan, Stage, Summary, Transfer
from shardplan.stages.pipeline import StagedPlans, Stager
from shardplan.stages.schedule import Schedule
from shardplan.stages.submeshes import placed


def plan_stages(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    schedule: Schedule,
    stages: int | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
) -> Plan:
    """The best pipeline of `model` on `cluster`: of `stages` stages, or of as many as are best.

    Raises `ShardplanError` for a model that cannot be cut or planned as asked, `InfeasibleError` when no cut fits.
    """
    stager = Stager(model, cluster, options, schedule, stages)
    plan = staged_plan(stager, stager.solve())
    if on_warning is not None:
        for diagnostic in model.warnings:
            on_warning(diagnostic)
    return plan


def staged_plan(stager: Stager, found: StagedPlans) -> Plan:
    """The plan of the pipeline `found`: its summary is that of a whole step, its decisions are in its stages."""
    starts = placed([part.size for part in found.parts])
    names = found.chain.names
    stages = tuple(
        Stage(f"stage {place}", start, names[cut.first : cut.last], waiting, plan)
        for place, (cut, start, waiting, plan) in enumerate(
            zip(found.cuts, starts, found.in_flight, found.plans, strict=True)
        )
    )
    summary = _summary(stager, found)
    slowest = max(plan.summary.step_ns for plan in found.plans)
    whole = stager.whole
    return Plan(
        model={**model_section(whole), "schedule": str(stager.schedule), "stages": stager.stages or "auto"},
        cluster={
            "name": stager.cluster.name,
            "digest": cluster_digest(stager.cluster),
            "profile": stager.cluster.resolved,
        },
        mesh=stager.cluster.mesh,
        axis_links=tuple(stager.cluster.levels[level].name for level in stager.cluster.axis_levels),
        summary=summary,
        tensors=(),
        operators=(),
        moves=(),
        warnings=tuple(dict.fromkeys(warning for plan in found.plans for warning in plan.warnings)),
        pipeline=Pipeline(
            schedule=str(stager.schedule),
            stages=stages,
            transfers=_transfers(stager, found),
            bubble=round(1.0 - slowest / found.step_ns, 6) if found.step_ns else 0.0,
        ),
    )


def _transfers(stager: Stager, found: StagedPlans) -> tuple[Transfer, ...]:
    made = []
    for sender, (_, theirs) in enumerate(itertools.pairwise(found.cuts)):
        border = theirs.first - 1
        value, gradient = stager.sizes_of(border)
        source, target = found.borders[sender]
        here, there = found.parts[sender], found.parts[sender + 1]
        prices = stager.transfers
        made.append(
            Transfer(
                tensor=found.chain.borders[border],
                sender=sender,
                receiver=sender + 1,
                source=source,
                target=target,
                forward=prices.handover(here, there, target, value).steps,
                backward=prices.handover(there, here, source, gradient).steps if gradient else (),
                count=stager.options.microbatches,
                hidden=prices.hidden,
            )
        )
    return tuple(made)


def _summary(stager: Stager, found: StagedPlans) -> Summary:
    """Of a whole step: the stages' times as the schedule adds them up, the memory of the fullest stage."""
    parts = [plan.summary for plan in found.plans]
    step_ns, bound_ns = round(found.step_ns), math.floor(found.bound_ns)
    compute_ns = round(_weighted(stager, parts, [part.compute_ns for part in parts]))
    hidden_ns = round(_weighted(stager, parts, [part.hidden_ns for part in parts]))
    closed = bound_ns >= step_ns * (1.0 - 1e-9)
    return Summary(
        outcome="optimal" if closed else "feasible",
        objective_ns=step_ns,
        bound_ns=step_ns if closed else bound_ns,
        gap=0.0 if closed else (step_ns - bound_ns) / step_ns,
        step_ns=step_ns,
        compute_ns=compute_ns,
        communication_ns=step_ns - compute_ns,
        hidden_ns=hidden_ns,
        memory=_fullest(parts),
        memory_limit_bytes=parts[0].memory_limit_bytes,
        reproducible=all(part.reproducible for part in parts),
        step_bound_ns=step_ns if closed else bound_ns,
    )


def _weighted(stager: Stager, parts: Sequence[Summary], amounts: Sequence[int]) -> float:
    """Amounts of the stages as the step adds them up: the slowest stage's whole, of the others their share of it."""
    slowest = max(range(len(parts)), key=lambda place: parts[place].step_ns)
    share = 1.0 / (stager.options.microbatches * stager.schedule.pieces)
    return math.fsum(amount * (1.0 if place == slowest else share) for place, amount in enumerate(amounts))


def _fullest(parts: Sequence[Summary]) -> Memory:
    return max((part.memory for part in parts), key=lambda memory: memory.total)
