"""Explanation of a plan's decision on some tensors or an operator: the decision, its cost, and the alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardplan.folding import folded, pattern
from shardplan.graph.build import Node
from shardplan.model.types import Model
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.recorded_request import require_model
from shardplan.plan.types import Pipeline, Plan, Stage, TensorDecision
from shardplan.planning import Planner
from shardplan.planning.standing import OnProgress
from shardplan.study.alternatives import Alternative, alternatives
from shardplan.study.constants import ALTERNATIVE_S
from shardplan.study.instance import read, recorded_request
from shardplan.study.named_decisions import NamedDecisions, find
from shardplan.study.shares import Share, in_step, longer_ns, shares_of


@dataclass(frozen=True, slots=True)
class Explanation:
    """`subject`: folded name; `about`: shape and type, or equation; `count`: how many things it stands for;
    `bytes_per_device`: of all of them, None for an operator; `tied`: other names of the same weight."""

    subject: str
    about: str
    count: int
    shares: tuple[Share, ...]
    alternatives: tuple[Alternative, ...]
    bytes_per_device: int | None = None
    tied: tuple[str, ...] = ()


def explain(plan: Plan, file: str, model: Model, name: str, on_progress: OnProgress | None = None) -> Explanation:
    """The reasons for what `plan` decides about `name` (see `shardplan.study.named_decisions`). All alternatives
    recompute what the plan recomputes.

    Raises `ShardplanError`: `stale-plan`, `no-match`, `too-many` (the matches are of several kinds).
    """
    require_model(plan, model, file)
    found = find(plan, model, name)
    instance = read(replace(recorded_request(plan, file, model), time_limit=ALTERNATIVE_S))
    nodes: list[Node] = [("kept", tensor.name) for tensor in found.tensors]
    if found.operators:
        nodes = [("operator", operator.name) for operator in found.operators]
    planner = Planner(model, instance.cluster, instance.options, decided=plan)
    tried = alternatives(planner, plan, nodes, on_progress)
    return replace(described(plan, found, name), alternatives=tried)


def as_of_step(found: Explanation, pipeline: Pipeline, stage: Stage) -> Explanation:
    """An explanation of a decision in a stage, with times of the step in place of those of the stage."""
    tried = tuple(
        one if one.cost_ns is None else replace(one, cost_ns=longer_ns(pipeline, stage, one.cost_ns))
        for one in found.alternatives
    )
    return replace(found, shares=tuple(in_step(pipeline, stage, found.shares)), alternatives=tried)


def described(plan: Plan, found: NamedDecisions, name: str) -> Explanation:
    """What `name` matches, and its cost, without alternatives. A tied weight is named as in the request."""
    if found.operators:
        first, names = found.operators[0], [operator.name for operator in found.operators]
        before = sorted({operator.recomputed_before for operator in found.operators if operator.recomputed_before})
        remat = f", recomputed before the backward of '{before[0]}'" if before else ""
        labels = [f"{operator.module} ({operator.op_type})" for operator in found.operators if operator.module]
        alone = sum((o.module, o.op_type) == (first.module, first.op_type) for o in plan.operators) == 1
        subject = _together(labels, labels) if labels and (names[1:] or alone) else names[0]
        shares = shares_of(plan, operators=names)
        return Explanation(subject, f"{first.op_type}  {first.equation}{remat}", len(names), shares, ())
    first_one = found.tensors[0]
    shape = list(checkpoint_shape(first_one.shape, first_one.perm))
    about = f"{shape} {first_one.dtype}{_recomputed(found.tensors)}"
    called = [tensor.checkpoint or tensor.name for tensor in found.tensors]
    subject = _together(called, [tensor.checkpoint or tensor.name for tensor in plan.tensors])
    ties = dict.fromkeys((*called, *first_one.aliases)) if len(called) == 1 else {}
    subject = name if name in ties else subject
    shares = shares_of(plan, tensors=[tensor.name for tensor in found.tensors])
    held = sum(tensor.bytes_per_device for tensor in found.tensors)
    tied = tuple(other for other in ties if other != subject)
    return Explanation(subject, about, len(found.tensors), shares, (), held, tied)


def _together(names: Sequence[str], everything: Sequence[str]) -> str:
    """Names of identical layers folded into one; names of several kinds one after the other."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(pattern(name), []).append(name)
    return ", ".join(folded(group, everything) for group in groups.values())


def _recomputed(tensors: Sequence[TensorDecision]) -> str:
    count = sum(tensor.recomputed for tensor in tensors)
    return f", {'' if count == len(tensors) else f'{count} of them '}recomputed for backward" if count else ""
