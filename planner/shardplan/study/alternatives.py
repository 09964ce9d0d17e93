"""Alternatives: every other choice for some tensors or an operator, with everything else solved again.

Differences are those of scheduled steps. An alternative is the better of two plans: one at the plan's multipliers with
everything else free, and one with all other tensors as in the plan. A search from scratch may give another cost. For a
plan with a target format of `shardplan export`, everything else is free within what that format can express: with the
plan's roles of the axes, or, if these do not allow the alternative, with roles that do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardplan.folding import folded, pattern
from shardplan.graph.build import CostGraph, Node
from shardplan.layout.text import to_text
from shardplan.plan.assemble import PricedAssignment, finished
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.chain import Answer
from shardplan.planning.decided import Decided
from shardplan.planning.expressible import Chosen, alike
from shardplan.planning.judge import judged
from shardplan.planning.reduction import Allowed, Restrict, both
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import RUNTIMES, Roles, Runtime
from shardplan.planning.search import NoPlanError
from shardplan.planning.standing import OnProgress, Turn
from shardplan.units import NS_PER_S, size

_MOST = 16
_NAMED = 3
Limits = Sequence[tuple[Runtime, Roles]]
"""The roles that the axes may have for the target format of a plan; empty: no limits."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """`choice`: layout or split, as people write it. `cost_ns`, `memory_bytes`: the difference from the plan, negative
    where the alternative is better (the plan is then not optimal); `also`: other tensors that change with it. For an
    impossible alternative these are `None` and `why_not` has the reason."""

    choice: str
    chosen: bool
    cost_ns: int | None
    memory_bytes: int | None
    also: tuple[str, ...] = ()
    why_not: str = ""


def alternatives(
    planner: Planner, plan: Plan, nodes: Sequence[Node], on_progress: OnProgress | None = None
) -> tuple[Alternative, ...]:
    """The choices that `nodes` (of one kind: kept tensors of one shape, or operators with one equation) have in common.

    The choice of `plan` comes first, then the others by cost, the cheapest first. Raises `ShardplanError` as
    `plan_model` if there is no plan at all.
    """
    best, limits = _as_planned(planner, plan)
    if best.solution.outcome == "interrupted":
        raise KeyboardInterrupt
    if best.solution.choices is None:
        raise planner.refusal(best)
    choice, ours = best.layouts.chosen(best.solution.choices), _priced([best], planner)
    choices = {node: _choices(best.layouts.built, node) for node in nodes}
    named = [text for text in choices[nodes[0]] if all(text in masks for masks in choices.values())]
    taken = Counter(text for node, masks in choices.items() for text, mask in masks.items() if mask[choice[node]])
    (usual, _), *others = taken.most_common()
    tried = sorted(named, key=lambda text: (_distance(text, usual), text))[:_MOST]
    tried = [text for text in tried if text != usual or others]
    turn, found = Turn(on_progress, len(tried)), []
    for text in tried:
        turn.next(text)
        wanted = {node: masks[text] for node, masks in choices.items()}
        found.append(_try(planner, plan, wanted, text, ours, limits))
    found += _impossible(best.layouts.built, nodes[0], named)
    found.sort(key=lambda one: (one.cost_ns is None, one.cost_ns or 0, one.choice))
    chosen = "; ".join(f"{text} ×{count}" for text, count in taken.most_common()) if others else usual
    return (Alternative(chosen, chosen=True, cost_ns=0, memory_bytes=0), *found)


def _as_planned(planner: Planner, plan: Plan) -> tuple[Answer, Limits]:
    """The decisions of `plan`, and the possible roles of the axes for its target format, the plan's roles first. For a
    plan without a target, or that its format cannot express, nothing is limited."""
    multipliers, decided = plan.summary.multipliers, Decided.of_plan(plan).fixed
    best, target = planner.solve_at(multipliers, decided), planner.instance.options.target
    if not target or best.solution.choices is None:
        return best, ()
    every = [(RUNTIMES[target], roles) for roles in RUNTIMES[target].arrangements(plan.mesh)]
    said = [one for one in every if _is_said(Arrangement(*one)(best.layouts.built), decided(best.layouts.built))]
    return best, (*said, *(one for one in every if one not in said)) if said else ()


def _is_said(allowed: Allowed, wanted: Allowed) -> bool:
    """Whether every node has a choice in both."""
    return all((mask & allowed[node]).any() for node, mask in wanted.items() if node in allowed)


def _try(
    planner: Planner,
    plan: Plan,
    wanted: Mapping[Node, NDArray[np.bool_]],
    text: str,
    ours: PricedAssignment,
    limits: Limits,
) -> Alternative:
    def pin(_: CostGraph) -> Allowed:
        return dict(wanted)

    def near(built: CostGraph) -> Allowed:
        kept = {node: mask for node, mask in Decided.of_plan(plan).fixed(built).items() if node[0] == "kept"}
        return kept | dict(wanted)

    fitting = [one for one in limits if _is_said(Arrangement(*one)(ours.built), dict(wanted))]
    if limits and not fitting:
        why = f"not possible: {planner.instance.options.target} cannot express it"
        return Alternative(text, False, None, None, why_not=why)
    for roles in fitting or (None,):
        answers = [_solved(planner, plan, restriction, roles) for restriction in (pin, near)]
        if answers[0].solution.choices is not None or answers[0].solution.outcome == "interrupted":
            break
    if any(one.solution.outcome == "interrupted" for one in answers):
        raise KeyboardInterrupt
    solution = answers[0].solution
    if solution.choices is None:
        short = solution.shortfall_bytes
        why = f"does not fit: {size(short)} too much" if short else _contradicted(planner)
        return Alternative(text, False, None, None, why_not=why if solution.outcome == "infeasible" else "not decided")
    theirs = _priced([one for one in answers if one.solution.choices is not None], planner)
    cost_ns = round((theirs.step_s - ours.step_s) * NS_PER_S)
    memory_bytes = theirs.memory.total - ours.memory.total
    also = _changes(ours.built, [*wanted], ours.choice, theirs.choice)
    return Alternative(text, False, cost_ns, memory_bytes, also)


def _contradicted(planner: Planner) -> str:
    target = planner.instance.options.target
    return f"contradicts the constraints, or what {target} can express" if target else "contradicts the constraints"


def _solved(planner: Planner, plan: Plan, restriction: Restrict, roles: tuple[Runtime, Roles] | None) -> Answer:
    """The best assignment under a restriction, among those that a format can express with these roles."""
    multipliers = plan.summary.multipliers

    def ask(limits: Restrict) -> Answer:
        found = planner.solve_at(multipliers, both(limits, restriction))
        if found.solution.choices is None:
            raise NoPlanError(found)
        return found

    def chosen(one: Answer) -> Chosen:
        assert one.solution.choices is not None
        return one.layouts.built, one.layouts.chosen(one.solution.choices)

    if roles is None:
        return planner.solve_at(multipliers, restriction)
    try:
        return alike(*roles, ask, chosen)[1]
    except NoPlanError as none:
        return none.answer


def _priced(solved: Sequence[Answer], planner: Planner) -> PricedAssignment:
    """The best plan of some answers, with the gradient buckets that a plan would have."""
    limit_bytes = planner.limit_bytes
    plans = [plan for answer in solved for plan in judged(answer.candidates, limit_bytes, planner.known)]
    best = min(plans, key=lambda one: (not one.keeps(limit_bytes), one.step_s))
    return finished(best.priced, limit_bytes)


def _choices(built: CostGraph, node: Node) -> dict[str, NDArray[np.bool_]]:
    """Text of every choice of a node -> which of its choices that is."""
    kind, name = node
    if kind == "operator":
        number = next(i for i, operator in enumerate(built.model.operators) if operator.name == name)
        space = built.operators[number]
        texts = [_split_text(space.strategies.labels(choice), built) for choice in range(len(space))]
    else:
        texts = [layout_text(built, name, choice) for choice in range(len(built.kept[name]))]
    return {text: np.array([one == text for one in texts]) for text in dict.fromkeys(texts)}


def _split_text(labels: Sequence[str], built: CostGraph) -> str:
    names = built.cluster.mesh.names
    return (
        ", ".join(f"{label}@{axis}" for label, axis in zip(labels, names, strict=True) if label != "-") or "replicated"
    )


def layout_text(built: CostGraph, name: str, choice: int) -> str:
    """The layout of a kept choice, that of a weight in checkpoint orientation."""
    perm = next((p.perm for p in built.model.parameters if p.tensor == name), ())
    return to_text(checkpoint_layout(built.kept[name].layout(choice).forward, perm), built.cluster.mesh)


def _distance(text: str, chosen: str) -> int:
    return len(set(text.split(", ")) ^ set(chosen.split(", ")))


def _impossible(built: CostGraph, node: Node, named: Collection[str]) -> Iterator[Alternative]:
    """Single shards of a tensor that its shape does not allow."""
    if node[0] == "operator":
        return
    perm = next((p.perm for p in built.model.parameters if p.tensor == node[1]), ())
    for dim, extent in enumerate(built.kept[node[1]].kind.shape):
        for axis in built.cluster.mesh.axes:
            text = f"S({perm[dim] if perm else dim})@{axis.name}"
            if axis.size > 1 and extent % axis.size and text not in named:
                why = f"not possible: size {extent} does not divide by {axis.name}={axis.size}"
                yield Alternative(text, False, None, None, why_not=why)
    for axis in built.cluster.mesh.axes:
        if axis.size == 1:
            why = f"not possible: {axis.name} has size 1"
            yield Alternative(f"S(any)@{axis.name}", False, None, None, why_not=why)


def _changes(
    built: CostGraph, nodes: Sequence[Node], before: Mapping[Node, int], after: Mapping[Node, int]
) -> tuple[str, ...]:
    """Other tensors whose layouts change with it, the largest group of equal changes first."""
    weights = {p.tensor: p.name for p in built.model.parameters}
    modules = {name: built.model.operators[maker[0]].module for name, maker in built.flow.makers.items()}
    names = {name: f"output of {module}" for name, module in modules.items() if module} | weights
    groups: dict[tuple[str, str], list[str]] = {}
    for node, choice in after.items():
        if node[0] == "kept" and node not in nodes and choice != before[node]:
            text = layout_text(built, node[1], choice)
            if text != layout_text(built, node[1], before[node]):
                name = names.get(node[1], node[1])
                groups.setdefault((pattern(name), text), []).append(name)
    everything = [names.get(name, name) for name in built.kept]
    known = set(weights.values())
    ranked = sorted(groups.items(), key=lambda group: (-(group[1][0] in known), -len(group[1]), group[0]))
    shown = [f"{folded(list(dict.fromkeys(group)), everything)} → {text}" for (_, text), group in ranked[:_NAMED]]
    return (*shown, f"and {len(ranked) - _NAMED} more") if len(ranked) > _NAMED else tuple(shown)
