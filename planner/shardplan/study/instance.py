"""The inputs of planning: model, cluster, planning options and pipeline; all faults of all inputs are
collected."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.consistency import consistent
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.constraints.parse import parse_constraints, parse_pin, read_constraints
from shardplan.constraints.types import Constraint
from shardplan.cost.named import parse_cost_model
from shardplan.errors import Attempts, Diagnostic, ShardplanError, did_you_mean, error
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.model.size_names import PAD, TRIP
from shardplan.model.types import Model
from shardplan.models import NAMED, PREFIX, configured, described, factory_of, is_config, title_of_factory
from shardplan.pipeline.manual.stages import ManualStages, read_stages, stages_asked_for, stages_in, stages_of
from shardplan.pipeline.schedule import Schedule, parse_schedule
from shardplan.plan.file import read_plan
from shardplan.plan.legality import faults as illegal
from shardplan.plan.recorded_request import cluster_of, dims_of, options_of
from shardplan.plan.types import Plan
from shardplan.planning.start_plan import StartPlan
from shardplan.request import AUTO, FIELDS, Request, option_of
from shardplan.study.reuse import SECTIONS, Kept, constraints_of
from shardplan.study.sources import sources_of
from shardplan.text_files import is_file, is_there

_ADAPTER = "shardplan.torch.planning.factory"
_HEAD = 4096
_SHOWN = 8


@dataclass(frozen=True)
class Staging:
    """The requested pipeline: `stages` is None if their number is to be chosen."""

    stages: int | ManualStages | None
    schedule: Schedule


@dataclass(frozen=True)
class ReadRequest:
    """A request with its inputs read: `cluster` has the mesh, or, if that is to be chosen (`is_auto`), the devices.
    `staging`: None for one mesh; `sources`: the files of the inputs; `is_uneven`: sizes may be padded; `start`: a plan
    that the search starts from."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    staging: Staging | None = None
    is_auto: bool = False
    is_uneven: bool = False
    sources: Mapping[str, object] = field(default_factory=dict)
    start: StartPlan | None = None

    @property
    def limit_bytes(self) -> int:
        """What a device may use."""
        return self.options.limit_bytes_on(self.cluster.device)


def read(request: Request, faulty: Mapping[str, Collection[Diagnostic]] | None = None) -> ReadRequest:
    """Reads every input of `request`. `faulty`: fields that are known to be wrong, and why; their inputs are not read.

    Raises `ShardplanError` with everything that is wrong with any input.
    """
    known = faulty or {}
    attempt = Attempts()
    attempt.problems += (fault for faults in known.values() for fault in faults)
    cluster = attempt(lambda: _cluster(request)) if not {"mesh", "cluster", "devices"} & known.keys() else None
    model = attempt(lambda: _model(request)) if not {"dims", "trips", "pads"} & known.keys() else None
    constraints = attempt(lambda: read_all_constraints(request.constraints, request.pins))
    staging = attempt(lambda: _staging(request)) if "stages" not in known else None
    start = attempt(lambda: _start(request, staging)) if "start" not in known else None
    cost_model = attempt(lambda: parse_cost_model(request.cost_model))
    attempt.finish()
    assert model is not None
    assert cluster is not None
    assert cost_model is not None
    assert not isinstance(request.memory_limit, str)
    options = PlanOptions(
        mode=request.mode,
        optimizer=request.optimizer,
        microbatches=request.microbatches,
        remat=request.remat,
        memory_limit_bytes=request.memory_limit,
        time_limit=request.time_limit,
        gap=request.gap,
        seed=request.seed,
        presolve=request.presolve,
        strict=request.strict,
        constraints=constraints or (),
        kv_cache_tokens=request.kv_cache_tokens,
        cost_model=cost_model,
        shard_optimizer=request.shard_optimizer,
        equal_layers=request.equal_layers,
        effort=request.effort,
        target=request.target,
    )
    return ReadRequest(model, cluster, options, staging, request.is_auto, request.uneven, sources_of(request), start)


