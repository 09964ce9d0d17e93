"""`--mesh auto`: all ways to lay logical mesh axes over the devices of a cluster, and the best plan on each.

A physical axis of 8 devices is one axis of 8, or 2 x 4, 4 x 2 or 2 x 2 x 2; an axis keeps the link of its physical
axis, and a group that is a part of it gets its share of that link (`shardplan.cost.links`). A mesh with more axes has
all plans of the coarser one and more: every search starts from the plan of the coarsest mesh, which is found once. A
mesh that is not solved gets only the bound by its own compute.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Axis, Mesh
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import CoarsePlans, Planner, plan_model
from shardplan.planning.finer import work_s
from shardplan.planning.infeasible import out_of_time
from shardplan.planning.instance import MOST_AXES
from shardplan.planning.runtimes import RUNTIMES
from shardplan.planning.runtimes.table import FREE_ROLES
from shardplan.planning.search import NoBetterError
from shardplan.planning.standing import OnProgress, Standing, without_effort
from shardplan.planning.start_plan import StartPlan
from shardplan.processes import run_all
from shardplan.study.constants import LEAST_SEARCH_S
from shardplan.units import NS_PER_S, PS_PER_NS, counted

_WORKERS_S = 5.0
"""Seconds that have to be left of a time limit for processes that search in parallel: each takes more than one to
begin."""
_NO_ROOM = "does not fit in memory"
OUT_OF_TIME = "out of time"
INTERRUPTED = "interrupted"
NO_FASTER = "not faster than the best before"


@dataclass(frozen=True, slots=True)
class MeshTrial:
    """The result for one logical mesh: `text`, as `--mesh` takes it; `plan`, the best on it, or `None` and the
    `reason`.

    `bound_ns`: a lower bound on every step on this mesh. `diagnostics`: warnings about it.
    """

    text: str
    mesh: Mesh
    plan: Plan | None
    bound_ns: int
    reason: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def step_ns(self) -> int | None:
        return self.plan.summary.step_ns if self.plan else None


def ordered_factorisations(size: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `size` as an ordered product of numbers above 1: 8 -> (8,), (2, 4), (2, 2, 2), (4, 2)."""
    yield (size,)
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in ordered_factorisations(size // first))


def logical_meshes(profile: Profile) -> tuple[str, ...]:
    """The meshes over the devices of a profile, fewest axes first.

    Raises `ShardplanError` (`bad-devices`) when the profile names the axis of a link in parts.
    """
    physical = make_cluster(profile)
    levels = physical.axis_levels
    if len(set(levels)) != len(levels):
        devices = "x".join(str(axis.size) for axis in physical.mesh.axes)
        summary = f"--devices '{devices}' cuts one kind of link in several axes"
        raise ShardplanError(error("bad-devices", summary, hint="give one size per kind of link, such as 4x8"))
    ways = [
        [_named(axis, sizes) for sizes in ordered_factorisations(axis.size)] if axis.size > 1 else [(axis.name + "=1",)]
        for axis in physical.mesh.axes
    ]
    meshes = [tuple(itertools.chain(*parts)) for parts in itertools.product(*ways)]
    return tuple(",".join(mesh) for mesh in sorted(meshes, key=len))


def _named(axis: Axis, sizes: tuple[int, ...]) -> tuple[str, ...]:
    if len(sizes) == 1:
        return (f"{axis.name}={sizes[0]}",)
    return tuple(f"{axis.name}{number}={size}" for number, size in enumerate(sizes))


def try_meshes(
    model: Model,
    profile: Profile,
    options: PlanOptions,
    meshes: Sequence[str],
    *,
    processes: int = 1,
    on_done: Callable[[MeshTrial], None] | None = None,
    on_progress: OnProgress | None = None,
    start: StartPlan | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
) -> tuple[MeshTrial, ...]:
    """The best plan on every mesh of at most `MOST_AXES` axes, and a bound for the others; in the order of `meshes`.
    `start`: a known plan of one of the meshes, which `on_warning` is told about.

    Everything that does not depend on the mesh is computed once; `processes` work in parallel. If Ctrl-C stops it once
    there is a plan, the remaining trials are `INTERRUPTED`. Raises `ShardplanError` if no mesh can be planned, for
    another reason than memory.
    """
    clusters = {text: make_cluster(profile, text) for text in meshes}
    shallow = [text for text in meshes if len(clusters[text].mesh) <= MOST_AXES]
    found: dict[str, MeshTrial] = {}

    def done(trial: MeshTrial) -> None:
        found[trial.text] = trial
        if on_done is not None:
            on_done(trial)
        if on_progress is not None:
            on_progress(_standing(found, len(meshes)))

    work_ns = int(work_s(model, clusters[meshes[0]], options) * NS_PER_S)
    if start is not None:
        found.update(_started(model, clusters, options, shallow, start, on_warning))
    trials = _solved(model, clusters, options, shallow, processes, on_progress, start)
    stopped = _until_stopped(trials, done, found)
    for text in meshes:
        if text not in found:
            mesh = clusters[text].mesh
            reason = INTERRUPTED if stopped and text in shallow else f"not solved: more than {MOST_AXES} axes"
            done(MeshTrial(text, mesh, None, work_ns // mesh.size, reason))
    refused = [trial for trial in found.values() if trial.plan is None and trial.diagnostics]
    if len(refused) == len(shallow) and all(trial.reason != _NO_ROOM for trial in refused):
        raise ShardplanError(*refused[0].diagnostics)
    return tuple(found[text] for text in meshes)


def _started(
    model: Model,
    clusters: Mapping[str, Cluster],
    options: PlanOptions,
    meshes: Sequence[str],
    start: StartPlan,
    on_warning: Callable[[Diagnostic], None] | None,
) -> dict[str, MeshTrial]:
    """The start alone, as the trial of its mesh until that is searched."""
    mesh, heard = start.plan.mesh, list[Diagnostic]()
    same = [text for text in meshes if clusters[text].mesh.shape == mesh.shape]
    text = next((text for text in same if clusters[text].mesh == mesh), (same or list(meshes))[0])
    try:
        plan = Planner(model, clusters[text], options, None, heard.append, reasons=False, start=start).started()
    except ShardplanError as problem:
        heard, plan = [start.not_taken(f"cannot be planned here: {problem.diagnostics[0].summary}")], None
    for diagnostic in heard:
        if on_warning is not None and diagnostic.severity == "note":
            on_warning(diagnostic)
    return {} if plan is None else {text: MeshTrial(text, clusters[text].mesh, plan, 0, INTERRUPTED)}


def _until_stopped(
    trials: Iterator[MeshTrial], done: Callable[[MeshTrial], None], found: Mapping[str, MeshTrial]
) -> bool:
    """Collects trials until Ctrl-C, which without any plan ends the search; returns whether it was stopped."""
    try:
        for trial in trials:
            done(trial)
            if trial.plan is not None and trial.plan.summary.outcome == "interrupted":
                return True
    except KeyboardInterrupt:
        if best_of(tuple(found.values())) is None:
            raise
        return True
    return False


def best_of(trials: Sequence[MeshTrial]) -> MeshTrial | None:
    """The trial with the shortest step; among equals the first."""
    solved = [trial for trial in trials if trial.step_ns is not None]
    return min(solved, key=lambda trial: trial.step_ns or 0) if solved else None


def _standing(found: Mapping[str, MeshTrial], count: int) -> Standing:
    """The standing of the search over meshes; no bound holds for unfinished meshes."""
    best, done = best_of(tuple(found.values())), sum(trial.reason != INTERRUPTED for trial in found.values())
    best_ps = math.inf if best is None or best.step_ns is None else best.step_ns * PS_PER_NS
    return Standing(best_ps, -math.inf, 0.0, f"{done} of {counted(count, 'mesh')} done", done, count - done)


def _solved(
    model: Model,
    clusters: dict[str, Cluster],
    options: PlanOptions,
    meshes: Sequence[str],
    processes: int,
    on_progress: OnProgress | None,
    start: StartPlan | None,
) -> Iterator[MeshTrial]:
    """Trials in the order in which they finish: first the coarsest mesh, from whose plan all others start, then the
    slowest first; in one process those with the fewest axes first."""
    if not meshes:
        return
    first, *rest = sorted(meshes, key=lambda text: len(clusters[text].mesh))
    ends_s = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    coarse = CoarsePlans()
    if options.target and FREE_ROLES.isdisjoint(RUNTIMES[options.target].roles):
        processes = 1  # most of what one mesh says the next ones say too: it is searched once
    shared = model, coarse, start
    yield _try(shared, (first, clusters[first], options, ends_s, 1 + len(rest)), without_effort(on_progress))
    if ends_s - time.monotonic() < _WORKERS_S:
        processes = 1
    if processes > 1:
        rest.reverse()
    waiting = [math.ceil((len(rest) - number) / processes) for number in range(len(rest))]
    asked = [(text, clusters[text], options, ends_s, left) for text, left in zip(rest, waiting, strict=True)]
    yield from run_all(_try, shared, asked, processes)


def _try(
    shared: tuple[Model, CoarsePlans, StartPlan | None],
    asked: tuple[str, Cluster, PlanOptions, float, int],
    on_progress: OnProgress | None = None,
) -> MeshTrial:
    """The result for a mesh within its share of the remaining time: until `ends_s` (`time.monotonic`, the same clock in
    all processes), this process searches so many meshes."""
    (model, coarse, start), (text, cluster, options, ends_s, waiting) = shared, asked
    if start is not None and start.plan.mesh.shape != cluster.mesh.shape:
        start = None
    if time.monotonic() >= ends_s and any(
        known is not None and known[0] is not None for known in coarse.plans.values()
    ):
        return MeshTrial(text, cluster.mesh, None, 0, OUT_OF_TIME, (out_of_time(model, cluster),))
    if options.time_limit is not None:
        options = replace(options, time_limit=max(LEAST_SEARCH_S, (ends_s - time.monotonic()) / waiting))
    heard: list[Diagnostic] = []
    try:
        plan = plan_model(
            model, cluster, options, on_progress=on_progress, on_warning=heard.append, coarse=coarse, start=start
        )
    except InfeasibleError as problem:
        return MeshTrial(text, cluster.mesh, None, 0, _NO_ROOM, problem.diagnostics)
    except NoBetterError as none:
        return MeshTrial(text, cluster.mesh, None, int(none.bound_s * NS_PER_S), NO_FASTER)
    except LimitError as problem:
        return MeshTrial(text, cluster.mesh, None, 0, OUT_OF_TIME, problem.diagnostics)
    except ShardplanError as problem:
        return MeshTrial(text, cluster.mesh, None, 0, problem.diagnostics[0].summary, problem.diagnostics)
    if options.target:
        coarse.enough_s = min(coarse.enough_s, plan.summary.step_ns / NS_PER_S)
    warnings = tuple(one for one in heard if one.severity != "note")
    return MeshTrial(text, cluster.mesh, plan, plan.summary.step_bound_ns, "", warnings)
