"""Problem instance from a model, a cluster and options: rules, resolved constraints and prices; and its cost graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import ResolvedConstraints, resolve
from shardplan.constraints.reuse import adapted
from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.graph.build import CostGraph, build_cost_graph, regathering
from shardplan.graph.flow import microbatch_obstacles, training_obstacles
from shardplan.graph.kv_cache import cache_obstacles
from shardplan.graph.memory import MemoryRows
from shardplan.graph.neighbourhood import Neighbourhood, Offer
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.pricing import Pricing
from shardplan.graph.remat import Recompute, nothing_recomputed
from shardplan.interruption import NEVER, Deadline
from shardplan.layout.mesh import Mesh
from shardplan.model.types import DTYPE_BITS, Model
from shardplan.plan.assemble import recompute_of
from shardplan.plan.types import Plan
from shardplan.planning.constraint_masks import Without
from shardplan.planning.decided import Decided
from shardplan.rules import model_rules
from shardplan.rules.types import Rule
from shardplan.units import size

ABOVE_DEVICE = "limit-above-device"
"""Code of the warning about a memory limit that no device of the profile has."""
_SHOWN = 8
MOST_WHOLE = 3
"""Number of axes up to which all layouts are considered at once: the choices multiply with every axis."""
MOST_AXES = 6
"""Number of axes up to which a plan is searched, from that of a coarser mesh: a search on more axes would not end."""


@dataclass(frozen=True)
class Instance:
    """What is to be planned. `rules[i]`: the rule of operator i. `every_choice`: nothing is ruled out to shorten a
    search (no plan is taken from a coarser mesh or a shallower model), and the cost model of another planner
    contributes its prices only, not its restrictions. `decided`: with `remat` `auto`, a plan that fixes what is
    recomputed. `offer`: the only layouts that are considered. `taken_s`: the seconds that making it took, which are
    part of a time limit."""

    model: Model
    rules: tuple[Rule, ...]
    cluster: Cluster
    options: PlanOptions
    limit_bytes: int
    constraints: ResolvedConstraints
    pricing: Pricing
    every_choice: bool = False
    decided: Plan | None = None
    offer: Offer | None = None
    taken_s: float = field(default=0.0, compare=False)

    @property
    def chooses_remat(self) -> bool:
        """Whether the search chooses which operators are recomputed."""
        return self.options.training and self.options.remat == "auto" and self.decided is None

    @property
    def is_quick(self) -> bool:
        """Whether this instance is one of many that a study compares."""
        return self.options.effort == "quick"


def instance_of(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_warning: Callable[[Diagnostic], None],
    *,
    every_choice: bool = False,
    decided: Plan | None = None,
    offer: Offer | None = None,
) -> Instance:
    """The instance of a request. Raises `ShardplanError` for a model that cannot be planned as asked."""
    began_s = time.monotonic()
    if obstacles := _obstacles(model, options):
        raise ShardplanError(*obstacles)
    if decided is None:
        refuse_too_many_axes(cluster)
    rules = tuple(model_rules(model))
    given = options.memory_limit_bytes
    for diagnostic in (*without_rule(model, rules, strict=options.strict), *above_device(given, cluster)):
        if diagnostic.severity == "error":
            raise ShardplanError(diagnostic)
        model = replace(model, warnings=(*model.warnings, diagnostic))
        on_warning(diagnostic)
    fixed, partly = adapted(options.constraints, model)
    options = replace(options, constraints=fixed)
    for diagnostic in (*many_axes(cluster.mesh), *nothing_recomputed(model, rules, options), *partly):
        on_warning(diagnostic)
    limit_bytes = options.limit_bytes_on(cluster.device)
    constraints = resolve(options.constraints, model, cluster.mesh)
    pricing = Pricing.named(options.cost_model, cluster, _element_bytes(model))
    if constraints.forbidden:
        collectives = Without(pricing.collectives, constraints.forbidden)
        moves, optimizer = pricing.moves, pricing.optimizer
        made = Pricing.made(cluster.mesh, collectives, pricing.compute, moves.levels_of, moves.bucket_bytes)
        pricing = replace(made, optimizer=optimizer)
    return Instance(
        model, rules, cluster, options, limit_bytes, constraints, pricing, every_choice, decided, offer,
        taken_s=time.monotonic() - began_s,
    )  # fmt: skip


def above_device(limit_bytes: int | None, cluster: Cluster) -> Iterator[Diagnostic]:
    """A warning, which the plan keeps, about a memory limit that no device of the profile has."""
    has_bytes = cluster.device.memory_bytes
    if limit_bytes is not None and has_bytes < limit_bytes < UNLIMITED_BYTES:
        summary = f"the memory limit, {size(limit_bytes)}, is more than the {size(has_bytes)} that a device has"
        hint = "the plan may fit none of them; of other devices, write a profile with their device.memory_bytes"
        yield warning(ABOVE_DEVICE, summary, hint=hint)


class CostGraphs:
    """The cost graphs of an instance with their memory rows. The graph with the rematerialisation of the options is
    built once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._asked: tuple[CostGraph, MemoryRows] | None = None
        self._recomputing: tuple[Recompute, tuple[CostGraph, MemoryRows]] | None = None
        self._regathering: tuple[CostGraph, tuple[CostGraph, MemoryRows]] | None = None
        self._near: tuple[tuple[Neighbourhood, Recompute | None], tuple[CostGraph, MemoryRows]] | None = None

    def asked(self, deadline: Deadline = NEVER) -> tuple[CostGraph, MemoryRows]:
        """The cost graph with the rematerialisation of the options. This and the other graphs raise `GivenUpError` at
        the deadline."""
        if self._asked is None:
            built = self._build(None, self._decided(), deadline)
            if self.instance.decided is not None and self.instance.options.remat == "auto":
                built = self._build(recompute_of(self.instance.decided, built), self._decided(), deadline)
            self._asked = (built, MemoryRows(built))
        return self._asked

    def _decided(self) -> Neighbourhood | None:
        """The layouts of the plan that is fixed, on a mesh of so many axes that no other layouts are priced."""
        decided, mesh = self.instance.decided, self.instance.cluster.mesh
        if decided is None or len(mesh.real_axes) <= MOST_WHOLE:
            return None
        return Neighbourhood(Decided.of_plan(decided).met())

    def recomputing(self, remat: Recompute, deadline: Deadline = NEVER) -> tuple[CostGraph, MemoryRows]:
        """The cost graph with a given rematerialisation. The latest one is kept, as several questions follow on the
        same graph."""
        if remat == self.asked(deadline)[0].recompute:
            return self.asked()
        if self._recomputing is None or self._recomputing[0] != remat:
            built = self._build(remat, None, deadline)
            self._recomputing = remat, (built, MemoryRows(built))
        return self._recomputing[1]

    def regathering(
        self, asked: tuple[CostGraph, MemoryRows], deadline: Deadline = NEVER
    ) -> tuple[CostGraph, MemoryRows]:
        """A cost graph as if no gathered weight stayed. The latest one is kept."""
        if self._regathering is None or self._regathering[0] is not asked[0]:
            self._regathering = asked[0], (regathering(asked[0], deadline), asked[1])
        return self._regathering[1]

    def near(
        self, near: Neighbourhood, remat: Recompute | None, deadline: Deadline = NEVER
    ) -> tuple[CostGraph, MemoryRows]:
        """The cost graph with only the layouts near some plans, and a given rematerialisation (default: the
        options). The latest one is kept."""
        if self._near is None or self._near[0] != (near, remat):
            built = self._build(remat, near, deadline)
            self._near = (near, remat), (built, MemoryRows(built))
        return self._near[1]

    def _build(self, remat: Recompute | None, near: Offer | None, deadline: Deadline) -> CostGraph:
        asked = self.instance
        return build_cost_graph(
            asked.model, asked.rules, asked.cluster, asked.options, pricing=asked.pricing,
            constraints=asked.constraints, remat=remat, near=near or asked.offer, deadline=deadline,
        )  # fmt: skip


