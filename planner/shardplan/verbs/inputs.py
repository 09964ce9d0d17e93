"""Command-line words that several verbs read: `--dim NAME=N`, sizes, profiles; with all faults collected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.verbs.session import Verb, option

if TYPE_CHECKING:
    from shardplan.constraints.types import Constraint
    from shardplan.cost.named import CostModel
    from shardplan.model.types import Model
    from shardplan.plan.types import Plan

T = TypeVar("T")
_DESCRIBED = "transformer:"
_HEAD = 4096
_PLAN_SECTIONS = ("inputs", "parameters", "outputs")

_TRIP = "trip:"
_dim = option(
    "-d", "--dim", "dims", metavar="NAME=N", multiple=True, help="Size of a symbolic dim of the model; may be repeated."
)
_trip = option(
    "--trip", "trips", metavar="NAME=N", multiple=True, help="How often a loop of the model turns; may be repeated."
)
_constraint_file = option(
    "--constraints",
    "constraint_files",
    metavar="FILE",
    multiple=True,
    help="What is fixed by hand, in YAML; or a plan, whose inputs and weights stay where they are (PLAN:parameters for "
    "its weights alone). May be repeated.",
)
_pin = option(
    "--pin",
    "pins",
    metavar="'PATTERN=SPEC'",
    multiple=True,
    help="One constraint, such as '*.up.weight=[null, gpu]' or 'embed.weight=replicate'; may be repeated.",
)
cost_model_option = option(
    "--cost-model",
    metavar="NAME[:SETTINGS]",
    default="shardplan",
    show_default=True,
    help="Whose prices: shardplan, alpa, slapo, hidet or trtllm; such as alpa:beta=1x0.01.",
)
model_argument = click.argument("model", type=click.Path(path_type=str))


def dim_option(function: Verb) -> Verb:
    """Add `--dim` and `--trip`, together as `dims`: a loop is a size of the model called `trip:NAME`."""

    @functools.wraps(function)
    def with_trips(*args: Any, dims: tuple[str, ...], trips: tuple[str, ...], **given: Any) -> Any:
        return function(*args, dims=(*dims, *(_TRIP + trip for trip in trips)), **given)

    return cast("Verb", _dim(_trip(with_trips)))


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, for a shell to offer."""
    from shardplan.cluster.profile import list_profiles

    return list_profiles()


def constraint_options(function: Verb) -> Verb:
    """Add `--constraints` and `--pin`, as `constraint_files` and `pins`."""
    return _constraint_file(_pin(function))


def read_all_constraints(files: Iterable[str], pins: Iterable[str]) -> tuple[Constraint, ...]:
    """The constraints of all files, then the pins; everything that is wrong with any of them is raised together."""
    if not (files or pins):
        return ()
    from shardplan.constraints.parse import parse_pin, read_constraints

    attempt = Attempts()
    found: list[Constraint] = []
    for file in files:
        read = _constraints_of_plan if is_plan(_sections(file)[0]) else read_constraints
        read = _no_such_section if _is_plan_and_more(file) else read
        found += attempt(functools.partial(read, file)) or ()
    for pin in pins:
        one = attempt(functools.partial(parse_pin, pin))
        found += [one] if one else []
    attempt.finish()
    return tuple(found)


