"""Many requests for one model: clusters, meshes, microbatches and rematerialisation, every combination planned once.

A point is plain data, so that any engine can plan it elsewhere and a file can hold it. What is in the file already is
not planned again.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol, cast

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import PlanOptions, Remat
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.plan.types import Plan
from shardplan.planning import plan_model
from shardplan.study.meshes import best_of, logical_meshes, try_meshes

FORMAT_VERSION = "1.0"
_HOUR_US = 3.6e9


@dataclass(frozen=True, slots=True)
class Request:
    """One combination, as on the command line. `mesh`: sizes, or `auto` over the devices of the profile. `stages`: ""
    for one mesh, else as `--stages` takes it."""

    cluster: str
    mesh: str
    microbatches: int
    remat: str
    stages: str = ""

    def __str__(self) -> str:
        staged = f" stages={self.stages}" if self.stages else ""
        return f"{self.cluster} {self.mesh} microbatches={self.microbatches} remat={self.remat}{staged}"


@dataclass(frozen=True, slots=True)
class Point:
    """What came of a request. `outcome`: that of the plan, or `infeasible`, `limit` or `refused` with the `reason`;
    then all numbers are None. `tokens_per_s`: of the first input of whole numbers (else rows of the first input).
    `cost_usd`: of a step, where the profile says what a device costs. `mesh`: the one planned on."""

    request: Request
    outcome: str
    reason: str = ""
    mesh: str = ""
    devices: int | None = None
    step_us: float | None = None
    bound_us: float | None = None
    memory_bytes: int | None = None
    tokens_per_s: float | None = None
    cost_usd: float | None = None


@dataclass(frozen=True)
class Sweep:
    """`points`: in the order of the requests, those planned so far. `model`, `asked`: what a file must agree with."""

    model: str
    digest: str
    asked: Mapping[str, object]
    points: tuple[Point, ...] = field(default=())


class Engine(Protocol):
    """Plans points somewhere; gives each as it is done, in any order, and loses none."""

    def points(self, model: Model, options: PlanOptions, requests: Sequence[Request]) -> Iterator[Point]: ...


def all_requests(
    clusters: Sequence[str],
    meshes: Sequence[str],
    microbatches: Sequence[int],
    remats: Sequence[str],
    stages: Sequence[str] = ("",),
) -> tuple[Request, ...]:
    """Every combination, each once, in order."""
    combinations = itertools.product(clusters, meshes, microbatches, remats, stages)
    return tuple(dict.fromkeys(Request(*combination) for combination in combinations))


def sweep(
    model: Model,
    options: PlanOptions,
    requests: Sequence[Request],
    engine: Engine,
    path: str | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> Sweep:
    """Plan every request; what the file at `path` holds already is taken from it, and every point is added to it at
    once.

    Raises `ShardplanError` (`other-sweep`, `not-a-sweep`) for a file of something else.
    """
    asked = _asked(options)
    empty = Sweep(model.name, structure_digest(model), asked)
    known = {point.request: point for point in _read(path, empty)} if path else {}
    for request in requests:
        if request in known and on_point is not None:
            on_point(known[request])
    missing = [request for request in requests if request not in known]

    def so_far() -> Sweep:
        order = {request: place for place, request in enumerate(requests)}
        found = sorted(known.values(), key=lambda point: (order.get(point.request, len(order)), str(point.request)))
        return replace(empty, points=tuple(found))

    for point in engine.points(model, options, missing) if missing else ():
        known[point.request] = point
        if path:
            _write(path, so_far())
        if on_point is not None:
            on_point(point)
    return replace(empty, points=tuple(known[request] for request in requests))


def plan_point(model: Model, options: PlanOptions, request: Request) -> Point:
    """Plan one request. Faults of the request are its answer, never raised."""
    asked = replace(options, microbatches=request.microbatches, remat=cast("Remat", request.remat))
    try:
        profile = load_profile(request.cluster)
        if request.mesh == "auto":
            meshes = [text for text in logical_meshes(profile) if len(text.split(",")) <= 2]
            found = best_of(try_meshes(model, profile, asked, meshes))
            if found is None or found.plan is None:
                return Point(request, "infeasible", "no plan fits in memory")
            return _point(model, request, make_cluster(profile, found.text), found.plan)
        cluster = make_cluster(profile, request.mesh)
        return _point(model, request, cluster, _plan(model, cluster, asked, request))
    except InfeasibleError as problem:
        return Point(request, "infeasible", problem.diagnostics[0].summary)
    except LimitError as problem:
        return Point(request, "limit", problem.diagnostics[0].summary)
    except ShardplanError as problem:
        return Point(request, "refused", problem.diagnostics[0].summary)


def _plan(model: Model, cluster: Cluster, options: PlanOptions, request: Request) -> Plan:
    if not request.stages:
        return plan_model(model, cluster, options)
    count = None if request.stages == "auto" else int(request.stages)
    return plan_stages(model, cluster, options, parse_schedule("1f1b"), count)


def _point(model: Model, request: Request, cluster: Cluster, plan: Plan) -> Point:
    summary, price = plan.summary, cluster.provenance.get("device_hour_usd")
    step_us = summary.step_ns / 1000
    return Point(
        request=request,
        outcome=summary.outcome,
        mesh=str(plan.mesh),
        devices=plan.mesh.size,
        step_us=step_us,
        bound_us=(summary.step_bound_ns or summary.bound_ns) / 1000,
        memory_bytes=summary.memory.total,
        tokens_per_s=round(_tokens(model) / step_us * 1e6, 3) if step_us else None,
        cost_usd=None if price is None else float(cast("float", price)) * plan.mesh.size * step_us / _HOUR_US,
    )


def _tokens(model: Model) -> int:
    """Elements of the first input of whole numbers; else rows of the first input."""
    inputs = [model.tensor(name) for name in model.inputs]
    whole = [tensor for tensor in inputs if tensor.dtype in ("int64", "int32") and tensor.shape]
    return whole[0].elements if whole else next((tensor.shape[0] for tensor in inputs if tensor.shape), 1)


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other beats: none has at most its step, memory and devices and less of one. Fastest first;
    of points alike in all three the first."""
    planned = [point for point in points if point.step_us is not None]

    def key(point: Point) -> tuple[float, float, float]:
        return float(point.step_us or 0), float(point.memory_bytes or 0), float(point.devices or 0)

    found = [
        point
        for point in planned
        if not any(key(other) != key(point) and all(map(float.__le__, key(other), key(point))) for other in planned)
    ]
    first = {key(point): point for point in reversed(found)}
    return tuple(first[numbers] for numbers in sorted(first))


