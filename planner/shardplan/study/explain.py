"""A plan's decision on some tensors or an operator: what it is, what it takes, and what else there was."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.constraints.match import Names
from shardplan.constraints.types import Constraint, Dims
from shardplan.errors import ShardplanError, error
from shardplan.folding import folded, pattern
from shardplan.graph.build import Node
from shardplan.model.types import Model
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import Plan, TensorDecision
from shardplan.planning import Planner
from shardplan.study.alternatives import Alternative, alternatives
from shardplan.study.request import cluster_of, is_of, options_of
from shardplan.study.shares import Share, shares_of
from shardplan.yaml_source import Mark

_SECONDS = 10.0
"""Time limit of each solve."""
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Explanation:
    """`subject`: folded name; `about`: its shape and type, or equation; `count`: how many things it stands for;
    `bytes_per_device`: what all of them take there, None for an operator."""

    subject: str
    about: str
    count: int
    shares: tuple[Share, ...]
    alternatives: tuple[Alternative, ...]
    bytes_per_device: int | None = None


def explain(plan: Plan, file: str, model: Model, name: str) -> Explanation:
    """Why `plan` treats the tensors (or the operator) called `name` (a glob) as it does.

    Raises `ShardplanError`: `stale-plan`, `no-match`, `too-many` (what matches is of several kinds).
    """
    if not is_of(plan, model):
        raise ShardplanError(error("stale-plan", "the plan was made for another model", file=file, hint="solve again"))
    tensors, operators = _find(plan, model, name)
    options = replace(options_of(plan, file), time_limit=_SECONDS)
    nodes: list[Node] = [("kept", tensor.name) for tensor in tensors]
    if operators:
        pinned = model.operators[operators[0]].name
        nodes = [("operator", pinned)]
        complete = Constraint("operators", pinned, (), "", Mark(file, 1, 1), is_pin=True)
        options = replace(options, constraints=(*options.constraints, complete))
    found = alternatives(Planner(model, cluster_of(plan, file), options), plan.summary.overlap_weight, nodes)
    if operators:
        decision = next(op for op in plan.operators if op.name == nodes[0][1])
        shares = shares_of(plan, operators=[decision.name])
        again = f", run again before the backward of '{decision.again}'" if decision.again else ""
        return Explanation(decision.name, f"{decision.op_type}  {decision.equation}{again}", 1, shares, found)
    first = tensors[0]
    about = f"{list(checkpoint_shape(first.shape, first.perm))} {first.dtype}{_recomputed(tensors)}"
    subject = folded([t.checkpoint or t.name for t in tensors], [t.checkpoint or t.name for t in plan.tensors])
    shares = shares_of(plan, tensors=[tensor.name for tensor in tensors])
    held = sum(tensor.bytes_per_device for tensor in tensors)
    return Explanation(subject, about, len(tensors), shares, found, held)


def _recomputed(tensors: list[TensorDecision]) -> str:
    again = sum(tensor.recomputed for tensor in tensors)
    return f", {'' if again == len(tensors) else f'{again} of them '}made again for backward" if again else ""


def _find(plan: Plan, model: Model, name: str) -> tuple[list[TensorDecision], tuple[int, ...]]:
    """The tensors called so, or else the first operator called so."""
    wanted, names = Constraint("any", name, Dims(()), "", Mark("", 0, 0), is_pin=True), Names(model)
    decisions = {tensor.name: tensor for tensor in plan.tensors}
    exact = [number for number, operator in enumerate(model.operators) if operator.name == name]
    try:
        found = [decisions[target.tensor] for target in names.targets(wanted) if target.tensor in decisions]
    except ShardplanError as unmatched:
        if exact:
            return [], tuple(exact)
        known = replace(unmatched.diagnostics[0], file=None, summary=f"no tensor or operator matches '{name}'")
        raise ShardplanError(known) from None
    if not found:
        raise ShardplanError(error("no-match", f"'{name}' is a small constant, present on every device"))
    kinds = {(tensor.shape, tensor.dtype, tensor.role) for tensor in found}
    if len(kinds) > 1:
        matching = [tensor.checkpoint or tensor.name for tensor in found]
        groups: dict[str, list[str]] = {}
        for one in matching:
            groups.setdefault(pattern(one), []).append(one)
        shown = [f"{folded(alike, matching)} ×{len(alike)}" if alike[1:] else alike[0] for alike in groups.values()]
        rest = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        summary = f"'{name}' matches {len(found)} tensors of {len(kinds)} kinds; explain one of them at a time"
        raise ShardplanError(error("too-many", summary, detail="\n".join([*shown[:_SHOWN], *rest])))
    return found, ()
