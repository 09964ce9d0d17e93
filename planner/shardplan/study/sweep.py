"""Sweeps: many requests for one model over clusters, meshes, microbatches and rematerialisation, each planned once.

A point is plain data, so that any engine can plan it elsewhere and a file can hold it. Points that the file already has
are not planned again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol, cast

from shardplan.cluster.build import profile_digest
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import Remat
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model
from shardplan.pipeline.manual.stages import ManualStages
from shardplan.plan.file import dumps, read_whole
from shardplan.plan.format.digest import content_digest
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.request import AUTO, FIELDS, Request, term
from shardplan.study.instance import as_read, read
from shardplan.study.solve import NoMeshError, solve
from shardplan.text_files import read_text
from shardplan.whole_files import write_whole

FORMAT_VERSION = "1.1"
_HOUR_US = 3.6e9
_MOST_AXES = 2
"""Of the logical meshes that `auto` tries at each point."""
_MOST = 1e30
"""Numbers of a point are below."""
PLANNED = ("optimal", "feasible", "interrupted")
"""Outcomes of points that have a plan."""
OUTCOMES = (*PLANNED, "infeasible", "limit", "refused")
_NUMBERS = ("devices", "step_us", "bound_us", "memory_bytes")
"""What all of them have."""
_LONGEST = 80
_HINT = "write elsewhere with --output, or remove the file"
COMPARED_ELSEWHERE = {
    **dict.fromkeys(("mesh", "cluster", "microbatches", "remat"), "each point has its own"),
    **dict.fromkeys(("model", "dims", "trips", "pads"), "the digest of the model"),
    "pins": "they are among the constraints",
}
"""Fields of `Request` that do not stand for themselves in what all points have in common."""
_FROM_THE_FIRST = ("mode", "optimizer", "memory_limit", "constraints")
_LATER = tuple(name for name in FIELDS if name not in COMPARED_ELSEWHERE and name not in _FROM_THE_FIRST)
"""All other fields: they are recorded where they are not the default, so that older files can be read."""


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
    `cost_usd`: of a step, if the profile has the price of a device. `mesh`: the one planned on. `inputs_digest`: of
    the files that the request names, as they were then; empty where one could not be read."""

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
    inputs_digest: str = ""


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
    """Plans `request` in every combination; points that the file at `path` holds are taken from it, if the files
    that they name are as they were, and every new point is added to it at once.

    Raises `ShardplanError` with everything that is wrong with the inputs of `request`, and (`other-sweep`,
    `not-a-sweep`) for a file of something else, and `SweepInterrupt` on Ctrl-C.
    """
    request = as_read(request)
    assert not isinstance(request.model, str | Path)
    items, _ = items_of(request.model)
    empty = Sweep(request.model.name, structure_digest(request.model), _asked(request), items=items)
    known = {point.request: point for point in _read(path, empty)} if path else {}
    for stale in _of_other_inputs(known, combinations):
        del known[stale]
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
    digest = _digest_of(combination)  # before it is read: what changes meanwhile is planned again
    try:
        point = _planned(request, combination)
    except InfeasibleError as problem:
        reason = "no plan fits in memory" if isinstance(problem, NoMeshError) else problem.diagnostics[0].summary
        point = Point(combination, "infeasible", reason)
    except LimitError as problem:
        point = Point(combination, "limit", problem.diagnostics[0].summary)
    except ShardplanError as problem:
        point = Point(combination, "refused", problem.diagnostics[0].summary)
    return replace(point, inputs_digest=digest)


def _planned(request: Request, combination: Combination) -> Point:
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


def _digest_of(combination: Combination) -> str:
    """`sha256:` and 64 hex digits of the files that a combination names, as they are now: its profile, and the plan as
    which stages are cut. Empty where one cannot be read."""
    try:
        found = [profile_digest(load_profile(combination.cluster))]
        stages = term("stages").check("stages", combination.stages or None)
        if isinstance(stages, str | Path) and stages != AUTO:
            found.append(content_digest(read_whole(stages)[0]))
    except ShardplanError:
        return ""
    return "sha256:" + hashlib.sha256(" ".join(found).encode()).hexdigest()