def as_read(request: Request) -> Request:
    """`request` with the content of its files in place of their names, so that it can be planned on another machine."""
    instance = read(request)
    staging = instance.staging
    stages = None if staging is None else "auto" if staging.stages is None else staging.stages
    constraints, start = instance.options.constraints, None if instance.start is None else instance.start.plan
    return replace(
        request, model=instance.model, dims={}, trips={}, pads={}, constraints=constraints, pins=(), stages=stages,
        start=start,
    )  # fmt: skip


def recorded_request(plan: Plan, file: str, model: Model) -> Request:
    """The request of `plan`, read from `file`, for `model`. Raises `ShardplanError` (`damaged-plan`)."""
    options, asked = options_of(plan, file), plan.model.get("stages")
    stages: Any = stages_asked_for(plan, file) if asked == "manual" else asked if plan.pipeline else None
    return Request(
        model,
        cluster=cluster_of(plan, file),
        mode=options.mode,
        optimizer=options.optimizer,
        shard_optimizer=options.shard_optimizer,
        equal_layers=options.equal_layers,
        target=options.target,
        microbatches=options.microbatches,
        remat=options.remat,
        kv_cache_tokens=options.kv_cache_tokens,
        memory_limit=options.memory_limit_bytes,
        stages=stages,
        schedule=str(plan.model.get("schedule", "1f1b")),
        # what held for all stages by hand is among what each was planned under
        constraints=() if asked == "manual" else options.constraints,
        cost_model=str(options.cost_model),
    )


def load_model(given: str | Path, dims: Mapping[str, int]) -> Model:
    """The model of an ONNX file, of a `config.json`, of a description such as `transformer:llama3-70b`, or of a factory
    such as `my_pkg.module:build`, with `dims`; a dim `pad:NAME` among these pads a size. Raises `ShardplanError`."""
    pads = {name.removeprefix(PAD): size for name, size in dims.items() if name.startswith(PAD)}
    found = _as_it_is(given, {name: size for name, size in dims.items() if not name.startswith(PAD)})
    return _held_as(found, pads)


def _held_as(model: Model, pads: Mapping[str, int]) -> Model:
    """The model with these dims padded."""
    if not pads:
        return model
    from shardplan.padding.padded import padded

    return padded(model, pads)


def _as_it_is(given: str | Path, dims: Mapping[str, int]) -> Model:
    text = str(given)
    if text.startswith(PREFIX):
        return described(text, dims)
    if is_config(text):
        return configured(text, dims)
    if text in NAMED and not is_there(text):
        summary, hint = f"there is no file '{text}'", f"{PREFIX}{text} is the described model of that name"
        raise ShardplanError(error("no-such-file", summary, hint=hint))
    factory = factory_of(text)
    return read_model(given, dims) if factory is None else _built(text, *factory, dims)


def _built(given: str, module: str, function: str, dims: Mapping[str, int]) -> Model:
    """The model that a factory builds, by the adapter of its framework, which is imported only here."""
    try:
        adapter = importlib.import_module(_ADAPTER)
    except ModuleNotFoundError as problem:
        summary = f"'{given}' is a function that builds a torch module, and there is no {problem.name} here"
        raise ShardplanError(error("missing-package", summary, hint="pip install 'shardplan[torch]'")) from None
    made: Model = adapter.read_factory(module, function, dims)
    return replace(made, name=str(title_of_factory(given)))


def load_model_of(plan: Plan, file: str, path: str) -> Model:
    """The model at `path` with the sizes that `plan`, read from `file`, was made for.

    Raises `ShardplanError`; if the model needs other sizes, it is another model (`stale-plan`).
    """
    try:
        return load_model(path, dims_of(plan))
    except ShardplanError as problem:
        first = problem.diagnostics[0]
        if first.code not in ("unbound-dim", "unknown-dim", "unbound-trip"):
            raise
        summary = f"the plan was made for another model than '{path}'"
        raise ShardplanError(
            error("stale-plan", summary, detail=first.summary, hint="solve again", file=file)
        ) from None


