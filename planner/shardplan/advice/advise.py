"""Advice on what makes a step shorter than any layout does: a size rounded up, fewer devices, or optimizer state that
is sharded apart from its weights.

Nothing is guessed. A change is promising if the lower bound on its step, at the multipliers of the plan and at usual
ones, is below that of the plan by more than `LEAST`: two plain problems, a small part of the plan's search. The most
promising size and the most promising mesh get a search, and are reported if their steps are shorter than the plan's by
more than `LEAST`.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from shardplan.advice.optimizer_state import FAR_BELOW, LEAST, least_step_s, promised_step_s
from shardplan.advice.sizes import Rounding, computing, roundings
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.errors import ShardplanError
from shardplan.graph.options import Effort, PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.dims import flag
from shardplan.model.types import Model
from shardplan.padding.growth import grown
from shardplan.padding.padded import padded
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.finer import with_an_axis_per_link
from shardplan.planning.instance import MOST_WHOLE
from shardplan.rules import model_rules
from shardplan.units import NS_PER_S, counted

MOST_TRIED: Final = 3
"""Number of sizes, and of meshes, that are solved at given multipliers: each takes about a twentieth of the plan's
search."""
STILL_SENT: Final = 0.75
"""Share of the exposed communication that is expected on half the devices of an axis; none if the axis is gone."""
HOPE: Final = 0.9
"""Fewer devices are tried if that communication and all the compute take less than this share of the step."""
BOUND_WORK: Final = 200.0
"""Work for a bound, under a memory limit that its best assignment does not keep: a proof may take minutes."""
WORK: Final = 2e3
"""Work, in the units of `shardplan.solve.constants`, for the search of the most promising size, and for that of the
most promising mesh: a tenth of the plan's search."""


@dataclass(frozen=True, slots=True)
class Advice:
    """With `rounded` in place of `size` for `what`, or with `what` itself if it is no size, a step takes `step_ns`,
    shorter by the share `saves`. `option`: the command-line option for it; empty if the model has to be changed."""

    what: str
    size: int | None
    rounded: int | None
    step_ns: int
    saves: float
    option: str = ""


def advise(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    plan: Plan,
    left_s: float = math.inf,
    on_try: Callable[[str], object] = bool,
) -> list[Advice]:
    """What would be faster than `plan`, the best one for `model` on `cluster`.

    Empty for a pipeline, for other cost models, on meshes with too many axes for one search over all layouts, for quick
    searches (`effort`), and if less than half of a time limit is left (`left_s`). `on_try` is called with each attempt.
    Ctrl-C ends it early.
    """
    limit = options.time_limit
    late = limit is not None and left_s < limit / 2
    is_ours = options.cost_model.is_ours and plan.pipeline is None and bool(plan.summary.step_ns)
    if not is_ours or late or options.effort == "quick" or plan.summary.outcome == "interrupted":
        return []
    ends_s = time.monotonic() + left_s if limit is not None else math.inf
    asked = Asked(model, cluster, replace(options, effort="quick", strict=False), plan, ends_s, on_try)
    if asked.has_many_axes:
        return []
    found: list[Advice] = []
    with contextlib.suppress(KeyboardInterrupt):
        found += asked.size()
        found += asked.devices()
        found += asked.optimizer_state()
    return found


