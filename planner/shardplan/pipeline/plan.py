"""Pipeline plans: stages as planned, with their transfers and the summary of a whole step, as one `Plan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.mesh import cluster_digest
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, warning
from shardplan.graph.options import PlanOptions
from shardplan.graph.remat import nothing_recomputed
from shardplan.model.types import Model
from shardplan.pipeline.chunk_memory import chunk_memory, held_in_turn
from shardplan.pipeline.constants import CLOSE
from shardplan.pipeline.cut_points import stage_name
from shardplan.pipeline.manual.planning import plan_manual
from shardplan.pipeline.manual.stages import ManualStages
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.result import PipelineResult
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.solver import PipelineSolver
from shardplan.pipeline.submeshes import placed
from shardplan.plan.assemble import model_section
from shardplan.plan.types import Memory, Pipeline, Plan, Stage, Summary, Transfer
from shardplan.planning.instance import many_axes, refuse_too_many_axes
from shardplan.planning.standing import OnProgress
from shardplan.rules import model_rules


@dataclass(frozen=True)
class PipelineRequest:
    """The request for a pipeline. `stages`: their number, `auto` or `manual`."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    schedule: Schedule
    stages: int | str


def plan_stages(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    schedule: Schedule,
    stages: int | ManualStages | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Plan:
    """The best pipeline of `model` on `cluster`: of `stages` stages, of as many as are best (None), or of those that
    are fixed by hand.

    Raises `ShardplanError` for a model that cannot be cut or planned as asked, `InfeasibleError` when no cut fits.
    """
    if isinstance(stages, ManualStages):
        found = plan_manual(model, cluster, options, schedule, stages)
        asked = PipelineRequest(model, cluster, options, schedule, "manual")
    else:
        refuse_too_many_axes(cluster)
        found = PipelineSolver(model, cluster, options, schedule, stages, on_progress=on_progress).solve()
        asked = PipelineRequest(model, cluster, options, schedule, stages or "auto")
    if on_warning is not None:
        for diagnostic in (*many_axes(cluster.mesh), *nothing_recomputed(model, model_rules(model), options)):
            on_warning(diagnostic)
        for plan in found.plans:
            for text in plan.warnings:
                on_warning(warning("stage", text))
    return plan_of(asked, found)


def plan_of(asked: PipelineRequest, found: PipelineResult) -> Plan:
    """The plan of a pipeline: its summary is of the whole step, its decisions are in its stages."""
    cluster = asked.cluster
    count = len(found.parts) // asked.schedule.chunks
    starts = placed([part.size for part in found.parts[:count]]) * asked.schedule.chunks
    names = [stage_name(asked.model, place) for place in range(len(found.parts))]
    stages = tuple(
        Stage(_name(place, count, asked), start, found.chain.names[cut.first : cut.last], waiting, _named(plan, name))
        for place, (cut, start, waiting, plan, name) in enumerate(
            zip(found.cuts, starts, found.in_flight, found.plans, names, strict=True)
        )
    )
    slowest = max(_by_stage(asked, [plan.summary.step_ns for plan in found.plans]))
    pipeline = Pipeline(
        schedule=str(asked.schedule),
        stages=stages,
        transfers=_transfers(asked, found),
        bubble=round(1.0 - slowest / found.step_ns, 6) if found.step_ns else 0.0,
    )
    section = model_section(asked.model, asked.options)
    return Plan(
        model={**section, "schedule": str(asked.schedule), "stages": asked.stages},
        cluster={"name": cluster.name, "digest": cluster_digest(cluster), "profile": cluster.resolved},
        mesh=cluster.mesh,
        axis_links=tuple(cluster.levels[level].name for level in cluster.axis_levels),
        summary=_summary(asked, found),
        tensors=(),
        operators=(),
        moves=(),
        warnings=tuple(dict.fromkeys(text for plan in found.plans for text in plan.warnings)),
        pipeline=pipeline,
    )


def _named(plan: Plan, name: str) -> Plan:
    """A stage that was planned for another position, renamed for its own."""
    return plan if plan.model["name"] == name else replace(plan, model={**plan.model, "name": name})


def _transfers(asked: PipelineRequest, found: PipelineResult) -> tuple[Transfer, ...]:
    transfers = Transfers(asked.cluster)
    made = []
    for sender, ((source, target), (value, gradient)) in enumerate(zip(found.borders, found.sizes, strict=True)):
        here, there = found.parts[sender], found.parts[sender + 1]
        made.append(
            Transfer(
                tensor=found.chain.borders[found.cuts[sender].last - 1],
                sender=sender,
                receiver=sender + 1,
                source=source,
                target=target,
                forward=transfers.send_receive(here, there, target, value).steps,
                backward=transfers.send_receive(there, here, source, gradient).steps if gradient else (),
                count=asked.options.microbatches,
                hidden=transfers.hidden,
            )
        )
    return (*made, *found.tied)


def _summary(asked: PipelineRequest, found: PipelineResult) -> Summary:
    """Of a whole step: the stages' times as the schedule adds them up, the memory of the fullest stage."""
    parts = [plan.summary for plan in found.plans]
    step_ns, bound_ns = round(found.step_ns), math.floor(found.bound_ns)
    compute_ns = min(step_ns, round(_weighted(asked, parts, [part.compute_ns for part in parts])))
    hidden_ns = round(_weighted(asked, parts, [part.hidden_ns for part in parts]))
    closed = bound_ns >= step_ns or found.bound_ns >= found.step_ns * (1.0 - 1.001 * CLOSE)
    return Summary(
        outcome="interrupted" if found.interrupted else "optimal" if closed else "feasible",
        objective_ns=step_ns,
        bound_ns=step_ns if closed else bound_ns,
        gap=0.0 if closed else (step_ns - bound_ns) / max(step_ns, 1),
        step_ns=step_ns,
        compute_ns=compute_ns,
        communication_ns=step_ns - compute_ns,
        hidden_ns=hidden_ns,
        memory=_fullest(asked, found),
        memory_limit_bytes=parts[0].memory_limit_bytes * asked.schedule.chunks,
        reproducible=not found.by_clock and all(part.reproducible for part in parts),
        step_bound_ns=step_ns if closed else bound_ns,
    )


def _weighted(asked: PipelineRequest, parts: Sequence[Summary], amounts: Sequence[int]) -> float:
    """Amounts of the stages, added up as the step does: the slowest stage's in full, of the others their share."""
    steps, sums = _by_stage(asked, [part.step_ns for part in parts]), _by_stage(asked, amounts)
    slowest = steps.index(max(steps))
    share = 1.0 / (asked.options.microbatches * asked.schedule.chunks)
    return math.fsum(amount * (1.0 if place == slowest else share) for place, amount in enumerate(sums))


def _by_stage(asked: PipelineRequest, amounts: Sequence[int]) -> list[int]:
    """The sums over all model chunks that a stage runs."""
    count = len(amounts) // asked.schedule.chunks
    return [sum(amounts[place::count]) for place in range(count)]


def _name(place: int, count: int, asked: PipelineRequest) -> str:
    chunk = f" piece {place // count}" if asked.schedule.chunks > 1 else ""  # the word of plan files for a model chunk
    return f"stage {place % count}{chunk}"


def _fullest(asked: PipelineRequest, found: PipelineResult) -> Memory:
    """Memory of the fullest devices; those of a stage with several model chunks hold all of them."""
    count = len(found.plans) // asked.schedule.chunks
    chunks = [chunk_memory(plan, waiting) for plan, waiting in zip(found.plans, found.in_flight, strict=True)]
    held = [held_in_turn(chunks[place::count]) for place in range(count)]
    return max(held, key=lambda memory: memory.total)
