"""Pipelines on meshes of many axes: the search uses one merged axis per link; the plans of its stages are then refined
on the requested axes.

The choices multiply with every axis, so cuts are searched, and stages planned, with all axes over one link merged
(`shardplan.cluster.mesh.merged`). Every plan there is also a plan on the requested axes. The plan of a stage becomes
one on these, between borders as on the merged mesh. The slowest stage of every size is improved over pairs of axes
(`shardplan.planning.finer`); the others take its layers if that makes them faster. The only bound is the model's
compute: the bound on the merged mesh is not valid here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.pipeline.cut_points import part_of, stage_name
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.result import PipelineResult, assemble_result
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.stage_inputs import kept_so
from shardplan.pipeline.stage_planner import StagePlanner
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.decided import Decided
from shardplan.planning.finer import Transferable, work_s
from shardplan.planning.instance import MOST_WHOLE
from shardplan.units import NS_PER_S


def searched_on(model: Model, cluster: Cluster, options: PlanOptions) -> Cluster:
    """The cluster whose mesh a pipeline is searched on: one axis per link, if there are too many axes to consider all
    layouts and no constraint names an axis."""
    coarser, _ = merged(cluster)
    if len(cluster.mesh.real_axes) <= MOST_WHOLE:
        return cluster
    try:
        resolve(options.constraints, model, coarser.mesh)
    except ShardplanError:
        return cluster
    return coarser


@dataclass
class FinerStages:
    """Refines pipelines of the merged mesh on `cluster`. `parts[i]`: what part i of the merged mesh is there."""

    cluster: Cluster
    options: PlanOptions
    schedule: Schedule
    parts: Sequence[Submesh]
    coarser: StagePlanner
    _groups: tuple[tuple[int, ...], ...] = field(init=False)
    _improved: dict[int, tuple[Decided, Model]] = field(init=False, default_factory=dict)
    _works: dict[tuple[object, ...], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._groups = merged(self.cluster)[1]

    def of(self, found: PipelineResult) -> PipelineResult:
        """The pipeline on the requested axes."""
        parts = [self.parts[cut.submesh] for cut in found.cuts]
        borders = [
            (self._on_finer(source, mine), self._on_finer(target, theirs))
            for (source, target), (mine, theirs) in zip(found.borders, itertools.pairwise(parts), strict=True)
        ]
        slowest = sorted(range(len(parts)), key=lambda place: (-found.plans[place].summary.step_ns, place))
        planned = {place: self._plan(found, place, borders) for place in slowest}
        plans = [planned[place] for place in range(len(parts))]
        result = assemble_result(
            found.chain, found.cuts, parts, plans, found.in_flight, borders, found.sizes,
            Transfers(self.cluster), self.options, self.schedule,
        )  # fmt: skip
        least_ns = NS_PER_S * work_s(found.chain.model, self.cluster, self.options) / self.cluster.mesh.size
        return replace(result, bound_ns=min(least_ns, result.step_ns))

    def _plan(self, found: PipelineResult, place: int, borders: Sequence[tuple[Layout, Layout]]) -> Plan:
        """The plan of one stage: its decisions on the merged mesh, refined."""
        cut, waiting, chain = found.cuts[place], found.in_flight[place], found.chain
        self.coarser.search_state.tell(f"taking over stage {place + 1} of {len(found.cuts)} from a coarser mesh")
        name = stage_name(chain.model, place)
        model, part = part_of(chain, cut.first, cut.last, name), self.parts[cut.submesh]
        options = self.coarser.options_of(model, part.mesh, waiting)
        plan = found.plans[place]
        coarser = Transferable(
            Decided.of_plan(plan), self.coarser.recompute_of(cut, waiting), plan.summary.multipliers,
            self.coarser.limit_bytes, self._groups, reproducible=plan.summary.reproducible,
        )  # fmt: skip
        ends: dict[str, Layout] = {}
        if place:
            ends[chain.borders[cut.first - 1]] = borders[place - 1][1]
        if place + 1 < len(found.cuts):
            ends[chain.borders[cut.last - 1]] = borders[place][0]
        planner = Planner(model, part.cluster, options, reasons=False)
        is_late = self.coarser.search_state.is_late()
        least_s = 0.0 if is_late else self._work_s(found, place, model) / part.size
        pattern = self._improved.get(cut.submesh)
        like = None if pattern is None else lambda one: one.with_layers_of(model, *pattern, ends)
        refined = planner.refined(coarser, least_s, lambda built: kept_so(built, ends), like=like)
        self._improved.setdefault(cut.submesh, (Decided.of_plan(refined), model))
        return refined

    def _work_s(self, found: PipelineResult, place: int, model: Model) -> float:
        """Seconds that a stage computes on one device; equal stages are counted once."""
        kind = self.coarser.stage_costs.kind_of(found.cuts[place])[1:3]
        if kind not in self._works:
            self._works[kind] = work_s(model, self.cluster, self.options)
        return self._works[kind]

    def _on_finer(self, layout: Layout, part: Submesh) -> Layout:
        return layout.on_finer(self._groups, {axis for axis, size in enumerate(part.mesh.shape) if size == 1})