def is_plan(file: str) -> bool:
    """Whether a file begins as plans do; one that cannot be read is judged by its name."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return file.endswith(".json")
    return head.lstrip().startswith("{") and '"format_version"' in head


def _sections(file: str) -> tuple[str, str]:
    """`a.plan.json:parameters` -> the file and the section; no section for other names."""
    path, colon, section = file.rpartition(":")
    return (path, section) if colon and section in _PLAN_SECTIONS else (file, "")


def _is_plan_and_more(file: str) -> bool:
    """Whether it is the name of a plan, followed by what is none of its sections."""
    path, colon, _ = _sections(file)[0].rpartition(":")
    return bool(colon) and not Path(file).exists() and Path(path).is_file() and is_plan(path)


def _no_such_section(file: str) -> NoReturn:
    path, _, section = file.rpartition(":")
    summary = f"constraints come from the {', '.join(_PLAN_SECTIONS)} of a plan; it has no '{section}'"
    raise ShardplanError(error("unknown-section", summary, hint=did_you_mean(section, _PLAN_SECTIONS), file=path))


def _constraints_of_plan(file: str) -> tuple[Constraint, ...]:
    from shardplan.plan.file import read_plan
    from shardplan.study.reuse import SECTIONS, constraints_of

    path, section = _sections(file)
    chosen = [name for name in SECTIONS if name == section] or SECTIONS[:2]
    return constraints_of(read_plan(path), file, chosen)


def read_cost_model(text: str) -> CostModel:
    """The cost model of `--cost-model`. Raises `ShardplanError`."""
    from shardplan.cost.named import parse_cost_model

    return parse_cost_model(text)


def load_model_of(plan: Plan, file: str, path: str) -> Model:
    """The model at `path` with the sizes that `plan`, read from `file`, was made for.

    Raises `ShardplanError`; where these sizes are not those that the model needs, it is another one (`stale-plan`).
    """
    from shardplan.plan.recorded import dims_of

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


class Attempts:
    """Runs the readings of several inputs and keeps what is wrong with each, to be raised together."""

    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []

    def __call__(self, read: Callable[[], T]) -> T | None:
        """What `read` returns, or None when it raises a `ShardplanError`, which is kept."""
        try:
            return read()
        except ShardplanError as problem:
            self.problems += problem.diagnostics
            return None

    def finish(self) -> None:
        """Raise everything that went wrong, if anything did."""
        if self.problems:
            raise ShardplanError(*self.problems)


def parse_dims(texts: Iterable[str]) -> dict[str, int]:
    """`["batch=8"]` -> `{"batch": 8}`. A name may be an expression (`s43*s53=4096`)."""
    dims: dict[str, int] = {}
    problems = []
    for text in texts:
        name, equals, number = (part.strip() for part in text.rpartition("="))
        if not (equals and name and number.isascii() and number.isdigit() and int(number) > 0):
            problems.append(_unreadable(text))
        elif dims.setdefault(name, int(number)) != int(number):
            given, what = _said(name)
            problems.append(error("bad-dim", f"{given} two {what}s, {dims[name]} and {number}"))
    if problems:
        raise ShardplanError(*problems)
    return dims


def _unreadable(text: str) -> Diagnostic:
    if text.startswith(_TRIP):
        hint = "write the name of a loop and a positive number, such as --trip decode=8"
        return error("bad-trip", f"--trip '{text.removeprefix(_TRIP)}' is not NAME=N", hint=hint)
    hint = "write a name and a positive size, such as --dim batch=8"
    return error("bad-dim", f"--dim '{text}' is not NAME=N", hint=hint)


def _said(name: str) -> tuple[str, str]:
    """How a message begins about a name that was given twice, and what was given."""
    if name.startswith(_TRIP):
        return f"--trip gives '{name.removeprefix(_TRIP)}'", "number"
    return f"--dim gives '{name}'", "size"


def parse_cache(text: str | None) -> int:
    """Tokens of `tokens=8192`; 0 for None."""
    name, equals, number = (part.strip() for part in (text or "tokens=0").partition("="))
    if name == "tokens" and equals and number.isascii() and number.isdigit() and (text is None or int(number)):
        return int(number)
    hint = "write how many tokens of all sequences together, such as --kv-cache tokens=65536"
    raise ShardplanError(error("bad-cache", f"--kv-cache '{text}' cannot be read", hint=hint))


def parse_memory_limit(text: str | None) -> int | None:
    """Bytes of `40 GiB`, `40GB` or a plain number of bytes; None for None."""
    if text is None:
        return None
    from shardplan.cluster.quantity import SIZE, parse_quantity

    try:
        limit = int(parse_quantity(text, SIZE))
    except ValueError as problem:
        raise ShardplanError(error("bad-quantity", f"--memory-limit: {problem}")) from None
    if limit <= 0:
        raise ShardplanError(error("bad-quantity", f"--memory-limit '{text}' leaves no memory"))
    return limit


def load_model(given: str, dims: Mapping[str, int]) -> Model:
    """The model of an ONNX file, or of a description such as `transformer:llama3-70b`."""
    from shardplan import api

    return api.load_model(given, dims)


def name_of_model(given: str) -> str:
    """A name for files about the model: `resnet50` for `models/resnet50.onnx`, `llama3-70b` for its description."""
    if given.startswith(_DESCRIBED):
        from shardplan.models import title_of

        return title_of(given)
    return Path(given).stem
