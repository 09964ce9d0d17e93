"""Sizes of a model that are worth rounding up: mesh axes do not divide them, and they cause much of the step."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.padding.growth import sizes_of
from shardplan.padding.padded import called
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.program.shrink.classes import Classes, Node, Place, alike_in_copies, relate
from shardplan.rules.equation import parse
from shardplan.rules.types import Rule

SLIGHT: Final = 1 / 8
"""Share of a size up to which it is rounded up for all axes together; otherwise for as few axes as possible."""
_HEADS: Final = frozenset({"h", "g"})


@dataclass(frozen=True)
class Rounding:
    """The size `old` of class `root`, rounded up to `new`. `what`: its name for people; `name`: of the symbolic dim, if
    it is one; `is_usual`: a batch, a vocabulary, heads or a symbolic dim, which people pad, and not the width of a
    model; `share`: the share of the step that is work repeated on several devices, and waiting around it; `place`: a
    dim of it as `--pad` names it."""

    root: Node
    old: int
    new: int
    what: str
    name: str
    is_usual: bool
    share: float
    place: str


def roundings(model: Model, rules: Sequence[Rule], plan: Plan, least: float) -> tuple[Classes, list[Rounding]]:
    """Sizes that cause more than a share `least` of the step of `plan` by repeated work and waiting: usual ones first,
    then by that share."""
    classes = alike_in_copies(model, relate(model, rules))
    worth = _worth(model, rules, plan, classes)
    alike: dict[Node, set[int]] = defaultdict(set)
    places: dict[Node, list[Node]] = defaultdict(list)
    for node, size in sizes_of(model, rules).items():
        alike[classes.find(node)].add(size)
        places[classes.find(node)].append(node)
    found = []
    for root, share in worth.items():
        if share <= least or root in classes.fixed or len(alike[root]) != 1:
            continue
        (old,) = alike[root]
        new = rounded_up(old, plan.mesh)
        if new is not None:
            what, name, is_usual = _named(model, rules, places[root], old)
            place = called(model, [node for node in places[root] if isinstance(node[0], str)])
            found.append(Rounding(root, old, new, what, name, is_usual, share, place))
    found.sort(key=lambda one: (not one.is_usual, -one.share, one.what))
    return classes, found


def rounded_up(size: int, mesh: Mesh) -> int | None:
    """The next size that more axes of the mesh divide; None if all divide it, or if the next one is twice as large."""
    sizes = [axis.size for axis in mesh.axes if axis.size > 1]
    ways = {math.prod(some) for count in range(1, len(sizes) + 1) for some in itertools.combinations(sizes, count)}
    found = [-(-size // way) * way for way in sorted(ways) if size % way]
    slight = [new for new in found if new <= size * (1 + SLIGHT)]
    other = [new for new in found if new < 2 * size]
    return slight[-1] if slight else min(other, default=None)


def _worth(model: Model, rules: Sequence[Rule], plan: Plan, classes: Classes) -> dict[Node, float]:
    """By class, shares of the step: repeated work on its dims, and exposed communication of its tensors."""
    summary = plan.summary
    sent = summary.communication_ns + summary.hidden_ns
    waits = summary.communication_ns / sent if sent else 0.0
    worth: dict[Node, float] = defaultdict(float)
    for index, (rule, decision) in enumerate(zip(rules, plan.operators, strict=True)):
        same = plan.mesh.size // computing(decision, plan.mesh)
        roots = {classes.find((index, factor)) for factor, size in rule.sizes.items() if size > 1}
        for root in roots:
            worth[root] += decision.compute_ns * (1 - 1 / same) + decision.inner_ns * waits
    for move in plan.moves:
        rank = len(model.tensors[move.tensor].shape)
        for root in {classes.find((move.tensor, dim)) for dim in range(rank)}:
            worth[root] += move.time_ns * (1.0 if move.kind == "blocking" else waits)
    return {root: share / summary.step_ns for root, share in worth.items()} if summary.step_ns else {}


def computing(decision: OperatorDecision, mesh: Mesh) -> int:
    """Into how many parts the work of an operator is cut."""
    return math.prod(
        axis.size
        for axis, label in zip(mesh.axes, decision.split, strict=True)
        if label not in {"-", "~"} and not label.startswith("+")
    )


def _named(model: Model, rules: Sequence[Rule], nodes: Sequence[Node], size: int) -> tuple[str, str, bool]:
    """The name of a size for people, the name of its symbolic dim, and whether it is a usual one."""
    places: list[Place] = [node for node in nodes if isinstance(node[0], str)]
    symbols = [name for name, bound in model.dims.items() if bound == size and ":" not in name]
    of_inputs = [place for place in places if place[0] in model.inputs]
    if of_inputs and len(symbols) == 1:
        return symbols[0], symbols[0], True
    names = {parameter.tensor: parameter.name for parameter in model.parameters}
    weights = [place for place in places if place[0] in names]
    where = next(iter(weights or of_inputs or places), None)
    text = "" if where is None else f"dim {where[1]} of {names.get(where[0], where[0])}"
    kind = _kind(rules, nodes, of_inputs, of_a_weight=bool(weights))
    is_clear = bool(kind) and not weights
    return (kind if is_clear else f"{kind} ({text})" if kind else text), "", bool(kind)


def _kind(rules: Sequence[Rule], nodes: Sequence[Node], of_inputs: Sequence[Place], *, of_a_weight: bool) -> str:
    """`vocabulary`, `heads`, `batch`, or nothing. A table in which a model looks up is a vocabulary if it is a weight;
    queries, keys and values in one tensor are not."""
    factors = [(rules[index], str(factor)) for index, factor in nodes if isinstance(index, int)]
    if of_a_weight and any(parse(rule.equation).marks.get(factor) == "@" for rule, factor in factors if rule.equation):
        return "vocabulary"
    if any(rule.cost == "attention" and factor in _HEADS for rule, factor in factors):
        return "heads"
    return "batch" if any(dim == 0 for _, dim in of_inputs) else ""
