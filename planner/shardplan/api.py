"""`shardplan.make_plan` and `shardplan.save`: from a model to a plan in one call, for programs and notebooks.

The command line reads the same inputs; what is asked has the same names and defaults on both sides.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.plan.file import write_plan
from shardplan.plan.types import Plan

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.constraints.types import Constraint
    from shardplan.graph.options import Mode, PlanOptions, Remat
    from shardplan.model.types import Model

DESCRIBED = "transformer:"
Given = str | Path | Mapping[str, object] | Plan
T = TypeVar("T")


def make_plan(
    model: str | Path | Model,
    mesh: str | None = None,
    *,
    cluster: str | Path = "h100-dgx",
    mode: Mode = "training",
    dims: Mapping[str, int] | None = None,
    optimizer: str = "adam-mixed",
    shard_optimizer: bool = False,
    microbatches: int = 1,
    remat: Remat = "none",
    kv_cache_tokens: int = 0,
    memory_limit: int | str | None = None,
    constraints: Sequence[Given] = (),
    pins: Sequence[str] = (),
    cost_model: str = "shardplan",
    time_limit: float | None = None,
    gap: float = 0.005,
    seed: int = 0,
    strict: bool = False,
) -> Plan:
    """The fastest plan for `model` that fits in memory, as `shardplan solve` finds it; nothing is written.

    >>> plan = shardplan.make_plan("model.onnx", "4x4", dims={"batch": 32}, pins=["*.up.weight=[null, gpu]"])
    >>> shardplan.save(plan, "plans/model.4x4.plan.json")

    `model`: an ONNX file, a description such as `transformer:llama3-8b,batch=16`, or what either was read to.
    `mesh`: sizes, outermost axis first (`4x4`), or names (`machine=4,gpu=4`); the profile's own where it is None.
    `cluster`: name of a shipped profile, or a YAML file. `dims`: sizes of symbolic dims, and how often loops turn as
    `trip:NAME`. `memory_limit`: what a device may use, in bytes or as `"40 GiB"`. `constraints`: YAML files, the same
    as mappings, or plans whose inputs and weights stay where they are; `pins`: single ones. The others are those of
    `shardplan.graph.options.PlanOptions`. What is worth a warning is given as Python's `UserWarning`.

    Raises `shardplan.errors.ShardplanError`, whose `diagnostics` say all that is wrong with what was given;
    `InfeasibleError` when it is proven that no plan fits, `LimitError` when `time_limit` ends the search without one.
    """
    from shardplan.planning import plan_model

    given = {
        "mode": mode, "optimizer": optimizer, "shard_optimizer": shard_optimizer, "microbatches": microbatches,
        "remat": remat, "kv_cache_tokens": kv_cache_tokens, "time_limit": time_limit, "gap": gap, "seed": seed,
        "strict": strict,
    }  # fmt: skip
    read = _Faults()
    known = read(lambda: load_model(model, dims or {}) if isinstance(model, str | Path) else model)
    where = read(lambda: _cluster(cluster, mesh))
    fixed = read(lambda: _constraints(constraints, pins))
    options = read(lambda: _options(memory_limit, cost_model, **given, constraints=fixed or ()))
    if known is None or where is None or options is None or read.found:
        raise ShardplanError(*read.found)
    for diagnostic in (*known.warnings, *where.warnings):
        _warn(diagnostic)
    return plan_model(known, where, options, on_warning=_warn)


def save(plan: Plan, path: str | Path) -> bool:
    """Write `plan` to the file at `path`, with the folders it is in; False where the file says exactly this already.

    Nobody ever reads half a plan: the text takes the file's place when it is whole. Raises `ShardplanError`
    (`unwritable-output`; `output-not-a-plan` rather than replace a file that is none).
    """
    return write_plan(plan, path)


def load_model(given: str | Path, dims: Mapping[str, int]) -> Model:
    """The model of an ONNX file, or of a description such as `transformer:llama3-70b`. Raises `ShardplanError`."""
    if str(given).startswith(DESCRIBED):
        from shardplan.models import described

        return described(str(given), dims)
    from shardplan.model.read import read_model

    return read_model(given, dims)


class _Faults:
    """Runs the readings of several inputs; `found` is what is wrong with any of them."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def __call__(self, reading: Callable[[], T]) -> T | None:
        try:
            return reading()
        except ShardplanError as problem:
            self.found += problem.diagnostics
            return None


def _cluster(profile: str | Path, mesh: str | None) -> Cluster:
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile

    return make_cluster(load_profile(str(profile)), mesh)


def _options(memory_limit: int | str | None, cost_model: str, **asked: Any) -> PlanOptions:
    from shardplan.cluster.quantity import SIZE, parse_quantity
    from shardplan.cost.named import parse_cost_model
    from shardplan.cost.recipes import RECIPES
    from shardplan.graph.options import Mode, PlanOptions, Remat

    _one_of("mode", asked["mode"], get_args(Mode))
    _one_of("remat", asked["remat"], get_args(Remat))
    _one_of("optimizer", asked["optimizer"], tuple(RECIPES))
    if asked["microbatches"] < 1:
        raise ShardplanError(error("bad-argument", f"microbatches is {asked['microbatches']}, and at least 1"))
    if isinstance(memory_limit, str):
        try:
            memory_limit = int(parse_quantity(memory_limit, SIZE))
        except ValueError as problem:
            raise ShardplanError(error("bad-quantity", f"memory_limit: {problem}")) from None
    return PlanOptions(memory_limit_bytes=memory_limit, cost_model=parse_cost_model(cost_model), **asked)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        hint = did_you_mean(str(value), allowed)
        raise ShardplanError(error("bad-argument", f"{name} '{value}' is none of {', '.join(allowed)}", hint=hint))


def _constraints(given: Sequence[Given], pins: Sequence[str]) -> tuple[Constraint, ...]:
    import yaml

    from shardplan.constraints.parse import parse_constraints, parse_pin, read_constraints
    from shardplan.study.reuse import constraints_of

    found: list[Constraint] = []
    for number, one in enumerate(given):
        if isinstance(one, Plan):
            found += constraints_of(one, f"constraints[{number}]")
        elif isinstance(one, Mapping):
            found += parse_constraints(yaml.safe_dump(dict(one), sort_keys=False), f"constraints[{number}]")
        else:
            found += read_constraints(one)
    return (*found, *map(parse_pin, pins))


def _warn(diagnostic: Diagnostic) -> None:
    warnings.warn(str(diagnostic), stacklevel=3)
