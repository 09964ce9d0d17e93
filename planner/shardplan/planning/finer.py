"""Meshes with several axes over one link: the search starts from the plan of the coarser mesh with one axis per link.

Every plan of a coarser mesh over the same links is also a plan of the finer mesh, and good plans of the finer mesh are
near it, so the plan of the coarsest mesh is the first candidate. Up to `MOST_WHOLE` axes, the search over all plans of
the finer mesh follows, from the multipliers of the coarser one. With more axes, the search goes over pairs of axes: two
axes are free, all else is as in the best plan, until no pair gives an improvement. The only lower bound is then the
compute time of the model.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.errors import LimitError
from shardplan.graph.neighbourhood import Neighbourhood
from shardplan.graph.objective_cuts import plane_of
from shardplan.graph.options import PlanOptions
from shardplan.graph.remat import Recompute
from shardplan.layout.mesh import Axis, Mesh
from shardplan.model.types import Model
from shardplan.planning.chain import Question
from shardplan.planning.constants import (
    ALL_SUMS_AXES,
    AVERAGES,
    FINER_S,
    PAIR_JUDGED,
    PAIR_WORK,
    ROUGH_GAP,
    WHOLE_AVERAGES,
    WHOLE_GAP,
)
from shardplan.planning.decided import Decided
from shardplan.planning.infeasible import no_coarser_plan
from shardplan.planning.instance import MOST_WHOLE, CostGraphs, Instance, instance_of
from shardplan.planning.questions import asked, of_phases
from shardplan.planning.runtimes.table import Roles
from shardplan.planning.search import Found, NoPlanError, Questions, Search
from shardplan.planning.within_memory import within_memory
from shardplan.schedule.objective import Weights, at_multipliers, fitting
from shardplan.solve import Plane, best_multipliers, pulled
from shardplan.units import PS_PER_S

OtherMesh: TypeAlias = tuple[Cluster, tuple[tuple[int, ...], ...]]
"""Another mesh of the same devices: its cluster, and the axes of this mesh in each of its axes."""


@dataclass(frozen=True)
class Transferable:
    """A plan of another search, on a coarser mesh, of a shallower model or with other options, from which this one may
    begin: its decisions, what it recomputes (`None`: as the options say), its proven lower bound (seconds) and the
    multipliers of that bound. `limit_bytes`: the memory limit of its search. `reproducible`: no clock decided anything
    in its search. `groups[i]`: the axes of the finer mesh that axis i was made of, if there is a finer mesh. `planes`:
    cutting planes of the assignments met, which are assignments of the finer mesh too. `step_s`: its step, seconds."""

    decided: Decided
    recompute: Recompute | None
    multipliers: Weights
    limit_bytes: int | None
    groups: tuple[tuple[int, ...], ...] = ()
    outcome: str = "feasible"
    reproducible: bool = True
    bound_s: float = 0.0
    planes: tuple[Plane, ...] = ()
    step_s: float = 0.0

    @classmethod
    def of(cls, found: Found, search: Search) -> Transferable:
        """The plan that a search found, for any finer mesh."""
        candidate = found.candidate
        decided, recompute = Decided.of_priced(candidate.priced), candidate.layouts.built.recompute
        proof = found.outcome, not search.clock.by_clock, found.bound_s, found.planes, candidate.step_s
        return cls(decided, recompute, found.multipliers, found.limit_bytes, (), *proof)

    def on(self, mesh: Mesh) -> Decided:
        """Its decisions on the finer mesh."""
        return self.decided.on_finer(self.groups, {axis for axis, size in enumerate(mesh.shape) if size == 1})


@dataclass
class CoarsePlans:
    """Results for other meshes over the same links, by mesh, and by the roles of its axes if the plan is for a runtime.

    `plans`: the best plan and the work of its search, or `None` if the request is not valid on that mesh. `bounds_s`:
    lower bounds (seconds) of searches that ended because of one. `enough_s`: the shortest step of all meshes so far.
    `shallow`: the same for a shallower model, if the model is deep.
    """

    plans: dict[tuple[Mesh, Roles], tuple[Transferable | None, float] | None] = field(default_factory=dict)
    bounds_s: dict[tuple[Mesh, Roles], float] = field(default_factory=dict)
    enough_s: float = math.inf
    shallow: CoarsePlans | None = None

    def of_shallow(self) -> CoarsePlans:
        """The results for the shallower model."""
        self.shallow = self.shallow or CoarsePlans()
        return self.shallow


def with_fewer_axes(instance: Instance, roles: Roles = ()) -> OtherMesh | None:
    """As `merged`, if that is another mesh; its plans are plans of this one."""
    cluster, groups = merged(instance.cluster, roles)
    is_same = len(groups) == len(instance.cluster.mesh)
    return None if is_same or instance.every_choice or not instance.options.cost_model.is_ours else (cluster, groups)


def without_idle_axes(instance: Instance) -> OtherMesh | None:
    """The mesh without those axes of size 1 that lie beside another one over the same link, if there are any and all
    layouts can be searched at once: both meshes have the same plans."""
    cluster, groups = merged(instance.cluster, only_idle=True)
    is_same = len(groups) == len(instance.cluster.mesh) or len(cluster.mesh.real_axes) > MOST_WHOLE
    return None if is_same or instance.every_choice or not instance.options.cost_model.is_ours else (cluster, groups)


def with_an_axis_per_link(cluster: Cluster, options: PlanOptions) -> Cluster:
    """The cluster with one axis for each link, whose plans are plans of the finer mesh and are found with much less
    work; the same cluster where constraints may name its axes."""
    return cluster if options.constraints else merged(cluster)[0]


def least_s(instance: Instance) -> float:
    """A lower bound on any step: the model's compute time, divided evenly."""
    return work_s(instance.model, instance.cluster, instance.options) / instance.cluster.mesh.size


