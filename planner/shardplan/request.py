"""The request for a plan: one frozen, validated value that the command line, Python and every study share.

Each field is declared once, with its option on the command line, its check, its help and its default. The checks here
need no file: names, numbers, combinations. `shardplan.study.instance` reads the inputs of a valid request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardplan.checks import (
    Cache,
    Check,
    Flag,
    Number,
    OneOf,
    PlanFile,
    Several,
    Size,
    Sizes,
    StageCount,
    Text,
    Whole,
)
from shardplan.errors import Diagnostic, ShardplanError, error

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.model.types import Model
    from shardplan.pipeline.manual.stages import ManualStages
    from shardplan.plan.types import Plan

AUTO = "auto"
MODES = ("training", "inference")
OPTIMIZERS = ("adam-mixed", "adam-fp32", "sgd", "none")
EFFORTS = ("quick", "thorough", "exhaustive")
REMATS = ("none", "selective", "alternate", "full", "auto")
TARGETS = (
    "",
    "tp-plan",
    "tp-plan-portable",
    "deepspeed",
    "torchtitan",
    "fsdp2",
    "megatron",
    "maxtext",
    "jax",
    "shardy",
)
"""Formats of `shardplan export` that a plan can be made for; the empty word: none."""
TARGET_ALIASES = {"transformers": "tp-plan"}
"""Other names of these formats."""


@dataclass(frozen=True, slots=True)
class Term:
    """The declaration of a field: its `flags` on the command line, the `check` of its value, and its help there."""

    check: Check
    flags: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    offers: Literal["", "profiles"] = ""
    """What a shell completes besides the words of the check."""

    @property
    def option(self) -> str:
        """The option as messages name it: `--memory-limit`."""
        return max(self.flags, key=len).partition("/")[0] if self.flags else ""


def _term(check: Check, *flags: str, say: str = "", metavar: str | None = None, offers: Any = "") -> dict[str, Term]:
    """The metadata of a field of `Request`."""
    return {"term": Term(check, flags, say, metavar, offers)}


@dataclass(frozen=True, slots=True)
class Request:
    """The request for a plan. Raises `ShardplanError` with everything that is wrong with the values given.

    `model`: an ONNX file, a description such as `transformer:llama3-8b,batch=16`, or a model already read. `mesh`:
    sizes, outermost axis first (`4x4`), or names (`machine=4,gpu=4`), or `auto`: the best logical mesh over `devices`;
    None for the profile's own. `cluster`: a shipped profile, a YAML file, or a cluster object. `dims`: sizes of
    symbolic dims; `trips`: trip counts of loops; `pads`: padded sizes of dims such as `input_ids[0]`. `memory_limit`:
    bytes per device, or text such as `"40 GiB"`. `stages`: a pipeline of so many stages, `auto`, or cut as in a plan
    (or its file); `schedule` goes with it. `constraints`: YAML files, the same as mappings, or plans whose inputs and
    weights keep their layouts; `pins`: single constraints. `gap`: where memory binds, the relative gap at which a plan
    is good enough. `time_limit`: seconds. `start`: a plan, or its file, from which the search starts. `target`: the
    format of `shardplan export` that has to express the plan. `effort`: how much work a search may take: seconds, up to
    half a minute, or without limit.
    """

    model: str | Path | Model = field(metadata=_term(Text("model")))
    mesh: str | None = field(
        default=None,
        metadata=_term(
            Text("text"),
            "-m",
            "--mesh",
            metavar="SIZES",
            say="4x4 or machine=4,gpu=4, outermost first.  [default: the profile's]",
        ),
    )
    _: KW_ONLY
    cluster: str | Path | Cluster = field(
        default="h100-dgx",
        metadata=_term(
            Text("cluster"),
            "-c",
            "--cluster",
            metavar="NAME|FILE",
            offers="profiles",
            say="A shipped profile or a YAML file.",
        ),
    )
    mode: Literal["training", "inference"] = field(
        default="training", metadata=_term(OneOf(MODES), "--mode", say="What one step is.")
    )
    dims: Mapping[str, int] | Sequence[str] = field(
        default=(),
        metadata=_term(
            Sizes("size", "batch=8"),
            "-d",
            "--dim",
            metavar="NAME=N",
            say="Size of a symbolic dim of the model; may be repeated.",
        ),
    )
    trips: Mapping[str, int] | Sequence[str] = field(
        default=(),
        metadata=_term(
            Sizes("number", "decode=8"),
            "--trip",
            metavar="NAME=N",
            say="Trip count of a loop of the model; may be repeated.",
        ),
    )
    pads: Mapping[str, int] | Sequence[str] = field(
        default=(),
        metadata=_term(
            Sizes("size", "'input_ids[0]=16'"),
            "--pad",
            metavar="'TENSOR[DIM]=N'",
            say="Hold a dim, and all that are the same size, as if it were N, so that axes divide it; may be repeated.",
        ),
    )
    uneven: bool = field(
        default=False,
        metadata=_term(
            Flag(),
            "--uneven/--even",
            say="Sizes that axes do not divide may be cut into shards of unequal size, the last ones padded.",
        ),
    )
    optimizer: str = field(
        default="adam-mixed", metadata=_term(OneOf(OPTIMIZERS), "--optimizer", say="Optimizer state to budget for.")
    )
    shard_optimizer: bool = field(
        default=False,
        metadata=_term(
            Flag(),
            "--shard-optimizer",
            say="Optimizer state may be sharded apart from its weight (ZeRO-1, Megatron's distributed optimizer).",
        ),
    )
    equal_layers: bool = field(
        default=False,
        metadata=_term(
            Flag(),
            "--equal-layers",
            say="Repeated layers take the same layouts, as a scan over stacked layers needs.",
        ),
    )
    target: str = field(
        default="",
        metadata=_term(
            OneOf(TARGETS, TARGET_ALIASES),
            "--for",
            metavar="FORMAT",
            say="Only plans that a runtime can express: a format of `shardplan export`, such as tp-plan or torchtitan.",
        ),
    )
    microbatches: int = field(
        default=1, metadata=_term(Whole(1), "--microbatches", metavar="N", say="Equal parts in which the batch runs.")
    )
    remat: Literal["none", "selective", "alternate", "full", "auto"] = field(
        default="none",
        metadata=_term(
            OneOf(REMATS),
            "--remat",
            say="Activations to recompute in backward instead of keeping them; auto chooses with the layouts.",
        ),
    )
    kv_cache_tokens: int = field(
        default=0,
        metadata=_term(
            Cache(),
            "--kv-cache",
            metavar="tokens=N",
            say="In inference, keep room for the keys and values of so many tokens, all sequences together.",
        ),
    )
    memory_limit: int | str | None = field(
        default=None,
        metadata=_term(
            Size(),
            "--memory-limit",
            metavar="SIZE",
            say="What a device may use, such as '40 GiB'.  [default: the profile's]",
        ),
    )
    devices: str | None = field(
        default=None,
        metadata=_term(
            Text("text"),
            "--devices",
            metavar="SIZES",
            say="With --mesh auto: the devices to lay a mesh over, such as 4x8.  [default: the profile's]",
        ),
    )
    stages: int | str | Path | Plan | ManualStages | None = field(
        default=None,
        metadata=_term(
            StageCount(),
            "--stages",
            metavar="auto|N|PLAN",
            say="Cut the model into a pipeline: of N stages, of as many as are best, or as a plan (.json) is cut.",
        ),
    )
    schedule: str = field(
        default="1f1b",
        metadata=_term(
            Text("word"), "--schedule", metavar="NAME", say="Schedule of the pipeline: 1f1b, gpipe or interleaved:V."
        ),
    )
    constraints: Sequence[Any] = field(
        default=(),
        metadata=_term(
            Several(),
            "--constraints",
            metavar="FILE",
            say="What is fixed by hand, in YAML; or a plan, whose inputs and weights stay where they are "
            "(PLAN:parameters for its weights alone). May be repeated.",
        ),
    )
    pins: Sequence[str] = field(
        default=(),
        metadata=_term(
            Several(texts=True),
            "--pin",
            metavar="'PATTERN=SPEC'",
            say="One constraint, such as '*.up.weight=[null, gpu]' or 'embed.weight=replicate'; may be repeated.",
        ),
    )
    cost_model: str = field(
        default="shardplan",
        metadata=_term(
            Text("word"),
            "--cost-model",
            metavar="NAME[:SETTINGS]",
            say="Whose prices: shardplan, alpa, slapo, hidet or trtllm; such as alpa:beta=1x0.01.",
        ),
    )
    time_limit: float | None = field(
        default=None,
        metadata=_term(
            Number(0.0, what="a number of seconds", least_allowed=False, optional=True),
            "--time-limit",
            metavar="SECONDS",
            say="Stop after so long, with the best plan so far.",
        ),
    )
    effort: Literal["quick", "thorough", "exhaustive"] = field(
        default="thorough",
        metadata=_term(
            OneOf(EFFORTS), "--effort", say="How long to search: exhaustive ends when there is nothing more to try."
        ),
    )
    gap: float = field(
        default=0.005,
        metadata=_term(
            Number(0.0, 1.0),
            "--gap",
            metavar="SHARE",
            say="Where memory binds, the optimality gap at which the search ends.",
        ),
    )
    start: str | Path | Plan | None = field(
        default=None,
        metadata=_term(
            PlanFile(),
            "--start",
            metavar="PLAN",
            say="A plan that the search starts from: the result is no slower than its decisions are here.",
        ),
    )
    seed: int = field(
        default=0,
        metadata=_term(Whole(0), "--seed", metavar="N", say="Seed of the search, for models too large to prove."),
    )
    presolve: bool = field(
        default=True,
        metadata=_term(Flag(), "--presolve/--no-presolve", say="Exact reductions before the integer program."),
    )
    strict: bool = field(
        default=False, metadata=_term(Flag(), "--strict", say="An operator without a sharding rule is an error.")
    )

    def __post_init__(self) -> None:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        values, faults = checked(given)
        if faults:
            raise ShardplanError(*(fault for found in faults.values() for fault in found))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def is_auto(self) -> bool:
        """Whether the mesh is to be chosen."""
        return self.mesh == AUTO


FIELDS: Mapping[str, Field[Any]] = {one.name: one for one in fields(Request)}
"""The fields of `Request` by name."""


def term(name: str) -> Term:
    """The declaration of the field `name`."""
    found: Term = FIELDS[name].metadata["term"]
    return found


def option_of(name: str) -> str:
    """`memory_limit` -> `--memory-limit`: the option of a field."""
    return term(name).option or name


def checked(
    given: Mapping[str, Any], called: Callable[[str], str] = str
) -> tuple[dict[str, Any], dict[str, tuple[Diagnostic, ...]]]:
    """The values of fields in canonical form, and the faults by field; `called`: the name of a field in messages."""
    values: dict[str, Any] = {}
    faults: dict[str, tuple[Diagnostic, ...]] = {}
    for name, value in given.items():
        try:
            values[name] = term(name).check(called(name), value)
        except ShardplanError as problem:
            faults[name] = problem.diagnostics
    for name, summary, hint in _combinations(values, called):
        faults[name] = (error("bad-argument", summary, hint=hint),)
    return values, faults


def _combinations(values: Mapping[str, Any], called: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """Faults in combinations of fields, each under one of the fields, with what helps."""
    mesh, stages, devices, uneven = called("mesh"), called("stages"), called("devices"), called("uneven")
    auto = values.get("mesh") == AUTO
    found = []
    if auto and values.get("stages") is not None:
        summary = f"{mesh} auto and {stages}: stages choose their meshes among the parts of one {mesh}"
        found.append(("stages", summary, ""))
    if values.get("start") is not None and values.get("stages") is not None:
        summary = f"{called('start')} goes with one mesh, and not with {stages}"
        found.append(("start", summary, f"{stages} PLAN.json cuts the model as that plan is cut"))
    if values.get("uneven"):
        others = {
            "mesh": (auto, f"choose the mesh without {uneven}, then plan for it with {uneven}"),
            "stages": (values.get("stages") is not None, ""),
            "target": (
                values.get("target"),
                f"a runtime reads weights of the model's own sizes: pad them in the model, or leave out {uneven}",
            ),
        }
        found += [
            ("uneven", f"{uneven} goes with one mesh, and not with {called(name)} {values[name]}", hint)
            for name, (is_given, hint) in others.items()
            if is_given
        ]
    if not auto and values.get("devices") is not None:
        summary = f"{devices} goes with {mesh} auto; otherwise {mesh} says which devices there are"
        found.append(("devices", summary, ""))
    if values.get("mode") == "inference":
        found += [
            (name, f"{called(name)} is of training, and {called('mode')} is inference, which has no {lacks}", "")
            for name, lacks in (("optimizer", "optimizer"), ("shard_optimizer", "optimizer"), ("remat", "backward"))
            if values.get(name, FIELDS[name].default) not in (FIELDS[name].default, "none")
        ]
    return found


def request_of(
    given: Mapping[str, Any], called: Callable[[str], str] = str
) -> tuple[Request, dict[str, tuple[Diagnostic, ...]]]:
    """The request of these values, with defaults in place of wrong ones, and the faults of the wrong ones.

    This lets the caller report the faults of the other inputs at the same time. Raises `ShardplanError` without a
    model.
    """
    values, faults = checked(given, called)
    if "model" in faults:
        raise ShardplanError(*(fault for found in faults.values() for fault in found))
    return Request(**{name: value for name, value in values.items() if name not in faults}), faults