def _element_bytes(model: Model) -> int:
    """Bytes per element of the most frequent floating-point type among the model's values."""
    widths = [DTYPE_BITS[tensor.dtype] // 8 for tensor in model.tensors.values() if tensor.is_float]
    return max(1, max(sorted(set(widths)), key=widths.count, default=4))


def _obstacles(model: Model, options: PlanOptions) -> list[Diagnostic]:
    """Why the model cannot be planned as asked: the first reason there is."""
    cached = options.kv_cache_tokens > 0
    if not model.operators and not model.inputs:
        return [error("nothing-to-plan", f"'{model.name}' has neither operators nor inputs: it gives constants")]
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


def refuse_too_many_axes(cluster: Cluster) -> None:
    """Raises `ShardplanError` (`too-many-axes`) if the mesh has more axes than a search can handle."""
    real = len(cluster.mesh.real_axes)
    if real <= MOST_AXES:
        return
    coarser = merged(cluster)[0].mesh
    summary = f"{real} mesh axes of more than one device; a plan is searched on at most {MOST_AXES}"
    hint = "merge axes over one link"
    if len(coarser.real_axes) <= MOST_AXES:
        hint += f": --mesh {coarser.argument} has the same devices"
    raise ShardplanError(error("too-many-axes", summary, hint=hint))


def many_axes(mesh: Mesh) -> list[Diagnostic]:
    """A warning if the mesh has so many axes that the plan is searched step by step; else empty."""
    real = len(mesh.real_axes)
    if real <= MOST_WHOLE:
        return []
    hint = "the lower bound is what the model computes, cut evenly: the gap says little of how good the plan is"
    summary = f"{real} mesh axes: the plan starts from that of a coarser mesh and is improved two axes at a time"
    return [warning("many-axes", summary, hint=hint)]
