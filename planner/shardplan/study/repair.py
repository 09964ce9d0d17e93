"""The command that makes a plan anew, with all that it was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.constraints.types import SECTIONS
from shardplan.errors import ShardplanError
from shardplan.model.size_names import PAD, TRIP
from shardplan.models import title_of_model
from shardplan.models.named import PREFIX
from shardplan.plan.recorded_request import cluster_of
from shardplan.plan.types import Plan
from shardplan.request import FIELDS, option_of
from shardplan.study.sources import found_path, source, sources
from shardplan.text_files import file_argument

_ASKED = (
    "mode", "optimizer", "shard_optimizer", "equal_layers", "target", "remat", "microbatches", "schedule", "cost_model",
)  # fmt: skip
"""Fields of a request that are keys of a plan's model too."""
_FLAGS: Final = {TRIP: "--trip", PAD: "--pad"}


@dataclass(frozen=True, slots=True)
class Repair:
    """`command`: what to run, or `""` where the plan does not say all that it was asked for; then `missing` is what it
    does not say. `caution`: what to think of before."""

    command: str = ""
    missing: str = ""
    caution: str = ""

    @property
    def text(self) -> str:
        """What to do, for a person."""
        if self.missing:
            return f"solve again; the plan does not say {self.missing}"
        return f"{self.caution}, {self.command}" if self.caution else self.command


NO_REPAIR: Final = Repair()
OTHER_SIZES: Final = "the sizes of the dims that the model has now"


def repair_of(plan: Plan, file: str, model: str | None = None, cluster: str | None = None) -> Repair:
    """The command that makes the plan in `file` anew. `model`, `cluster`: in place of those that it records."""
    caution = ""
    if model is not None and title_of_model(model) != plan.model.get("name"):
        caution = "give its own model with --model; if this one has taken its place"
    try:
        words = ["shardplan", "solve", model or _model(plan, file)]
        words += ["--mesh", plan.mesh.argument]
        words += ["--cluster", cluster or _cluster(plan, file)]
        words += [*_asked(plan), *_sizes(plan), *_memory(plan, file), *_fixed(plan, file), *_stages(plan, file)]
    except _NotSaidError as missing:
        return Repair(missing=str(missing))
    return Repair(shlex.join([*words, "--output", file_argument(file)]), caution=caution)


class _NotSaidError(Exception):
    """Something that was asked for is nowhere to be found."""


def _model(plan: Plan, file: str) -> str:
    recorded = source(plan, "model")
    if recorded.startswith(PREFIX):
        return recorded
    return _found(recorded, file, "where its model is")


def _cluster(plan: Plan, file: str) -> str:
    recorded = source(plan, "cluster") or str(plan.cluster.get("name"))
    if "/" not in recorded and not recorded.endswith((".yaml", ".yml")):
        return recorded
    return _found(recorded, file, "where its cluster profile is")


def _found(recorded: str, file: str, what: str) -> str:
    path = found_path(recorded, file)
    if path is None:
        raise _NotSaidError(what)
    return file_argument(path)


def _asked(plan: Plan) -> Iterator[str]:
    for key in _ASKED:
        default = FIELDS[key].default
        value = plan.model.get(key, default)
        if value != default and (key, value) != ("optimizer", "none"):
            yield option_of(key)
            if value is not True:
                yield str(value)
    if tokens := plan.model.get("kv_cache_tokens"):
        yield from ("--kv-cache", f"tokens={tokens}")


def _sizes(plan: Plan) -> Iterator[str]:
    dims = plan.model.get("dims")
    for name, size in sorted(dims.items()) if isinstance(dims, Mapping) else ():
        prefix = next((prefix for prefix in _FLAGS if str(name).startswith(prefix)), "")
        yield from (_FLAGS.get(prefix, "--dim"), f"{str(name).removeprefix(prefix)}={size}")


def _memory(plan: Plan, file: str) -> Iterator[str]:
    limit = plan.summary.memory_limit_bytes
    try:
        usable = cluster_of(plan, file).device.usable_bytes
    except ShardplanError:
        return
    if limit != usable:
        yield from ("--memory-limit", f"{limit}B")


def _fixed(plan: Plan, file: str) -> Iterator[str]:
    """The options that fix what the plan's constraints do: those that were given, or pins that say the same."""
    files, pins = sources(plan, "constraints"), sources(plan, "pins")
    if files or pins:
        for recorded in files:
            path, colon, section = recorded.rpartition(":")
            kept = bool(colon) and found_path(recorded, file) is None
            place = _found(path if kept else recorded, file, f"where its constraints '{recorded}' are")
            yield from ("--constraints", f"{place}:{section}" if kept else place)
        for pin in pins:
            yield from ("--pin", pin)
        return
    texts = plan.model.get("constraints")
    for text in texts if isinstance(texts, list | tuple) else ():
        section, _, rest = str(text).partition(": ")
        if section in SECTIONS and (section not in ("parameters", "tensors", "operators") or "cost:" in rest):
            raise _NotSaidError("which file its constraints are from")
        pattern, _, spec = (rest if section in SECTIONS else str(text)).partition(": ")
        yield from ("--pin", f"{pattern}={spec}")


def _stages(plan: Plan, file: str) -> Iterator[str]:
    asked = plan.model.get("stages")
    if asked == "manual":
        if recorded := source(plan, "stages"):
            yield from ("--stages", _found(recorded, file, f"where the plan '{recorded}' is"))
        elif not sources(plan, "constraints"):
            raise _NotSaidError("which file its stages are from")
    elif asked is not None:
        yield from ("--stages", str(asked))
