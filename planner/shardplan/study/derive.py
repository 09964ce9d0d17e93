"""Derivation of a whole plan from its choices alone: layouts, moves, times, memory and sums are computed again.

Choices are: the request, the split of every operator, the layouts of kept tensors, what is recomputed, the cuts of a
pipeline, and the results of the search's proof. The rest follows from them, by the functions that also made the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, ShardplanError
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import node_order, objective_of
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, begins, chain_at, chain_of, part_of, stage_name
from shardplan.pipeline.plan import PipelineRequest, plan_of
from shardplan.pipeline.result import result_of_plans
from shardplan.pipeline.schedule import parse_schedule
from shardplan.pipeline.stage_inputs import constraints_on
from shardplan.pipeline.submeshes import Submesh, part
from shardplan.plan.assemble import Outcome, Proof, assemble, finished, price
from shardplan.plan.recorded_request import cluster_of, options_of
from shardplan.plan.types import OperatorDecision, Pipeline, Plan
from shardplan.planning.constraint_masks import masks_of as constraint_masks
from shardplan.planning.constraint_masks import penalties_of
from shardplan.planning.decided import Decided
from shardplan.planning.equal_layers import unlike
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.rules import model_rules
from shardplan.units import NS_PER_S

_ROUNDED = 1e-6


class NotDerivableError(Exception):
    """Choices that make no plan of the model. `faults`: one sentence each."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


def derived(plan: Plan, file: str, model: Model) -> Plan:
    """The plan that the choices of `plan`, read from `file`, make for `model`.

    Raises `NotDerivableError` if they make no plan, `ShardplanError` if `plan` does not record its request.
    """
    cluster, options = cluster_of(plan, file), options_of(plan, file)
    if cluster.mesh != plan.mesh:
        raise NotDerivableError([f"mesh.axes are {plan.mesh}, and the profile's mesh is {cluster.mesh}"])
    try:
        if plan.pipeline is None:
            return _on_one_mesh(plan, model, cluster, options)
        return _staged(plan, plan.pipeline, file, model, cluster, options)
    except ShardplanError as problem:
        raise NotDerivableError(diagnostic.summary for diagnostic in problem.diagnostics) from None


# ---- one mesh --------------------------------------------------------------------------------------------------------


def _on_one_mesh(plan: Plan, model: Model, cluster: Cluster, options: PlanOptions) -> Plan:
    _refuse(_other_names((one.name for one in plan.operators), (one.name for one in model.operators), "operators"))
    instance = instance_of(model, cluster, options, _unheard, every_choice=True, decided=plan)
    built, memory = CostGraphs(instance).asked()
    _refuse(_other_names((one.name for one in plan.tensors), built.flow.planned, "tensors"))
    _refuse(_no_multipliers(plan.summary.multipliers, objective_of(built).sizes))
    choice = _choices(plan, built)
    masks = constraint_masks(built, instance.constraints)
    _refuse(
        f"'{mask.node[1]}' is not as the constraint '{mask.constraint}' asks"
        for mask in masks
        if mask.constraint.cost_us is None and not mask.satisfied[choice[mask.node]]
    )
    differing = unlike(built, choice) if options.equal_layers else None
    if differing is not None:
        (_, one), (_, other) = differing
        _refuse([f"'{one}' and '{other}' are of equal layers and are not laid out alike, as equal_layers says"])
    choices = [choice[node] for node in node_order(built)]
    priced = price(built, memory, choices, instance.limit_bytes, penalties_of(masks))
    best = finished(priced, instance.limit_bytes)
    return assemble(best, instance.limit_bytes, _proof(plan))


def _proof(plan: Plan) -> Proof:
    summary = plan.summary
    outcome: Outcome = "interrupted" if summary.outcome == "interrupted" else "feasible"
    return Proof(summary.bound_ns / NS_PER_S, outcome, summary.reproducible, summary.multipliers)


def _no_multipliers(found: Sequence[Sequence[float]], sizes: Sequence[int]) -> Iterator[str]:
    """Checks that every phase has one multiplier for each of its sums, or none, and that they are at most 1 together
    (the base has the rest); that none is negative is checked where a plan is read."""
    if len(found) != len(sizes) or any(row and len(row) != size for row, size in zip(found, sizes, strict=True)):
        wanted = ", ".join(str(size) for size in sizes)
        yield f"details.multipliers has {', '.join(str(len(row)) for row in found)} numbers by phase, not {wanted}"
    elif any(sum(row) > 1.0 + _ROUNDED for row in found):
        yield "details.multipliers of a phase are more than 1 together"


def _unheard(_: Diagnostic) -> None:
    """Ignores warnings, which are in the plan."""


def _choices(plan: Plan, built: CostGraph) -> dict[Node, int]:
    """The choice of every node. Raises `NotDerivableError` if a decision matches no choice."""
    masks = Decided.of_plan(plan).masks(built)
    _refuse(_cannot_be(node) for node in node_order(built) if node not in masks or not masks[node].any())
    operators = {operator.name: operator for operator in plan.operators}
    found = {node: np.flatnonzero(mask).tolist() for node, mask in masks.items()}
    return {
        node: those[0] if len(those) == 1 or node[0] != "operator" else _nearest(built, operators[node[1]], those)
        for node, those in found.items()
    }


def _cannot_be(node: Node) -> str:
    if node[0] == "operator":
        return f"the operator '{node[1]}' cannot be split as 'split' says"
    key = {"kept": "layout", "updated": "optimizer"}.get(node[0], node[0])
    return f"the tensor '{node[1]}' cannot have the layout that '{key}' says"


