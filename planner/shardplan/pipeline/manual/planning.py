"""Plans of stages fixed by hand: each on its own submesh, under its own constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.constraints.types import Constraint, Dims
from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, chain_at, part_of, stage_name
from shardplan.pipeline.manual.matching import stage_starts
from shardplan.pipeline.manual.stages import ManualStage, ManualStages
from shardplan.pipeline.result import PipelineResult, result_of_plans
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.search_state import SearchState
from shardplan.pipeline.stage_inputs import constraints_on
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.units import counted


def plan_manual(
    model: Model, cluster: Cluster, options: PlanOptions, schedule: Schedule, manual: ManualStages
) -> PipelineResult:
    """The stages as they are fixed, each planned under its own constraints.

    Raises `ShardplanError` (`bad-schedule`, `bad-stages`, `no-cut`, or as planning does), `InfeasibleError` where one
    does not fit.
    """
    if schedule.chunks > 1:
        summary = f"'{schedule}' needs {counted(schedule.chunks, 'model chunk')} per stage, and a stage by hand is one"
        hint = "--schedule 1f1b or gpipe; or --stages with a number, which cuts the model into chunks"
        raise ShardplanError(error("bad-schedule", summary, hint=hint))
    _refuse_unmatched(options.constraints, model, cluster.mesh)
    chain = chain_at(model, stage_starts(model, manual.stages))
    parts = tuple(_part(cluster, stage) for stage in manual.stages)
    used = sum(part.size for part in parts)
    if used > cluster.mesh.size:
        summary = f"the stages take {counted(used, 'device')}, and the cluster has {cluster.mesh.size}"
        raise ShardplanError(error("bad-stages", summary, **manual.stages[0].mark.where))
    _refuse_unknown_axes(manual, [part.mesh for part in parts])
    _refuse_dims_beyond(manual, chain)
    plans, waiting, state = list[Plan](), list[int](), SearchState.of(options)
    for place, (stage, part) in enumerate(zip(manual.stages, parts, strict=True)):
        held = schedule.in_flight(len(parts) - 1 - place, len(parts), options.microbatches)
        waiting.append(held if options.training else 1)
        own = part_of(chain, place, place + 1, stage_name(model, place))
        everywhere = constraints_on(options.constraints, own, part.mesh)
        handed = _handed(chain, place, stage, part, manual.intermediate)
        asked = replace(
            options, in_flight=waiting[-1], constraints=(*everywhere, *stage.constraints, *handed),
            time_limit=state.stage_s(len(parts) - place - 1),
        )  # fmt: skip
        plans.append(Planner(own, part.cluster, asked).plan())
    cuts = [Cut(place, place + 1, 0, 0, 0) for place in range(len(parts))]
    return result_of_plans(chain, cuts, parts, plans, waiting, cluster, options, schedule)


def _refuse_unmatched(constraints: Sequence[Constraint], model: Model, mesh: Mesh) -> None:
    """Constraints for all stages must match something in the model; whether they can be satisfied is checked for every
    stage's mesh."""
    try:
        resolve(constraints, model, mesh)
    except ShardplanError as problem:
        if unmatched := [diagnostic for diagnostic in problem.diagnostics if diagnostic.code == "no-match"]:
            raise ShardplanError(*unmatched) from None


def _refuse_unknown_axes(manual: ManualStages, meshes: Sequence[Mesh]) -> None:
    """Every axis that shards a value between stages must be an axis of some stage."""
    known = sorted(
        {name for stage, mesh in zip(manual.stages, meshes, strict=True) for name in stage.names or mesh.names}
    )
    faults = [
        error(
            "bad-stages",
            f"pipeline_intermediate_axes: no stage has an axis '{axis}'",
            detail=f"there are {', '.join(known)}",
            hint=did_you_mean(axis, known),
            **manual.stages[0].mark.where,
        )
        for axis in manual.intermediate
        if axis not in known
    ]
    if faults:
        raise ShardplanError(*faults)


def _refuse_dims_beyond(manual: ManualStages, chain: Chain) -> None:
    """Every dim that an axis shards must be a dim of some value between stages."""
    most = max((len(chain.model.tensor(border).shape) for border in chain.borders), default=0)
    faults = [
        error(
            "bad-stages",
            f"pipeline_intermediate_axes: {axis}: no value between stages has a dim {dim}",
            detail=f"they have at most {counted(most, 'dim')}, counted from 0",
            **manual.stages[0].mark.where,
        )
        for axis, dim in manual.intermediate.items()
        if dim >= most
    ]
    if faults:
        raise ShardplanError(*faults)


def _part(cluster: Cluster, stage: ManualStage) -> Submesh:
    return Submesh(make_cluster(profile_from_resolved(cluster.resolved), stage.mesh))


def _handed(
    chain: Chain, place: int, stage: ManualStage, part: Submesh, intermediate: Mapping[str, int]
) -> list[Constraint]:
    """The layouts of the values between stages, sharded by the intermediate axes that the stage has and by no
    others."""
    if not intermediate:
        return []
    names = stage.names or part.mesh.names
    borders = [*chain.borders[max(place - 1, 0) : place], *chain.borders[place : place + 1]]
    found = []
    for border in borders:
        rank = len(chain.model.tensor(border).shape)
        entries = tuple(
            tuple(axis for axis, at in intermediate.items() if axis in names and at == dim and rank > 1)
            for dim in range(rank)
        )
        text = "[" + ", ".join(f"[{', '.join(axes)}]" for axes in entries) + "]"
        found.append(Constraint("tensors", border, Dims(entries), text, stage.mark, None, stage.names))
    return found