def least_in_time(search: Search) -> float:
    """A lower bound on any step, for which there is time."""
    return 0.0 if search.is_late() else least_s(search.instance)


def refuse_whole(search: Search, other: OtherMesh | None) -> None:
    """Raises `LimitError` or `KeyboardInterrupt` if all plans of a mesh are not to be searched, since it has too many
    axes, the search is over, or time ended that of `other`, the mesh that gave no plan: this one takes longer."""
    asked = search.instance
    if search.interruption.asked:
        raise KeyboardInterrupt
    has_many_axes = len(asked.cluster.mesh.real_axes) > MOST_WHOLE
    if other is not None and (has_many_axes or search.is_over() or search.clock.by_clock):
        raise LimitError(no_coarser_plan(asked.model, asked.cluster, other[0]))


def finer(search: Search, coarser: Transferable, no_less_s: float) -> Questions[Found]:
    """The best plan of a finer mesh. `no_less_s`: a lower bound on the step of any. Raises `NoPlanError` where the plan
    of the coarser mesh is none of this one."""
    axes = len(search.instance.cluster.mesh.real_axes)
    together = WHOLE_AVERAGES if axes <= MOST_WHOLE else 0
    search.spent.left = search.averages + AVERAGES["quick"] * math.comb(axes, 2) + together
    found = yield from transferred(search, coarser, no_less_s)
    found = yield from by_pairs(search, found)
    found = yield from _proven(search, found, coarser.recompute, planes=found.planes)
    return (yield from within_memory(search, found))


def transferred(
    search: Search, coarser: Transferable, no_less_s: float, decided: Decided | None = None, *, every_path: bool = False
) -> Questions[Found]:
    """The coarser mesh's plan as an assignment of the finer mesh, or that with the decisions `decided`. `every_path`:
    its moves may lead over all layouts, not only over those near to it. Raises `NoPlanError` if it is not valid there.
    """
    decided, limit_bytes = decided or coarser.on(search.instance.cluster.mesh), coarser.limit_bytes
    near = None if every_path else Neighbourhood(decided.met())
    search.clock.by_clock |= not coarser.reproducible
    is_late = search.lacks(FINER_S * len(search.instance.model.operators))  # for more than the decisions themselves
    question = Question(limit_bytes, remat=coarser.recompute, near=near, restriction=decided.fixed, is_late=is_late)
    answer = yield from asked(search, question, search.work_left)
    if answer.solution.choices is None and answer.solution.outcome != "infeasible" and search.is_late():
        answer = yield from asked(search, replace(question, is_late=True), search.work_left)
    if answer.solution.choices is None:
        raise NoPlanError(answer)
    best = search.judged(answer.candidates)[0]
    none = tuple(() for _ in answer.objective.sizes)
    bound_s = min(no_less_s, best.step_s)
    planes = (*coarser.planes, *answer.solution.planes)
    return Found(best, bound_s, answer.objective, none, limit_bytes, coarser.outcome, planes)


def same(search: Search, fewer: Transferable, decided: Decided | None = None) -> Questions[Found]:
    """The plan of the mesh without axes of size 1 as one of this mesh, with its proof; or that of this mesh, whose
    decisions are `decided`. Raises `NoPlanError`."""
    found = yield from transferred(search, fewer, fewer.bound_s, decided, every_path=True)
    found = replace(found, multipliers=fitting(fewer.multipliers, found.objective))
    return (yield from within_memory(search, found))


def deeper(search: Search, shallow: Transferable, no_less_s: float) -> Questions[Found]:
    """The plan of a shallower model as one of the whole model, with the bound of the whole model where that can be
    searched. Raises `NoPlanError` where the plan is none of the whole model."""
    found = yield from transferred(search, shallow, no_less_s, shallow.decided)
    found = yield from _proven(search, found, shallow.recompute, start=shallow.multipliers)
    return (yield from within_memory(search, found))


