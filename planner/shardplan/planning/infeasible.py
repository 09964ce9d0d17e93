"""Why there is no plan: the memory is too small, constraints conflict, or a limit ended the search."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from shardplan.cluster.types import Cluster
from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.planning.chain import Answer, Question, answer
from shardplan.planning.constants import NEED_SECONDS
from shardplan.planning.constraint_masks import masks_of
from shardplan.planning.instance import CostGraphs, Instance
from shardplan.planning.memory_need import Need, need_of
from shardplan.units import size, sizes_apart


def lighter_options(options: PlanOptions) -> tuple[str, ...]:
    """Options under which a step may need less memory than under `options`."""
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
    """The error for a proof that every plan needs `shortfall_bytes` more than `limit_bytes` on some device. `lighter`:
    options to suggest; `need`: the memory of the plan that comes nearest to fitting; `unasked`: the shortfall in bytes
    without any constraint."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    least, limit = sizes_apart(limit_bytes + shortfall_bytes, limit_bytes)
    needs = f"at least {least} per device, of which {limit} may be used"
    without = [] if not unasked else [f"without the constraints it would still be {size(unasked)} short"]
    return error(
        "infeasible",
        f"no plan fits in memory: every device is at least {size(shortfall_bytes)} short",
        detail="\n".join([f"{what} needs {needs}", *(need.lines() if need else ()), *without]),
        hint="".join(f"{option}, " for option in lighter) + "a larger --mesh or a smaller batch need less",
    )


def irreconcilable(
    model: Model, cluster: Cluster, conflict: Sequence[Constraint], *, equal_layers: bool = False
) -> Diagnostic:
    """The error for a proof that no plan within memory satisfies all of `conflict`, while without any one of them there
    is a plan; `equal_layers`: proven only for plans with equal layers."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    alone = len(conflict) == 1
    why = "this constraint alone leaves" if alone else "these constraints leave"
    if equal_layers:
        why = f"with --equal-layers {why}"
    rest = "it is" if alone else "any one of them is"
    return error(
        "infeasible",
        f"no plan for {what} fits in memory and satisfies the constraints",
        detail="\n".join([f"{why} none:", *(f"  {constraint} ({constraint.place})" for constraint in conflict)]),
        hint=f"there is a plan if {rest} removed or given a cost",
        **conflict[0].where,
    )


def out_of_time(model: Model, cluster: Cluster) -> Diagnostic:
    """The error for a search that a limit ended before it had any plan."""
    what = f"'{model.name}' on '{cluster.name}' ({cluster.mesh})"
    return error("limit", f"the search for {what} was ended before any plan was found", hint="raise --time-limit")


def none_fits(instance: Instance, peak_bytes: int) -> Diagnostic:
    """The error if no schedule was found that fits, which is no proof that there is none; the one that needs least
    has a peak of `peak_bytes`."""
    what = f"'{instance.model.name}' on '{instance.cluster.name}' ({instance.cluster.mesh})"
    holds, limit = sizes_apart(peak_bytes, instance.limit_bytes)
    lighter = "".join(f"{option}, " for option in lighter_options(instance.options))
    return error(
        "limit",
        f"no plan was found for {what} whose schedule fits in memory",
        detail=f"at its peak it holds at least {holds}, of which {limit} may be used; whether one fits is not proven",
        hint=f"{lighter}a larger --mesh or a smaller batch need less",
    )


def no_coarser_plan(model: Model, cluster: Cluster, coarser: Cluster) -> Diagnostic:
    """The error for a mesh of so many axes that its search starts from the plan of a coarser mesh, if that has none."""
    return error(
        "limit",
        f"no plan was found for '{model.name}' on '{cluster.name}' ({cluster.mesh})",
        detail=f"on {coarser.mesh}, over the same links, none fits in memory or was found in time",
        hint=f"solve with --mesh {coarser.mesh.argument} to see why",
    )


def refusal(graphs: CostGraphs, none: Answer, *, reasons: bool) -> ShardplanError | KeyboardInterrupt:
    """The error for an answer without an assignment. With `reasons`, it searches which constraints conflict, or else
    what fills the memory of the plan that comes nearest to fitting."""
    found, target = _refusal(graphs, none, reasons=reasons), graphs.instance.options.target
    if not target or not isinstance(found, InfeasibleError):
        return found
    first, *others = found.diagnostics
    said = first.summary.replace("no plan", f"no plan that {target} can express", 1)
    hint = f"leave out --for {target}; or {first.hint}" if first.hint else f"leave out --for {target}"
    return InfeasibleError(replace(first, summary=said, hint=hint), *others)


def _refusal(graphs: CostGraphs, none: Answer, *, reasons: bool) -> ShardplanError | KeyboardInterrupt:
    """The same, whatever the plan is for."""
    instance, outcome = graphs.instance, none.solution.outcome
    if outcome == "interrupted":
        return KeyboardInterrupt()
    if outcome != "infeasible":
        return LimitError(out_of_time(instance.model, instance.cluster))
    need = unasked = None
    late = none.question.ends_s - time.monotonic() < 0.0
    if reasons and not late:
        asked = replace(none.question, objective=none.objective.base, unproven=0.0, start=(), work=math.inf)
        hard = _hard(graphs, none)
        if conflict := _conflict(graphs, asked, hard):
            return InfeasibleError(
                irreconcilable(instance.model, instance.cluster, conflict, equal_layers=instance.options.equal_layers)
            )
        need = _least_need(graphs, asked, none.solution.shortfall_bytes)
        unasked = answer(graphs, replace(asked, without=hard)).solution.shortfall_bytes if hard else None
    shortfall, lighter = none.solution.shortfall_bytes, lighter_options(instance.options)
    return InfeasibleError(
        infeasible(
            instance.model,
            instance.cluster,
            instance.limit_bytes,
            shortfall,
            lighter=lighter,
            need=need,
            unasked=unasked,
        )
    )


def _hard(graphs: CostGraphs, none: Answer) -> list[Constraint]:
    """The hard constraints, each once."""
    masks = masks_of(none.layouts.built, graphs.instance.constraints)
    return list(dict.fromkeys(mask.constraint for mask in masks if mask.constraint.cost_us is None))


def _conflict(graphs: CostGraphs, asked: Question, hard: Sequence[Constraint]) -> list[Constraint]:
    """A minimal set of constraints that together leave no plan; empty if constraints are not the reason.

    Constraints are dropped one after the other; one whose dropping gives a plan is kept and belongs to the set.
    """
    if not hard or not _has_plan(graphs, asked, hard):
        return []
    dropped: list[Constraint] = []
    for constraint in hard:
        if not _has_plan(graphs, asked, [*dropped, constraint]):
            dropped.append(constraint)
    return [constraint for constraint in hard if constraint not in dropped]


def _has_plan(graphs: CostGraphs, asked: Question, without: Sequence[Constraint]) -> bool:
    return answer(graphs, replace(asked, without=without)).solution.choices is not None


def _least_need(graphs: CostGraphs, asked: Question, shortfall_bytes: int) -> Need | None:
    """What the plan that comes nearest to fitting keeps in memory."""
    limit = graphs.instance.limit_bytes + shortfall_bytes
    nearest = answer(
        graphs, replace(asked, limit_bytes=limit, ends_s=min(asked.ends_s, time.monotonic() + NEED_SECONDS))
    )
    if nearest.solution.choices is None:
        return None
    layouts = nearest.layouts
    return need_of(layouts.memory, layouts.chosen(nearest.solution.choices))
