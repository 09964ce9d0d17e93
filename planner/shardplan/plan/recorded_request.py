"""The request of a plan, read back from it: its cluster, its options, and the dim sizes of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from shardplan.cluster.mesh import cluster_from_resolved
from shardplan.cluster.types import Cluster
from shardplan.constraints.parse import parse_recorded
from shardplan.constraints.types import Constraint
from shardplan.cost.named import OURS, parse_cost_model
from shardplan.cost.recipes import RECIPES
from shardplan.errors import ShardplanError, error
from shardplan.graph.options import Mode, PlanOptions, Remat
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model
from shardplan.plan.types import Plan


def cluster_of(plan: Plan, file: str) -> Cluster:
    """The cluster that `plan` was made for. Raises `ShardplanError` (`damaged-plan`) if parts of it are missing."""
    profile = plan.cluster.get("profile")
    try:
        return cluster_from_resolved(dict(cast(Mapping[str, object], profile)))
    except (TypeError, KeyError, ValueError, AttributeError, ShardplanError):
        summary = "cluster: the profile in this plan is not complete"
        raise ShardplanError(error("damaged-plan", summary, file=file, hint="solve again")) from None


def options_of(plan: Plan, file: str) -> PlanOptions:
    """The options that `plan` was made with. Raises `ShardplanError` as `cluster_of`."""
    asked = plan.model
    known = {"mode": get_args(Mode), "remat": get_args(Remat), "optimizer": ("none", *RECIPES)}
    for key, words in known.items():
        if asked.get(key, words[0]) not in words:
            summary = f"model: {key} is '{asked.get(key)}', which this shardplan does not know"
            raise ShardplanError(error("damaged-plan", summary, file=file, hint="solve again"))
    given: dict[str, Any] = {key: asked[key] for key in known if key in asked}
    if given.get("mode") != "training":
        given.pop("optimizer", None)
    return PlanOptions(
        **given,
        microbatches=int(cast(int, asked.get("microbatches", 1))),
        memory_limit_bytes=plan.summary.memory_limit_bytes,
        constraints=_constraints(asked, file),
        kv_cache_tokens=int(cast(int, asked.get("kv_cache_tokens", 0))),
        shard_optimizer=bool(asked.get("shard_optimizer", False)),
        equal_layers=bool(asked.get("equal_layers", False)),
        target=str(asked.get("target", "")),
        cost_model=parse_cost_model(str(asked.get("cost_model", OURS))),
    )


def dims_of(plan: Plan) -> dict[str, int]:
    """The sizes that symbolic dims of the model had."""
    dims = plan.model.get("dims")
    return {str(name): int(size) for name, size in dims.items()} if isinstance(dims, Mapping) else {}


def is_of(plan: Plan, model: Model) -> bool:
    """Whether `plan` was made for a model of this structure."""
    return plan.model.get("digest") == structure_digest(model)


def require_model(plan: Plan, model: Model, file: str | None = None) -> None:
    """Raises `ShardplanError` (`stale-plan`) unless `plan`, read from `file`, was made for `model`."""
    if not is_of(plan, model):
        raise ShardplanError(error("stale-plan", "the plan was made for another model", file=file, hint="solve again"))


def _constraints(asked: Mapping[str, object], file: str) -> tuple[Constraint, ...]:
    texts, names = asked.get("constraints"), asked.get("mesh_axis_names")
    aliases = tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()
    written = [str(text) for text in texts] if isinstance(texts, list | tuple) else []
    return tuple(parse_recorded(text, file, aliases) for text in written)
