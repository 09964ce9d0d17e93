"""Sweeps: many requests for one model over clusters, meshes, microbatches and rematerialisation, each planned once.

A point is plain data, so that any engine can plan it elsewhere and a file can hold it. Points that the file already has
are not planned again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol, cast

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import Remat
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model
from shardplan.pipeline.manual.stages import ManualStages
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.request import FIELDS, Request
from shardplan.study.instance import as_read, read
from shardplan.study.solve import NoMeshError, solve
from shardplan.text_files import read_text
from shardplan.whole_files import write_whole

FORMAT_VERSION = "1.0"
_HOUR_US = 3.6e9
_MOST_AXES = 2
"""Of the logical meshes that `auto` tries at each point."""
_LATER = (
    "target", "shard_optimizer", "equal_layers", "kv_cache_tokens", "schedule", "time_limit", "gap", "seed", "presolve",
    "strict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Combination:
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
    """The result of one request. `outcome`: that of the plan, or `infeasible`, `limit` or `refused` with the `reason`;
    then all numbers are None. `tokens_per_s`: tokens, or samples, of a step (`items_of`) per second.
    `cost_usd`: of a step, if the profile has the price of a device. `mesh`: the one planned on."""

    request: Combination
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
    """`points`: in the order of the requests, those planned so far. `model`, `asked`: what a file must agree with.
    `items`: what a step is counted in, tokens or samples."""

    model: str
    digest: str
    asked: Mapping[str, object]
    points: tuple[Point, ...] = field(default=())
    items: str = "tokens"


class SweepInterrupt(KeyboardInterrupt):
    """Ctrl-C stopped a sweep; `found` has the points planned until then."""

    def __init__(self, found: Sweep) -> None:
        self.found = found
        super().__init__()


class Engine(Protocol):
    """Plans points; yields each as it finishes, in any order, and loses none."""

    def points(self, request: Request, combinations: Sequence[Combination]) -> Iterator[Point]: ...


def all_combinations(
    clusters: Sequence[str],
    meshes: Sequence[str],
    microbatches: Sequence[int],
    remats: Sequence[str],
    stages: Sequence[str] = ("",),
) -> tuple[Combination, ...]:
    """Every combination, each once, in order."""
    combinations = itertools.product(clusters, meshes, microbatches, remats, stages)
    return tuple(dict.fromkeys(Combination(*combination) for combination in combinations))


def sweep(
    request: Request,
    combinations: Sequence[Combination],
    engine: Engine,
    path: str | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> Sweep:
    """Plans `request` in every combination; points that the file at `path` holds are taken from it, and every new point
    is added to it at once.

    Raises `ShardplanError` with everything that is wrong with the inputs of `request`, and (`other-sweep`,
    `not-a-sweep`) for a file of something else, and `SweepInterrupt` on Ctrl-C.
    """
    request = as_read(request)
    assert not isinstance(request.model, str | Path)
    items, _ = items_of(request.model)
    empty = Sweep(request.model.name, structure_digest(request.model), _asked(request), items=items)
    known = {point.request: point for point in _read(path, empty)} if path else {}
    for combination in combinations:
        if combination in known and on_point is not None:
            on_point(known[combination])
    missing = [combination for combination in combinations if combination not in known]

    def so_far() -> Sweep:
        order = {combination: place for place, combination in enumerate(combinations)}
        found = sorted(known.values(), key=lambda point: (order.get(point.request, len(order)), str(point.request)))
        return replace(empty, points=tuple(found))

    if path and missing:
        _write(path, so_far())  # a file that cannot be written is known before anything is planned
    try:
        for point in engine.points(request, missing) if missing else ():
            known[point.request] = point
            if path:
                _write(path, so_far())
            if on_point is not None:
                on_point(point)
    except KeyboardInterrupt:
        points = tuple(known[combination] for combination in combinations if combination in known)
        raise SweepInterrupt(replace(empty, points=points)) from None
    return replace(empty, points=tuple(known[combination] for combination in combinations))


def plan_point(request: Request, combination: Combination) -> Point:
    """Plans one combination. Faults of it are its result and are not raised."""
    try:
        asked = replace(
            request,
            cluster=combination.cluster,
            mesh=combination.mesh,
            microbatches=combination.microbatches,
            remat=cast("Remat", combination.remat),
            stages=combination.stages or request.stages,
        )
        instance = read(asked)
        found = solve(instance, most_axes=_MOST_AXES)
        return _point(instance.model, combination, found.cluster, unless_interrupted(found.plan))
    except InfeasibleError as problem:
        reason = "no plan fits in memory" if isinstance(problem, NoMeshError) else problem.diagnostics[0].summary
        return Point(combination, "infeasible", reason)
    except LimitError as problem:
        return Point(combination, "limit", problem.diagnostics[0].summary)
    except ShardplanError as problem:
        return Point(combination, "refused", problem.diagnostics[0].summary)


def _point(model: Model, request: Combination, cluster: Cluster, plan: Plan) -> Point:
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
        tokens_per_s=round(items_of(model)[1] / step_us * 1e6, 3) if step_us else None,
        cost_usd=None if price is None else float(cast("float", price)) * plan.mesh.size * step_us / _HOUR_US,
    )


def items_of(model: Model) -> tuple[str, int]:
    """What a step is counted in, and how many of them it takes, without padding: tokens, the elements of the first
    input of whole numbers that has two dims (batch and sequence); without one samples, the rows of the first input."""
    model = model if model.padding is None else model.padding.of
    inputs = [model.tensor(name) for name in model.inputs]
    sequences = (tensor for tensor in inputs if tensor.dtype in ("int64", "int32") and len(tensor.shape) == 2)
    if (sequence := next(sequences, None)) is not None:
        return "tokens", sequence.elements
    return "samples", next((tensor.shape[0] for tensor in inputs if tensor.shape), 1)


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """The Pareto-optimal points: no other has at most their step, memory and devices and less of one. Fastest first;
    among points equal in all three the first."""
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


def _asked(request: Request) -> dict[str, object]:
    """What all points have in common; of what was added to a sweep later, only what is not the default."""
    later = {name: getattr(request, name) for name in _LATER if getattr(request, name) != FIELDS[name].default}
    by_hand = request.stages
    if isinstance(by_hand, ManualStages):
        later["stages"] = [
            {
                "runs": list(one.runs),
                "mesh": one.mesh,
                "constraints": [str(constraint) for constraint in one.constraints],
            }
            for one in by_hand.stages
        ]
        later["pipeline_intermediate_axes"] = dict(by_hand.intermediate)
    return {
        "mode": request.mode,
        "optimizer": request.optimizer,
        "memory_limit_bytes": request.memory_limit,
        "constraints": [str(constraint) for constraint in request.constraints],
        **later,
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
    record = sweep_record(found)
    rows = ",\n".join(f"    {json.dumps(row)}" for row in cast("list[object]", record["points"]))
    head = f'  "format_version": {json.dumps(FORMAT_VERSION)},\n  "sweep": {json.dumps(record["sweep"])}'
    try:
        write_whole(path, f'{{\n{head},\n  "points": [\n{rows}\n  ]\n}}\n'.encode())
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        summary = f"cannot write the sweep: {reason}"
        raise ShardplanError(error("unwritable-output", summary, file=path)) from None


def _read(path: str, wanted: Sweep) -> tuple[Point, ...]:
    """The points in the file, none where there is no file."""
    if not Path(path).exists():
        return ()
    hint = "write elsewhere with --output, or remove the file"
    try:
        content = json.loads(read_text(path))
        head = content["sweep"]
        names = {one.name for one in fields(Point)} - {"request"}
        points = tuple(
            Point(request=Combination(**row["request"]), **{name: row[name] for name in row if name in names})
            for row in content["points"]
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ShardplanError(error("not-a-sweep", "this file is no sweep", file=path, hint=hint)) from None
    if head != sweep_record(wanted)["sweep"]:
        summary = "this file holds a sweep of another model, or one asked otherwise"
        raise ShardplanError(error("other-sweep", summary, file=path, hint=hint))
    return points
