"""Stages that are fixed by hand, planned: each on its own part of the cluster, under its own constraints."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.constraints.types import Constraint, Dims
from shardplan.errors import ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.patterns import matches
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.stages.cut import Chain, chain_at, part_of
from shardplan.stages.found import StagedPlans, put_together
from shardplan.stages.manual import ManualStages, StageWish
from shardplan.stages.parts import concerning
from shardplan.stages.schedule import Schedule
from shardplan.stages.search import Cut
from shardplan.stages.submeshes import Submesh
from shardplan.stages.transfer import Transfers


def plan_by_hand(
    model: Model, cluster: Cluster, options: PlanOptions, schedule: Schedule, manual: ManualStages
) -> StagedPlans:
    """The stages as they are fixed, each planned under its own constraints.

    Raises `ShardplanError` (`bad-stages`, `no-cut`, or as planning does), `InfeasibleError` where one does not fit.
    """
    _refuse_unmatched(options.constraints, model, cluster.mesh)
    chain = chain_at(model, _places(model, manual))
    parts = tuple(_part(cluster, wish) for wish in manual.stages)
    used = sum(part.size for part in parts)
    if used > cluster.mesh.size:
        summary = f"the stages take {used} devices, and the cluster has {cluster.mesh.size}"
        raise ShardplanError(error("bad-stages", summary, **manual.stages[0].mark.where))
    plans, waiting = [], []
    for place, (wish, part) in enumerate(zip(manual.stages, parts, strict=True)):
        held = schedule.in_flight(len(parts) - 1 - place, len(parts), options.microbatches)
        waiting.append(held if options.training else 1)
        own = part_of(chain, place, place + 1, f"{model.name}.stage{place}")
        everywhere = concerning(options.constraints, own, part.mesh)
        handed = _handed(chain, place, wish, part, manual.intermediate)
        asked = replace(options, in_flight=waiting[-1], constraints=(*everywhere, *wish.constraints, *handed))
        plans.append(Planner(own, part.cluster, asked).plan())
    return _staged(chain, parts, tuple(plans), tuple(waiting), cluster, options, schedule)


def _refuse_unmatched(constraints: Sequence[Constraint], model: Model, mesh: Mesh) -> None:
    """Constraints for all stages must be about something; whether they can be met, the mesh of every stage tells."""
    try:
        resolve(constraints, model, mesh)
    except ShardplanError as problem:
        if unmatched := [diagnostic for diagnostic in problem.diagnostics if diagnostic.code == "no-match"]:
            raise ShardplanError(*unmatched) from None


def _places(model: Model, manual: ManualStages) -> list[int]:
    """Where every stage but the first begins: at the first operator that it has and no stage before. What comes before
    all that the first stage names is the first stage's."""
    places: list[int] = []
    begun = 0
    taken = [False] * len(model.operators)
    blocks = {
        index: name
        for block in model.blocks
        for name, copy in zip(block.names, block.copies, strict=True)
        for index in copy
    }
    for number, wish in enumerate(manual.stages):
        own = [
            index
            for index, operator in enumerate(model.operators)
            if not taken[index]
            and any(
                matches(text, run) or matches(text, f"{run}.*")
                for run in wish.runs
                for text in (operator.module, operator.name, blocks.get(index, ""))
                if text
            )
        ]
        if not own:
            summary = (
                f"stage {number} runs nothing: no module, block or operator is left that matches {list(wish.runs)}"
            )
            raise ShardplanError(error("bad-stages", summary, **wish.mark.where))
        if not number:
            begun = own[0]
        else:
            first = next((index for index in own if index > begun), own[0])
            if first <= begun:
                summary = f"stage {number} begins before stage {number - 1} does"
                raise ShardplanError(error("bad-stages", summary, **wish.mark.where))
            places.append(first)
            begun = first
        for index in own:
            taken[index] = True
    return places


def _part(cluster: Cluster, wish: StageWish) -> Submesh:
    return Submesh(make_cluster(profile_from_resolved(cluster.resolved), wish.mesh))


def _handed(
    chain: Chain, place: int, wish: StageWish, part: Submesh, intermediate: Mapping[str, int]
) -> list[Constraint]:
    """What is handed to and from a stage, sharded by the intermediate axes that it has and by no others."""
    if not intermediate:
        return []
    names = wish.names or part.mesh.names
    borders = [*chain.borders[max(place - 1, 0) : place], *chain.borders[place : place + 1]]
    found = []
    for border in borders:
        rank = len(chain.model.tensor(border).shape)
        entries = tuple(
            tuple(axis for axis, at in intermediate.items() if axis in names and at == dim and rank > 1)
            for dim in range(rank)
        )
        text = "[" + ", ".join(f"[{', '.join(axes)}]" for axes in entries) + "]"
        found.append(Constraint("tensors", border, Dims(entries), text, wish.mark, None, wish.names))
    return found


def _staged(
    chain: Chain,
    parts: tuple[Submesh, ...],
    plans: tuple[Plan, ...],
    in_flight: tuple[int, ...],
    cluster: Cluster,
    options: PlanOptions,
    schedule: Schedule,
) -> StagedPlans:
    cuts = [Cut(place, place + 1, 0, 0, 0) for place in range(len(parts))]
    kept = [{tensor.name: tensor.layout for tensor in plan.tensors} for plan in plans]
    borders = [
        (mine[border], theirs[border])
        for border, (mine, theirs) in zip(chain.borders, itertools.pairwise(kept), strict=True)
    ]
    each = [-(-chain.model.tensor(border).size_bytes // options.microbatches) for border in chain.borders]
    sizes = [(size, size if options.training else 0) for size in each]
    transfers = Transfers(cluster)
    return put_together(chain, cuts, parts, plans, in_flight, borders, sizes, transfers, options, schedule)