def _model(request: Request) -> Model:
    assert isinstance(request.dims, Mapping)
    assert isinstance(request.trips, Mapping)
    assert isinstance(request.pads, Mapping)
    sizes = {**request.dims, **{TRIP + name: number for name, number in request.trips.items()}}
    if isinstance(request.model, str | Path):
        return load_model(request.model, {**sizes, **{PAD + name: size for name, size in request.pads.items()}})
    if sizes:
        summary = f"the model is read already: '{next(iter(sizes))}' can no longer be bound"
        raise ShardplanError(error("bad-argument", summary, hint="give sizes to shardplan.model.read.read_model"))
    return _held_as(request.model, request.pads)


def _cluster(request: Request) -> Cluster:
    mesh = request.devices if request.is_auto else request.mesh
    if isinstance(request.cluster, Cluster):
        cluster = consistent(request.cluster)
        if mesh is None:
            return cluster
        laid = make_cluster(profile_from_resolved(cluster.resolved), mesh)
        return replace(laid, training=cluster.training, spread=cluster.spread)
    return make_cluster(load_profile(str(request.cluster)), mesh)


def _staging(request: Request) -> Staging | None:
    """The requested pipeline; None for one mesh. Raises `ShardplanError` (`bad-stages`, `bad-schedule`)."""
    schedule = parse_schedule(request.schedule)
    found = [(stages, place) for stages, place in map(_stages_given, *_placed(request.constraints)) if stages]
    asked = request.stages
    if request.target and (found or asked is not None):
        summary = f"{request.target} cannot express a pipeline: its plans are of one mesh"
        raise ShardplanError(error("bad-stages", summary, file=found[0][1] if found else None, hint=_NO_STAGES))
    if not found and asked is not None:
        return Staging(_stages_asked(asked), schedule)
    if not found:
        if request.schedule != FIELDS["schedule"].default:
            summary = f"schedule {request.schedule} is of a pipeline, and no stages are asked for"
            raise ShardplanError(error("bad-schedule", summary, hint="add --stages auto, or a number of stages"))
        return None
    (by_hand, place), *others = found
    if request.is_auto:
        summary = "--mesh auto cannot be combined with stages fixed by hand, which name their meshes"
        raise ShardplanError(error("bad-stages", summary, file=place, hint="leave out --mesh auto"))
    clash = "uneven shards go with one mesh, and not with stages" if request.uneven else ""
    clash = clash or ("" if asked is None else "stages are asked for and fixed here: only one can say where to cut")
    clash = clash or (f"stages are fixed here, and in {others[0][1]} too" if others else "")
    if clash:
        raise ShardplanError(error("bad-stages", clash, file=place))
    return Staging(by_hand, schedule)


_NO_STAGES: Final = (
    "leave out one of --for and --stages; stages of a free plan are exported one by one (export --stage N), and "
    "price --pp N has the pipelines of Megatron and MaxText"
)


def _start(request: Request, staging: Staging | None) -> StartPlan | None:
    """The plan that the search starts from. Its numbers do not count, its decisions have to be legal. Raises
    `ShardplanError` (`invalid-plan`, `bad-argument`, or as `read_plan`)."""
    if request.start is None:
        return None
    is_file = isinstance(request.start, str | Path)
    file = str(request.start) if is_file else "start"
    plan = read_plan(file) if is_file else request.start
    assert isinstance(plan, Plan)
    if faults := list(illegal(plan)):
        raise ShardplanError(error("invalid-plan", faults[0], detail="\n".join(faults[1:_SHOWN]), file=file))
    if staging is not None:
        summary = f"{option_of('start')} goes with one mesh, and stages are fixed here"
        raise ShardplanError(error("bad-argument", summary, file=file))
    return StartPlan(plan, file)


def _stages_asked(asked: int | str | Path | Plan | ManualStages) -> int | ManualStages | None:
    """A number of stages, those of a plan, or None where the number is to be chosen."""
    if isinstance(asked, Plan):
        return stages_of(asked, "stages")
    if isinstance(asked, str | Path):
        return None if asked == AUTO else stages_of(read_plan(asked), str(asked))
    return asked