def _nearest(built: CostGraph, wanted: OperatorDecision, those: Sequence[int]) -> int:
    """Among strategies with the same split, the one that reads and makes the recorded layouts; else the first."""
    number = next(number for number, operator in enumerate(built.model.operators) if operator.name == wanted.name)
    strategies = built.operators[number].strategies
    for choice in those:
        reads = tuple(strategies.layout("operands", i, choice) for i in range(len(wanted.reads)))
        makes = tuple(strategies.layout("results", i, choice) for i in range(len(wanted.makes)))
        if (reads, makes) == (wanted.reads, wanted.makes):
            return choice
    return those[0]


def _other_names(found: Iterable[str], expected: Iterable[str], section: str) -> Iterator[str]:
    mine, theirs = dict.fromkeys(found), dict.fromkeys(expected)
    yield from (f"{section}: the model's '{name}' is missing" for name in theirs if name not in mine)
    yield from (f"{section}: '{name}' is none of the model's" for name in mine if name not in theirs)


def _refuse(faults: Iterable[str]) -> None:
    if found := tuple(faults):
        raise NotDerivableError(found)


# ---- pipelines -------------------------------------------------------------------------------------------------------


def _staged(
    plan: Plan, pipeline: Pipeline, file: str, model: Model, cluster: Cluster, options: PlanOptions
) -> Plan:  # fmt: skip
    schedule = parse_schedule(str(plan.model.get("schedule", "1f1b")))
    asked, by_hand = plan.model.get("stages"), plan.model.get("stages") == "manual"
    if not by_hand and asked not in ("auto", len(pipeline.stages) // schedule.chunks):
        raise NotDerivableError([f"pipeline.stages are {len(pipeline.stages)}, and model.stages is {asked}"])
    chain, cuts = _cut_by_hand(pipeline, model) if by_hand else _cut(pipeline, model)
    parts = tuple(_part(cluster, stage.plan.mesh, by_hand=by_hand) for stage in pipeline.stages)
    plans, waiting = [], []
    for place, (stage, cut, own) in enumerate(zip(pipeline.stages, cuts, parts, strict=True)):
        waiting.append(schedule.in_flight_of(place, len(cuts), options.microbatches) if options.training else 1)
        run = part_of(chain, cut.first, cut.last, stage_name(model, place))
        limit = options.limit_bytes_on(cluster.device) // schedule.chunks
        if by_hand:
            constraints = options_of(stage.plan, file).constraints
        else:
            constraints = constraints_on(options.constraints, run, own.mesh)
        wanted = replace(options, in_flight=waiting[-1], constraints=constraints, memory_limit_bytes=limit)
        plans.append(_stage(place, stage.plan, run, own.cluster, wanted))
    result = result_of_plans(chain, cuts, parts, plans, waiting, cluster, options, schedule)
    summary = plan.summary
    result = replace(
        result, bound_ns=float(summary.bound_ns), interrupted=summary.outcome == "interrupted",
        by_clock=not summary.reproducible,
    )  # fmt: skip
    return plan_of(
        PipelineRequest(model, cluster, options, schedule, asked if isinstance(asked, int) else str(asked)), result
    )


def _stage(place: int, plan: Plan, run: Model, cluster: Cluster, options: PlanOptions) -> Plan:
    try:
        return _on_one_mesh(plan, run, cluster, options)
    except NotDerivableError as problem:
        raise NotDerivableError(f"stage {place}: {fault}" for fault in problem.faults) from None


def _cut(pipeline: Pipeline, model: Model) -> tuple[Chain, list[Cut]]:
    """The runs of units that the stages record."""
    chain = chain_of(model, model_rules(model))
    found, first = [], 0
    for place, stage in enumerate(pipeline.stages):
        last = first + len(stage.units)
        if not first < last <= len(chain) or chain.names[first:last] != stage.units:
            names = ", ".join(chain.names[first : max(last, first + 1)]) or "nothing more"
            raise NotDerivableError([f"pipeline.stages[{place}].units: what comes next in the model is {names}"])
        found.append(Cut(first, last, 0, 0, 0))
        first = last
    if first < len(chain):
        raise NotDerivableError([f"pipeline.stages: no stage runs '{chain.names[first]}'"])
    return chain, found


def _cut_by_hand(pipeline: Pipeline, model: Model) -> tuple[Chain, list[Cut]]:
    """The operators that the stages record."""
    starts = begins(model, [[operator.name for operator in stage.plan.operators] for stage in pipeline.stages])
    if len(starts) < len(pipeline.stages) - 1 or starts != sorted(set(starts)):
        raise NotDerivableError(["pipeline.stages: the stages do not follow each other in the model"])
    return chain_at(model, starts), [Cut(place, place + 1, 0, 0, 0) for place in range(len(pipeline.stages))]


def _part(cluster: Cluster, mesh: Mesh, *, by_hand: bool) -> Submesh:
    """The part of the cluster with the mesh of a stage."""
    if by_hand:
        found = Submesh(make_cluster(profile_from_resolved(cluster.resolved), mesh.argument))
    else:
        found = part(cluster, mesh.shape) if len(mesh) == len(cluster.mesh) else Submesh(cluster)
    if found.mesh != mesh:
        raise NotDerivableError([f"a stage is on {mesh}, which is no part of {cluster.mesh}"])
    return found
