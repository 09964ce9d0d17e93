"""One model planned in many ways, so that the plans differ: by the net, by memory, by recipes, and at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forced_plans import cluster_of, forced_plan

from shardplan.cluster.perturb import constants, perturbed
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.recipes import RECIPES

NETS = {"cheap net": 1e4, "dear net": 1e-3}
"""Bandwidth over the profile's; latency is divided by as much."""
RECIPES_FORCED = ("Megatron", "Megatron + sequence", "ZeRO-3")
TIGHT_SHARES = (0.4, 0.7, 0.95)
"""Of the memory that the fastest plan takes: the first that some plan fits in."""
TIGHT_SECONDS = 15.0
RANDOM_SEED = 11
FORMS = ("best", *NETS, "tight memory", *RECIPES_FORCED, "random")


def plans_of(
    model: Model, mesh: str, options: PlanOptions, forms: tuple[str, ...] = FORMS
) -> Iterator[tuple[str, Plan | None]]:
    """The plan of each form; None where the model has no plan of that form on this mesh. Memory is no limit but in the
    form that is about it.
    """
    cluster = cluster_of(mesh)
    options = replace(options, memory_limit_bytes=UNLIMITED_BYTES, effort="quick")
    planner = Planner(model, cluster, options, reasons=False)
    best = planner.plan()
    for form in forms:
        if form == "best":
            yield form, best
        elif form in NETS:
            yield form, Planner(model, _net(cluster, NETS[form]), options, reasons=False).plan()
        elif form == "tight memory":
            yield form, _tight(model, cluster, options, best)
        elif form == "random":
            yield form, forced_plan(model, mesh, options, seed=RANDOM_SEED, limit_bytes=UNLIMITED_BYTES)
        else:
            yield form, _forced(planner, form)


def _net(cluster: Cluster, speed: float) -> Cluster:
    links = {name: speed for name in constants(cluster) if name.endswith("bandwidth") and not name.startswith("memory")}
    delays = {name: 1 / speed for name in constants(cluster) if name.endswith("latency")}
    return perturbed(cluster, links | delays)


def _tight(model: Model, cluster: Cluster, options: PlanOptions, best: Plan) -> Plan | None:
    for share in TIGHT_SHARES:
        limit = int(best.summary.memory.total * share)
        limited = replace(options, memory_limit_bytes=limit, time_limit=TIGHT_SECONDS)
        try:
            return Planner(model, cluster, limited, reasons=False).plan()
        except (InfeasibleError, LimitError):
            continue
    return None


def _forced(planner: Planner, recipe: str) -> Plan | None:
    try:
        return planner.plan(RECIPES[recipe])
    except InfeasibleError:
        return None


def decisions_of(plan: Plan) -> int:
    """Equal for plans that decide the same."""
    return hash((tuple(o.split for o in plan.operators), tuple((t.layout, t.served) for t in plan.tensors)))