def _of_other_inputs(
    known: Mapping[Combination, Point], combinations: Sequence[Combination]
) -> tuple[Combination, ...]:
    """The combinations whose known points are of other files than have their names now."""
    asked = [one for one in combinations if one in known]
    by_files = {(one.cluster, one.stages): one for one in asked}
    now = {files: _digest_of(one) for files, one in by_files.items()}
    return tuple(
        one for one in asked if known[one].inputs_digest != now[one.cluster, one.stages] or not known[one].inputs_digest
    )


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
    """What all points have in common, of a request whose inputs are read; JSON-ready."""
    assert isinstance(request.model, Model)
    changed = [name for name in _LATER if getattr(request, name) != FIELDS[name].default]
    aliases = next((constraint.aliases for constraint in request.constraints if constraint.aliases), ())
    padding = request.model.padding
    by_hand = request.stages.intermediate if isinstance(request.stages, ManualStages) else None
    return {
        "mode": request.mode,
        "optimizer": request.optimizer,
        "memory_limit_bytes": request.memory_limit,
        "constraints": [str(constraint) for constraint in request.constraints],
        **{name: _plain(getattr(request, name)) for name in changed},
        **({} if by_hand is None else {"pipeline_intermediate_axes": dict(by_hand)}),
        **({"mesh_axis_names": list(aliases)} if aliases else {}),
        # a model that is padded may be the same as one that has these sizes, and counts fewer tokens
        **({} if padding is None else {"padded_from": structure_digest(padding.of)}),
    }


def _plain(value: object) -> object:
    """The value of a field as JSON has it; a plan by its digest."""
    if isinstance(value, ManualStages):
        return [
            {
                "runs": list(one.runs),
                "mesh": one.mesh,
                "constraints": [str(constraint) for constraint in one.constraints],
            }
            for one in value.stages
        ]
    return content_digest(json.loads(dumps(value))) if isinstance(value, Plan) else value


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
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        content = None
    head, rows = (content.get("sweep"), content.get("points")) if isinstance(content, dict) else (None, None)
    if not isinstance(head, dict) or not isinstance(rows, list):
        raise ShardplanError(error("not-a-sweep", "this file is no sweep", file=path, hint=_HINT))
    for number, row in enumerate(rows, 1):
        if fault := _fault_of(row):
            detail = f"point {number}: {fault}"
            raise ShardplanError(error("not-a-sweep", "this file is no sweep", detail=detail, file=path, hint=_HINT))
    asked = cast("dict[str, object]", sweep_record(wanted)["sweep"])
    if head != asked:
        summary = "this file holds a sweep of another model, or one asked otherwise"
        detail = "\n".join(_differences(head, asked))
        raise ShardplanError(error("other-sweep", summary, detail=detail, file=path, hint=_HINT))
    names = [one.name for one in fields(Point)]
    return tuple(
        Point(**{name: row[name] for name in names if name in row} | {"request": Combination(**row["request"])})
        for row in rows
    )


def _differences(there: Mapping[str, object], asked: Mapping[str, object]) -> Iterator[str]:
    """By what the head of a file differs from what is asked."""
    for name in dict.fromkeys([*asked, *there]):
        default = FIELDS[name].default if name in _LATER else None
        before, now = there.get(name, default), asked.get(name, default)
        if before != now:
            yield f"{name}: {_shown(before)} in the file, {_shown(now)} asked for"


def _fault_of(row: object) -> str:
    """What is wrong with a point of a file; empty if nothing is. What newer versions add to a point is passed over."""
    asked = row.get("request") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(asked, dict):
        return "it has no request"
    if unknown := asked.keys() - {one.name for one in fields(Combination)}:
        return f"its request has an unknown key, '{min(unknown)}'"
    faults = [*_bad_fields(asked, Combination), *_bad_fields(row, Point)]
    if faults:
        return faults[0]
    outcome = row["outcome"]
    if outcome not in OUTCOMES:
        return f"outcome is {_shown(outcome)}, none of {', '.join(OUTCOMES)}"
    numbers = [name for name in _NUMBERS if row.get(name) is not None]
    if len(numbers) != (len(_NUMBERS) if outcome in PLANNED else 0):
        return f"outcome is {_shown(outcome)}, and it has {', '.join(numbers) or 'no numbers'}"
    return ""


def _bad_fields(values: Mapping[str, object], of: type[Point | Combination]) -> Iterator[str]:
    for one in fields(of):
        if one.name not in values and one.default is MISSING:
            yield f"it has no {one.name}"
        elif one.name != "request" and not _is_of(values.get(one.name, one.default), str(one.type)):
            yield f"{one.name} is {_shown(values[one.name])}"


def _shown(value: object) -> str:
    """A value of a file in a message."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_of(value: object, kind: str) -> bool:
    """Whether a value of a file is of the type that a field of `Point` or `Combination` is declared with."""
    if value is None:
        return kind.endswith("None")
    if kind == "str":
        return isinstance(value, str)
    numbers = (int,) if kind.startswith("int") else (int, float)
    return isinstance(value, numbers) and not isinstance(value, bool) and 0 <= value < _MOST