def _asked(options: PlanOptions) -> dict[str, object]:
    """What all points have in common."""
    return {
        "mode": options.mode,
        "optimizer": options.optimizer,
        "memory_limit_bytes": options.memory_limit_bytes,
        "constraints": [str(constraint) for constraint in options.constraints],
    }


def sweep_record(found: Sweep) -> dict[str, object]:
    """The file's content, JSON-ready."""
    return {
        "format_version": FORMAT_VERSION,
        "sweep": {"model": found.model, "digest": found.digest, **found.asked},
        "points": [asdict(point) for point in found.points],
    }


def _write(path: str, found: Sweep) -> None:
    """Whole or not there."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    record = sweep_record(found)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in cast("list[object]", record["points"]))
    head = f'  "format_version": {json.dumps(FORMAT_VERSION)},\n  "sweep": {json.dumps(record["sweep"])}'
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    beside.write_text(f'{{\n{head},\n  "points": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
    beside.replace(target)


def _read(path: str, wanted: Sweep) -> tuple[Point, ...]:
    """The points in the file, none where there is no file."""
    if not Path(path).exists():
        return ()
    hint = "write elsewhere with --output, or remove the file"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        head = content["sweep"]
        names = {one.name for one in fields(Point)} - {"request"}
        points = tuple(
            Point(request=Request(**row["request"]), **{name: row[name] for name in row if name in names})
            for row in content["points"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise ShardplanError(error("not-a-sweep", "this file is no sweep", file=path, hint=hint)) from None
    if head != sweep_record(wanted)["sweep"]:
        summary = "this file holds a sweep of another model, or one asked otherwise"
        raise ShardplanError(error("other-sweep", summary, file=path, hint=hint))
    return points
