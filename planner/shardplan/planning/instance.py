"""Model, cluster and options -> problem instance: rules, resolved constraints, prices; and its cost graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import ResolvedConstraints, resolve
from shardplan.constraints.reuse import adapted
from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.graph.build import CostGraph, build_cost_graph
from shardplan.graph.cache import cache_obstacles
from shardplan.graph.flow import microbatch_obstacles, training_obstacles
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.pricing import Pricing
from shardplan.graph.remat import Recompute
from shardplan.layout.mesh import Mesh
from shardplan.model.types import DTYPE_BITS, Model
from shardplan.plan.assemble import recompute_of
from shardplan.plan.types import Plan
from shardplan.planning.constraint_masks import Without
from shardplan.rules import model_rules
from shardplan.rules.types import Rule

_SHOWN = 8
_FAST_AXES = 3


@dataclass(frozen=True)
class Instance:
    """What is to be planned. `rules[i]`: of operator i. `complete`: all strategies are there, and the cost model of
    another planner brings its prices alone, not what it knows. `decided`: under `remat` `auto`, the plan that says what
    is recomputed."""

    model: Model
    rules: tuple[Rule, ...]
    cluster: Cluster
    options: PlanOptions
    limit_bytes: int
    constraints: ResolvedConstraints
    pricing: Pricing
    complete: bool = False
    decided: Plan | None = None

    @property
    def chooses_remat(self) -> bool:
        """Whether what is recomputed is to be chosen."""
        return self.options.training and self.options.remat == "auto" and self.decided is None

    @property
    def is_quick(self) -> bool:
        """Whether this is one of many plans that are compared."""
        return self.options.effort == "quick"


def instance_of(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_warning: Callable[[Diagnostic], None],
    *,
    complete: bool = False,
    decided: Plan | None = None,
) -> Instance:
    """What is to be planned. Raises `ShardplanError` for a model that cannot be planned as asked."""
    if obstacles := _obstacles(model, options):
        raise ShardplanError(*obstacles)
    rules = tuple(model_rules(model))
    for diagnostic in without_rule(model, rules, strict=options.strict):
        if diagnostic.severity == "error":
            raise ShardplanError(diagnostic)
        model = replace(model, warnings=(*model.warnings, diagnostic))
        on_warning(diagnostic)
    fixed, partly = adapted(options.constraints, model)
    options = replace(options, constraints=fixed)
    for diagnostic in (*many_axes(cluster.mesh), *partly):
        on_warning(diagnostic)
    given = options.memory_limit_bytes
    limit_bytes = given if given is not None else cluster.device.usable_bytes
    constraints = resolve(options.constraints, model, cluster.mesh)
    pricing = Pricing.named(options.cost_model, cluster, _element_bytes(model))
    if constraints.forbidden:
        collectives = Without(pricing.collectives, constraints.forbidden)
        moves, optimizer = pricing.moves, pricing.optimizer
        made = Pricing.made(cluster.mesh, collectives, pricing.compute, moves.levels_of, moves.bucket_bytes)
        pricing = replace(made, optimizer=optimizer)
    return Instance(model, rules, cluster, options, limit_bytes, constraints, pricing, complete, decided)


class CostGraphs:
    """The cost graphs of an instance with their memory rows; that of what the options say is built once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._asked: tuple[CostGraph, Memory] | None = None

    def asked(self) -> tuple[CostGraph, Memory]:
        """The cost graph with what the options say recomputed."""
        if self._asked is None:
            built = self._build()
            if self.instance.decided is not None and self.instance.options.remat == "auto":
                built = self._build(recompute_of(self.instance.decided, built))
            self._asked = (built, Memory(built))
        return self._asked

    def recomputing(self, remat: Recompute) -> tuple[CostGraph, Memory]:
        """The cost graph in which that is recomputed."""
        if remat is self.asked()[0].recompute:
            return self.asked()
        built = self._build(remat)
        return built, Memory(built)

    def _build(self, remat: Recompute | None = None) -> CostGraph:
        asked = self.instance
        return build_cost_graph(
            asked.model, asked.rules, asked.cluster, asked.options, pricing=asked.pricing,
            constraints=asked.constraints, again=remat,
        )  # fmt: skip


def _element_bytes(model: Model) -> int:
    """Bytes of one element of the type that most of the model's values have, integers aside."""
    widths = [DTYPE_BITS[tensor.dtype] // 8 for tensor in model.tensors.values() if tensor.is_float]
    return max(1, max(sorted(set(widths)), key=widths.count, default=4))


def _obstacles(model: Model, options: PlanOptions) -> list[Diagnostic]:
    """Why the model cannot be planned as asked: the first reason there is."""
    cached = options.kv_cache_tokens > 0
    return (
        (training_obstacles(model) if options.training else [])
        or microbatch_obstacles(model, options.microbatches)
        or (cache_obstacles(model, training=options.training) if cached else [])
    )


def without_rule(model: Model, rules: Sequence[Rule], *, strict: bool) -> list[Diagnostic]:
    """One warning (`strict`: error) that names the operators of `model` that can only be replicated; rule i is that of
    operator i. Empty when every operator has a rule."""
    found: dict[str, list[str]] = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        if rule.fallback:
            found.setdefault(operator.kind, []).append(operator.name)
    if not found:
        return []
    number = sum(map(len, found.values()))
    what = "1 operator has" if number == 1 else f"{number} operators have"
    kinds = [
        f"{kind} ×{len(names)}: '{names[0]}' ..." if len(names) > 1 else f"{kind}: '{names[0]}'"
        for kind, names in sorted(found.items())
    ]
    if len(kinds) > _SHOWN:
        kinds[_SHOWN:] = [f"and {len(kinds) - _SHOWN} more kinds"]
    if strict:
        summary = f"{what} no sharding rule, and --strict forbids to replicate them"
        return [error("no-rule", summary, detail="\n".join(kinds), hint="plan without --strict, or add a rule")]
    hint = "shardplan inspect says how much of the work they are"
    return [warning("no-rule", f"{what} no sharding rule and will be replicated", detail="\n".join(kinds), hint=hint)]


def many_axes(mesh: Mesh) -> list[Diagnostic]:
    """A warning where the search space of `mesh` makes a plan a matter of minutes; else empty."""
    real = sum(size > 1 for size in mesh.shape)
    if real <= _FAST_AXES:
        return []
    hint = "axes that share a link can be one: --mesh 2x8 where 2x2x2x2 was meant"
    summary = f"{real} mesh axes: every layout of up to {real} splits is weighed, which takes minutes and gigabytes"
    return [warning("many-axes", summary, hint=hint)]