@dataclass(frozen=True)
class Asked:
    """The original request, its end time (`time.monotonic`), and the callback for attempts."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    plan: Plan
    ends_s: float
    on_try: Callable[[str], object] = bool
    planners: dict[tuple[int, Mesh], tuple[Model, Planner]] = field(default_factory=dict, compare=False)
    """By the `id` of a model (kept alive beside it) and mesh: cost graphs are built once for all requests."""

    @property
    def has_many_axes(self) -> bool:
        """Whether the mesh has too many axes for one search over all layouts."""
        return len(self.cluster.mesh.real_axes) > MOST_WHOLE

    def size(self) -> Iterator[Advice]:
        """The size that is most useful to round up, if any is; usual sizes first."""
        best = self.best_size()
        if best is not None:
            size, model, promised_s = best
            yield from self._searched_advice(model, self.cluster, size, promised_s)

    def best_size(self, *, is_held: bool = False) -> tuple[Rounding, Model, float] | None:
        """The size with the largest promise, with its model, or (`is_held`) with the padded model, and the lower bound
        on its step. On many axes, where no such bound is known, the size with the most repeated work and waiting."""
        rules = model_rules(self.model)
        classes, found = roundings(self.model, rules, self.plan, LEAST)
        tried: list[tuple[bool, float, int, Rounding, Model]] = []
        for number, one in enumerate(found[:MOST_TRIED]):
            self.on_try(f"{one.what} {one.old:,} as {one.new:,}")
            model = self._padded_model(one) if is_held else grown(self.model, rules, classes, one.root, one.new)
            if model is not None and self.has_many_axes:
                return one, model, 0.0
            step_s = math.inf if model is None else self._promised_step_s(model, self.cluster)
            if model is not None and math.isfinite(step_s):
                tried.append((not one.is_usual, step_s, number, one, model))
        best = min(tried, default=None, key=lambda one: one[:3])
        return None if best is None else (*best[3:], best[1])

    def _padded_model(self, size: Rounding) -> Model | None:
        """The padded model, if padding is possible."""
        try:
            return padded(self.model, {size.place: size.new})
        except ShardplanError:
            return None

    def devices(self) -> Iterator[Advice]:
        """Fewer devices along one axis, if the plan on these is faster."""
        meshes = [one for one in _coarser(self.cluster) if self._may_be_faster(one)]
        tried = []
        for number, one in enumerate(meshes[:MOST_TRIED]):
            self.on_try(counted(one.mesh.size, "device"))
            step_s = self._promised_step_s(self.model, one)
            if math.isfinite(step_s):
                tried.append((step_s, number, one))
        best = min(tried, default=None, key=lambda one: one[:2])
        if best is not None:
            yield from self._searched_advice(self.model, best[2], None, best[0])

    def optimizer_state(self) -> Iterator[Advice]:
        """State sharded apart from its weights, if the plan could have it so and is faster with it."""
        options, summary = self.options, self.plan.summary
        may_be = options.training and not (options.shard_optimizer or options.target or options.optimizer == "none")
        if not may_be or self.cluster.mesh.size == 1 or time.monotonic() >= self.ends_s:
            return
        self.on_try("optimizer state apart from weights")
        try:
            step_s = least_step_s(
                self.model,
                with_an_axis_per_link(self.cluster, self.options),
                self._in_time(),
                self.plan,
                self._promising_s,
                WORK,
                BOUND_WORK,
            )
        except ShardplanError:
            return
        saves = 1 - step_s * NS_PER_S / summary.step_ns
        if saves > LEAST:
            what = "optimizer state sharded apart from its weights"
            yield Advice(what, None, None, round(step_s * NS_PER_S), saves, "--shard-optimizer")

    def _may_be_faster(self, cluster: Cluster) -> bool:
        """Whether the step could be short enough on fewer devices."""
        summary = self.plan.summary
        axes = zip(cluster.mesh.axes, self.cluster.mesh.axes, strict=True)
        is_gone = any(axis.size == 1 < before.size for axis, before in axes)
        sent_ns = 0.0 if is_gone else STILL_SENT * summary.communication_ns
        return self._compute_estimate_ns(cluster.mesh.size) + sent_ns < HOPE * summary.step_ns

    def _compute_estimate_ns(self, devices: int) -> float:
        """An estimate of the compute time on so many devices: kernel launches take as long on any number of them."""
        passes = 3 if self.options.training else 1
        starts_ns = passes * self.cluster.device.launch_s * NS_PER_S
        fixed = sum(min(starts_ns, one.compute_ns) for one in self.plan.operators)
        work = sum(max(0.0, one.compute_ns - starts_ns) * computing(one, self.plan.mesh) for one in self.plan.operators)
        return fixed + work / devices

    @property
    def _promising_s(self) -> float:
        """A change is promising if a lower bound on its step is below this."""
        return (1 - LEAST) * self.plan.summary.least_ns / NS_PER_S

    def _promised_step_s(self, model: Model, cluster: Cluster) -> float:
        """A lower bound on the step of a changed request, if it is below that of the plan by more than `LEAST`; else
        infinite."""
        if time.monotonic() >= self.ends_s:
            return math.inf
        try:
            planner = self._planner(model, with_an_axis_per_link(cluster, self.options))
            return promised_step_s(planner, self.plan, self._promising_s, BOUND_WORK, self.ends_s)
        except ShardplanError:
            return math.inf

    def _in_time(self) -> PlanOptions:
        """The options with what is left of the time limit, if there is one."""
        if self.options.time_limit is None:
            return self.options
        return replace(self.options, time_limit=max(0.0, self.ends_s - time.monotonic()))

    def _planner(self, model: Model, cluster: Cluster) -> Planner:
        """Raises `ShardplanError` for a request that cannot be planned."""
        key = id(model), cluster.mesh
        if key not in self.planners:
            self.planners[key] = model, Planner(model, cluster, self.options, reasons=False)
        return self.planners[key][1]

    def _searched_advice(
        self, model: Model, cluster: Cluster, size: Rounding | None, promised_s: float
    ) -> Iterator[Advice]:
        """The advice, if the step of a quick search is short enough, or that of a thorough one if the bound
        `promised_s` is far below that of the plan."""
        is_far = promised_s * NS_PER_S < FAR_BELOW * self.plan.summary.least_ns
        efforts: tuple[Effort, ...] = ("quick", "thorough") if is_far else ("quick",)
        for effort in efforts:
            try:
                step_ns = self._searched_step_ns(model, cluster, effort)
            except ShardplanError:
                return
            saves = 1 - step_ns / self.plan.summary.step_ns
            if saves > LEAST:
                break
        else:
            return
        if size is not None:
            option = flag(size.name, size.new) if size.name else ""
            if not option and self._padded_model(size) is not None:
                option = f"--pad {shlex.quote(f'{size.place}={size.new}')}"
            yield Advice(size.what, size.old, size.new, step_ns, saves, option)
        else:
            before, after = self.cluster.mesh.size, cluster.mesh.size
            yield Advice("devices", before, after, step_ns, saves, f"--mesh {cluster.mesh.argument}")

    def _searched_step_ns(self, model: Model, cluster: Cluster, effort: Effort) -> int:
        """The step that a search finds. Raises `ShardplanError`."""
        cluster = with_an_axis_per_link(cluster, self.options)
        if effort == "quick" and self.options.time_limit is None:
            planner = self._planner(model, cluster)
        else:
            planner = Planner(model, cluster, replace(self._in_time(), effort=effort), reasons=False)
        return unless_interrupted(planner.plan(work=WORK)).summary.step_ns


def _coarser(cluster: Cluster) -> Iterator[Cluster]:
    """For each axis, the cluster with its devices divided by the smallest prime factor: half of them, if their number
    is even."""
    profile = profile_from_resolved(cluster.resolved)
    for number, axis in enumerate(cluster.mesh.axes):
        fewer = next((axis.size // prime for prime in range(2, axis.size + 1) if axis.size % prime == 0), 0)
        if fewer:
            sizes = [fewer if place == number else one.size for place, one in enumerate(cluster.mesh.axes)]
            named = zip(cluster.mesh.names, sizes, strict=True)
            with contextlib.suppress(ShardplanError):
                yield make_cluster(profile, ",".join(f"{name}={size}" for name, size in named))
