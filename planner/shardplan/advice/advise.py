"""What would make the step of a plan shorter than any layout does: a size rounded up, or fewer devices.

Nothing is guessed. What looks promising is solved at the multipliers of the plan, which takes a small part of what the
plan took; where that is shorter than the plan's model is so, it is searched for as any plan is, and said where the
step that comes out is shorter by more than `LEAST`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from shardplan.advice.growth import grown
from shardplan.advice.sizes import Rounding, computing, roundings
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.dims import flag
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.judge import judged
from shardplan.rules import model_rules
from shardplan.study.finished import finished

LEAST: Final = 0.02
"""Share of the step that advice must save."""
MOST_TRIED: Final = 3
"""Sizes, and meshes, that are solved at the plan's multipliers: each takes about a twentieth of what the plan took."""
WORK: Final = 2e3
"""Work, in the units of `shardplan.solve.constants`, that the search of the most promising size may take, and that of
the most promising mesh: a tenth of what the search of the plan may."""


@dataclass(frozen=True, slots=True)
class Advice:
    """With `rounded` in place of `size` for `what`, or on `mesh` where that is no size, a step takes `step_ns`, which
    is shorter by the share `saves`. `option`: what asks for that on the command line; empty where the model has to be
    changed."""

    what: str
    size: int
    rounded: int
    step_ns: int
    saves: float
    option: str = ""


def advise(model: Model, cluster: Cluster, options: PlanOptions, plan: Plan, left_s: float = math.inf) -> list[Advice]:
    """What would be faster than `plan`, the best one for `model` on `cluster`; nothing for a pipeline, for other cost
    models, where little was to be searched (`effort` quick), or where of a time limit not as much is left (`left_s`) as
    half of it. Ends early where the user says so."""
    limit = options.time_limit
    late = limit is not None and left_s < limit / 2
    is_ours = options.cost_model.is_ours and plan.pipeline is None and bool(plan.summary.step_ns)
    if not is_ours or late or options.effort == "quick" or plan.summary.outcome == "interrupted":
        return []
    ends_s = time.monotonic() + left_s if limit is not None else math.inf
    asked = _Asked(model, cluster, replace(options, effort="quick", strict=False), plan, ends_s)
    found: list[Advice] = []
    with contextlib.suppress(KeyboardInterrupt):
        found += asked.size()
        found += asked.devices()
    return found


@dataclass(frozen=True)
class _Asked:
    """What was planned, and when there is no more time (`time.monotonic`)."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    plan: Plan
    ends_s: float

    def size(self) -> Iterator[Advice]:
        """The size that is worth most to round up, where one is worth it."""
        rules = model_rules(self.model)
        classes, found = roundings(self.model, rules, self.plan, LEAST)
        tried: list[tuple[float, int, Rounding, Model]] = []
        for number, one in enumerate(found[:MOST_TRIED]):
            model = grown(self.model, rules, classes, one.root, one.new)
            if model is not None:
                tried.append((self._roughly_s(model, self.cluster), number, one, model))
        best = min(tried, default=None, key=lambda one: one[:2])
        if best is None or not self._is_promising(best[0]):
            return
        _, _, one, model = best
        yield from self._said(model, self.cluster, one)

    def devices(self) -> Iterator[Advice]:
        """Fewer devices along one axis, where the plan on these is faster."""
        work_ns = sum(one.compute_ns * computing(one, self.plan.mesh) for one in self.plan.operators)
        longest_ns = (1 - LEAST) * self.plan.summary.step_ns
        meshes = [one for one in _coarser(self.cluster) if work_ns < one.mesh.size * longest_ns]
        tried = [(self._roughly_s(self.model, one), number, one) for number, one in enumerate(meshes[:MOST_TRIED])]
        best = min(tried, default=None, key=lambda one: one[:2])
        if best is not None and self._is_promising(best[0]):
            yield from self._said(self.model, best[2], None)

    def _is_promising(self, step_s: float) -> bool:
        return step_s < (1 - LEAST) * self._plainly_s

    @cached_property
    def _plainly_s(self) -> float:
        """The step of what was asked for, found in the same way."""
        return self._roughly_s(self.model, self.cluster)

    def _roughly_s(self, model: Model, cluster: Cluster) -> float:
        """The step of a plan at the multipliers of the best one; infinite where there is none, or no time."""
        if time.monotonic() >= self.ends_s:
            return math.inf
        try:
            planner = Planner(model, cluster, self.options, reasons=False)
            answer = planner.solve_at(self.plan.summary.multipliers)
        except ShardplanError:
            return math.inf
        if answer.solution.outcome == "interrupted":
            raise KeyboardInterrupt
        plans = [one for one in judged(answer, planner.limit_bytes, {}) if one.keeps(planner.limit_bytes)]
        return plans[0].step_s if plans else math.inf

    def _said(self, model: Model, cluster: Cluster, size: Rounding | None) -> Iterator[Advice]:
        """The advice, where the step that a search comes to is short enough."""
        options, left_s = self.options, self.ends_s - time.monotonic()
        if math.isfinite(left_s):
            options = replace(options, time_limit=max(0.0, left_s))
        try:
            step_ns = finished(Planner(model, cluster, options, reasons=False).plan(work=WORK)).summary.step_ns
        except ShardplanError:
            return
        saves = 1 - step_ns / self.plan.summary.step_ns
        if saves <= LEAST:
            return
        if size is not None:
            option = flag(size.name, size.new) if size.name else ""
            yield Advice(size.what, size.old, size.new, step_ns, saves, option)
        else:
            before, after = self.cluster.mesh.size, cluster.mesh.size
            yield Advice("devices", before, after, step_ns, saves, f"--mesh {_text(cluster)}")


def _coarser(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with fewer devices along one axis: half of them, where it has an even number."""
    profile = profile_from_resolved(cluster.resolved)
    for number, axis in enumerate(cluster.mesh.axes):
        fewer = next((axis.size // prime for prime in range(2, axis.size + 1) if axis.size % prime == 0), 0)
        if fewer:
            sizes = [fewer if place == number else one.size for place, one in enumerate(cluster.mesh.axes)]
            named = zip(cluster.mesh.names, sizes, strict=True)
            with contextlib.suppress(ShardplanError):
                yield make_cluster(profile, ",".join(f"{name}={size}" for name, size in named))


def _text(cluster: Cluster) -> str:
    return ",".join(f"{axis.name}={axis.size}" for axis in cluster.mesh.axes)
