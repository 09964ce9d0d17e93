"""Remedies for a request that has no plan: changes for which a plan that fits was found."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.build import Profile, profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.errors import ITEM, InfeasibleError, LimitError, ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.interrupted import unless_interrupted
from shardplan.planning import Planner
from shardplan.planning.finer import with_an_axis_per_link
from shardplan.planning.standing import OnProgress, Standing
from shardplan.study.constants import REMEDIES_S, REMEDY_GAP, REMEDY_S
from shardplan.units import TIME, Measure, size

_MICROBATCHES = (2, 4, 8, 16)
_GROWTH = (2, 4, 8)

_TRIED_S = 2.0
"""Under a time limit, no solve is started in its last seconds."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """`change`: as on the command line. Its plan takes `step_ns` and `memory_bytes` of a device."""

    change: str
    step_ns: int
    memory_bytes: int


def find_remedies(
    model: Model, cluster: Cluster, options: PlanOptions, on_progress: OnProgress | None = None
) -> tuple[Remedy, ...]:
    """The smallest change of each kind for which a plan fits, for a request that has none.

    More microbatches, rematerialisation, optimizer state sharded apart from its weight, a lighter optimizer, a smaller
    KV cache, and more devices of the same profile; each alone. After Ctrl-C, those found so far.
    """
    kinds = [
        [(change, cluster, asked) for change, asked in kind]
        for kind in (_microbatches(options), _remat(options), _sharded(options), _optimizer(options), _cache(options))
    ]
    kinds.append([(f"--mesh {text}", grown, options) for text, grown in _larger(cluster)])
    found: list[Remedy] = []
    ends_s = time.monotonic() + min(REMEDIES_S, math.inf if options.time_limit is None else options.time_limit)
    with contextlib.suppress(KeyboardInterrupt):  # that nothing fits is known: what was found by then is said
        for candidates in kinds:
            remedy = _first(model, candidates, ends_s, on_progress)
            found += [remedy] if remedy else []
    return tuple(found)


def remedies_text(remedies: Sequence[Remedy], measure: Measure = TIME) -> str:
    """`these were solved, and fit:` and a line for each."""
    width = max(len(remedy.change) for remedy in remedies)
    lines = [
        f"{remedy.change:{width}}  step {measure.text(remedy.step_ns)}, {size(remedy.memory_bytes)} per device"
        for remedy in remedies
    ]
    return ITEM.join(["these were solved, and fit:", *lines])


def remedies_record(remedies: Sequence[Remedy]) -> list[dict[str, object]]:
    """The same as plain data: microseconds and bytes."""
    return [
        {"change": remedy.change, "step_us": remedy.step_ns / 1000, "memory_bytes": remedy.memory_bytes}
        for remedy in remedies
    ]


def _first(
    model: Model,
    candidates: Sequence[tuple[str, Cluster, PlanOptions]],
    ends_s: float,
    on_progress: OnProgress | None,
) -> Remedy | None:
    for change, cluster, options in candidates:
        if on_progress is not None:
            on_progress(Standing(math.inf, -math.inf, doing=change))
        left_s = ends_s - time.monotonic()
        if left_s < (_TRIED_S if options.time_limit is not None else 0.0):
            return None
        seconds = REMEDY_S if options.time_limit is None else min(REMEDY_S, left_s - _TRIED_S / 2)
        try:
            quick = replace(options, effort="quick", gap=max(options.gap, REMEDY_GAP), time_limit=seconds)
            few = with_an_axis_per_link(cluster, options)
            summary = unless_interrupted(Planner(model, few, quick, reasons=False).plan()).summary
        except (InfeasibleError, LimitError):
            continue
        except ShardplanError:  # the model cannot be cut so: other candidates of the kind cannot help either
            return None
        return Remedy(change, summary.step_ns, summary.memory.total)
    return None


def _microbatches(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    if options.training:
        for times in _MICROBATCHES:
            number = times * options.microbatches
            yield f"--microbatches {number}", replace(options, microbatches=number)


def _remat(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    if options.training and options.remat != "auto":
        yield "--remat auto", replace(options, remat="auto")


def _sharded(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    if options.training and not options.shard_optimizer:
        yield "--shard-optimizer", replace(options, shard_optimizer=True)


def _optimizer(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    if options.training and options.optimizer.startswith("adam"):
        yield "--optimizer sgd", replace(options, optimizer="sgd")


def _cache(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    for part in _MICROBATCHES if options.kv_cache_tokens else ():
        tokens = options.kv_cache_tokens // part
        yield f"--kv-cache tokens={tokens}", replace(options, kv_cache_tokens=tokens)


def _larger(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """More of the outermost axis, or where a machine has no more, several machines; a profile that has no room for
    more ends it."""
    profile = profile_from_resolved(cluster.resolved)
    first, *rest = cluster.mesh.shape
    outer = cluster.axis_levels[0] + 1
    for times in _GROWTH:
        texts = ["x".join(map(str, (times * first, *rest)))]
        if outer < len(cluster.levels):
            texts.append(f"{cluster.levels[outer].name}={times},{cluster.mesh.argument}")
        grown = next(((text, made) for text in texts if (made := _made(profile, text))), None)
        if grown is None:
            return
        yield grown


def _made(profile: Profile, mesh_text: str) -> Cluster | None:
    try:
        return make_cluster(profile, mesh_text)
    except ShardplanError:
        return None