def _proven(
    search: Search, found: Found, remat: Recompute | None, *, start: Weights = (), planes: Sequence[Plane] = ()
) -> Questions[Found]:
    """The known plan or a better one, with the bound of a search over all plans at few multipliers (from `start`, or by
    `planes`); the known plan and bound on too many axes, and where the search is over."""
    axes = len(search.instance.cluster.mesh.real_axes)
    if axes > MOST_WHOLE or search.is_over() or found.outcome == "interrupted":
        return found
    if axes > ALL_SUMS_AXES and (planes or start):
        return (yield from _proven_by_single_problems(search, found, remat, start, planes))
    with contextlib.suppress(NoPlanError):
        whole = yield from of_phases(
            search,
            found.limit_bytes,
            remat,
            objective=found.objective if planes else None,
            start=start,
            planes=planes,
            averages=1 if start else WHOLE_AVERAGES,
            known=Decided.of_priced(found.candidate.priced).fixed,
        )
        best = found.better([whole.candidate], search.instance.limit_bytes)
        found = replace(whole, candidate=best.candidate)
    return found


def _proven_by_single_problems(
    search: Search, found: Found, remat: Recompute | None, start: Weights, planes: Sequence[Plane]
) -> Questions[Found]:
    """The same without the tables of all sums, which take gigabytes on many axes: the multipliers come from the planes
    of the plans met, and each plain problem has the tables of one linear function."""
    objective, limit_bytes = found.objective, search.instance.limit_bytes
    sizes, met = objective.sizes, [plane for plane in planes if len(plane.sums) == sum(objective.sizes)]
    multipliers: Weights = fitting(start, objective) if start else ()
    question = Question(found.limit_bytes, objective, remat=remat, unproven=ROUGH_GAP, shortfall=False)
    for left in range(WHOLE_AVERAGES, 0, -1):
        if search.is_over() or found.outcome == "interrupted" or found.gap <= WHOLE_GAP:
            break
        if met:
            point, _ = best_multipliers(met, sizes)
            multipliers = split_by_phase(
                pulled(list(itertools.chain(*multipliers)), point) if multipliers else point, sizes
            )
        linear, known = at_multipliers(objective, multipliers), Decided.of_priced(found.candidate.priced).fixed
        answer = yield from asked(
            search, replace(question, linear=linear, known=known, ends_s=search.share(left)), search.work_left / left
        )
        solution = answer.solution
        outcome = "interrupted" if solution.outcome == "interrupted" else found.outcome
        found = replace(found, outcome=outcome)
        if solution.outcome == "infeasible":  # which the known plan contradicts
            break
        if solution.choices is not None:
            found = found.better(replace(search, known={}).judged(answer.candidates[:1]), limit_bytes)
            met.append(plane_of(answer.layouts.built, solution.choices, objective))
        bound_s = min(solution.bound / PS_PER_S, found.candidate.step_s)
        if bound_s > found.bound_s:
            found = replace(found, bound_s=bound_s, multipliers=multipliers)
        if solution.choices is None or start:
            break
    return found


def split_by_phase(flat: Sequence[float], sizes: Sequence[int]) -> Weights:
    """Multipliers of all phases one after the other, split into so many of each phase."""
    left = iter(flat)
    return tuple(tuple(next(left) for _ in range(size)) for size in sizes)


def by_pairs(search: Search, found: Found) -> Questions[Found]:
    """The best plan that a search over pairs of axes finds."""
    instance = search.instance
    remat: Recompute = found.candidate.layouts.built.recompute
    question = Question(found.limit_bytes, found.objective, remat=remat, averages=AVERAGES["quick"], unproven=ROUGH_GAP)
    for pair in itertools.combinations(instance.cluster.mesh.real_axes, 2):
        if search.is_over() or found.outcome == "interrupted":
            break
        near = Neighbourhood(Decided.of_priced(found.candidate.priced).met(), frozenset(pair))
        answer = yield from asked(
            search,
            replace(question, near=near, planes=found.planes, ends_s=search.share(2)),
            min(PAIR_WORK, search.work_left),
        )
        solution = answer.solution
        outcome = "interrupted" if solution.outcome == "interrupted" else found.outcome
        found = replace(found, outcome=outcome, planes=(*found.planes, *solution.planes))
        if answer.solution.choices is not None:
            here = replace(search, known={})  # a graph of its own, which is not to outlive the pair
            found = found.better(here.judged(answer.candidates[:PAIR_JUDGED]), instance.limit_bytes)
    return found


def work_s(model: Model, cluster: Cluster, options: PlanOptions) -> float:
    """A lower bound on the compute seconds of one device: an n-th of the work takes at least an n-th of the time, since
    efficiency does not grow when matrix products shrink and every kernel still has to be launched."""
    alone = Mesh((Axis(cluster.mesh.axes[-1].name, 1),))
    single = replace(cluster, mesh=alone, axis_levels=cluster.axis_levels[-1:])
    built, _ = CostGraphs(instance_of(model, single, replace(options, constraints=()), lambda _: None)).asked()
    seconds = math.fsum(float(space.compute_s.min()) for space in built.operators)
    for name in sorted(built.trainable):
        seconds += float(built.pricer.optimizer_seconds(built.kept[name], model.tensor(name).dtype).min())
    return seconds
