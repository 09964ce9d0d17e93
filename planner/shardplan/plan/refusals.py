"""What is said when a plan falls short of what was asked: operators without a rule, no memory, no time."""

from __future__ import annotations

from collections.abc import Sequence

from shardplan.cluster.types import Cluster
from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, error, warning
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.plan.need import Need
from shardplan.rules.types import Rule
from shardplan.units import size

_SHOWN = 8
_FAST_AXES = 3


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


def lighter_options(options: PlanOptions) -> tuple[str, ...]:
    """Options under which a step may need less memory than under these."""
    if not options.training:
        return ()
    recompute = () if options.remat == "auto" else ("--remat auto",)
    return ("more --microbatches", *recompute, "a lighter --optimizer")


def infeasible(
    model: Model,
    cluster: Cluster,
    limit_bytes: int,
    shortfall_bytes: int,
    *,
    lighter: Sequence[str] = (),
    need: Need | None = None,
    unasked: int | None = None,
) -> Diagnostic:
    """Proven: every plan needs `shortfall_bytes` more on some device than the `limit_bytes` it may use; `lighter`: what
    may be asked for instead; `need`: what the plan holds that comes nearest; `unasked`: how much would still be short
    if there were no constraints."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    needs = f"at least {size(limit_bytes + shortfall_bytes)} per device, of which {size(limit_bytes)} may be used"
    without = [] if unasked is None else [f"without the constraints it would still be {size(unasked)} short"]
    return error(
        "infeasible",
        f"no plan fits in memory: every device is at least {size(shortfall_bytes)} short",
        detail="\n".join([f"{what} needs {needs}", *(need.lines() if need else ()), *without]),
        hint="".join(f"{option}, " for option in lighter) + "a larger --mesh or a smaller batch need less",
    )


def irreconcilable(model: Model, cluster: Cluster, conflict: Sequence[Constraint]) -> Diagnostic:
    """Proven: `conflict` leaves no plan that fits, and without any one of these constraints there is one."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    alone = len(conflict) == 1
    why = "this constraint alone leaves" if alone else "these constraints leave"
    rest = "it is" if alone else "any one of them is"
    return error(
        "infeasible",
        f"no plan for {what} fits in memory and satisfies the constraints",
        detail="\n".join([f"{why} none:", *(f"  {constraint} ({constraint.place})" for constraint in conflict)]),
        hint=f"there is a plan if {rest} removed or given a cost",
        **conflict[0].where,
    )


def out_of_time(model: Model, cluster: Cluster) -> Diagnostic:
    """A limit ended the search before there was any plan."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    return error("limit", f"the search for {what} was ended before any plan was found", hint="raise --time-limit")