def _placed(constraints: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """Sources of constraints, each with its name for messages."""
    sources = list(constraints)
    return sources, [
        str(source) if isinstance(source, str | Path) else f"constraints[{number}]"
        for number, source in enumerate(sources)
    ]


def _stages_given(source: Any, place: str) -> tuple[ManualStages | None, str]:
    if isinstance(source, Mapping):
        return stages_in(_yaml(source, place), place), place
    if not isinstance(source, str | Path) or is_plan(_section(str(source))[0]):
        return None, place
    return read_stages([str(source)]), place


def _yaml(source: Mapping[str, object], place: str) -> str:
    try:
        return yaml.safe_dump(dict(source), sort_keys=False)
    except yaml.YAMLError as problem:
        summary = f"{place} holds what YAML cannot express: {problem.args[-1]!r}"
        hint = "names, numbers, lists and mappings of these"
        raise ShardplanError(error("bad-argument", summary, hint=hint)) from None


def read_all_constraints(sources: Iterable[Any], pins: Iterable[str] = ()) -> tuple[Constraint, ...]:
    """The constraints of all sources, then the pins. Raises `ShardplanError` with all that is wrong with them."""
    attempt = Attempts()
    found: list[Constraint] = []
    for source, place in zip(*_placed(sources), strict=True):
        found += attempt(lambda source=source, place=place: _constraints(source, place)) or ()  # type: ignore[misc]
    for pin in pins:
        one = attempt(lambda pin=pin: parse_pin(pin))  # type: ignore[misc]
        found += [one] if one else []
    attempt.finish()
    return tuple(found)


def _constraints(source: Any, place: str) -> tuple[Constraint, ...]:
    if isinstance(source, Constraint):
        return (source,)
    if isinstance(source, Plan):
        return _kept_in(source, place, SECTIONS[:2])
    if isinstance(source, Mapping):
        return parse_constraints(_yaml(source, place), place)
    if not isinstance(source, str | Path):
        summary = f"{place} is {source!r}; a file, a mapping or a plan is expected"
        raise ShardplanError(error("bad-argument", summary))
    file = str(source)
    path, section = _section(file)
    if _is_plan_and_more(file):
        _no_such_section(file)
    if not is_plan(path):
        return read_constraints(file)
    return _kept_in(read_plan(path), file, [name for name in SECTIONS if name == section] or SECTIONS[:2])


def _kept_in(plan: Plan, place: str, sections: Collection[Kept]) -> tuple[Constraint, ...]:
    if plan.pipeline is not None:
        summary = f"this plan is a pipeline of {len(plan.pipeline.stages)} stages, not constraints of one mesh"
        hint = "give it as stages: --stages PLAN.json cuts the model as it is cut there"
        raise ShardplanError(error("pipeline-plan", summary, file=place, hint=hint))
    return constraints_of(plan, place, tuple(sections))


def is_plan(file: str) -> bool:
    """Whether a file begins as plans do; an unreadable one is judged by its name."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return file.endswith(".json")
    return head.lstrip().startswith("{") and '"format_version"' in head


def _section(file: str) -> tuple[str, str]:
    """`a.plan.json:parameters` -> the file and the section; no section for other names."""
    path, colon, section = file.rpartition(":")
    return (path, section) if colon and section in SECTIONS else (file, "")


def _is_plan_and_more(file: str) -> bool:
    """Whether it is the name of a plan followed by something that is not one of its sections."""
    path, colon, _ = _section(file)[0].rpartition(":")
    return bool(colon) and not is_there(file) and is_file(path) and is_plan(path)


def _no_such_section(file: str) -> NoReturn:
    path, _, section = file.rpartition(":")
    summary = f"constraints come from the {', '.join(SECTIONS)} of a plan; it has no '{section}'"
    raise ShardplanError(error("unknown-section", summary, hint=did_you_mean(section, SECTIONS), file=path))
