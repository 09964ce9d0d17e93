"""Constraint masks and soft-constraint penalties: resolved constraints -> allowed choices and costs in a cost graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardplan.constraints.resolve import AxisConstraint, OperatorConstraint, ResolvedConstraints, TensorConstraint
from shardplan.constraints.types import Constraint
from shardplan.cost.types import CollectivePricer
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.problem import node_order
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.collective import CollectiveKind
from shardplan.planning.reduction import LayoutProblem, Mask, Problems, Reduction, Restricting
from shardplan.solve.problem import Costs, Problem
from shardplan.units import PS_PER_US

_NOT_SHARDED, _PARTIAL = -1, -2


@dataclass(frozen=True, slots=True)
class ConstraintMask:
    """`satisfied[i]`: whether choice i of `node` satisfies `constraint`."""

    constraint: Constraint
    node: Node
    satisfied: Mask


def masks_of(built: CostGraph, constraints: ResolvedConstraints) -> tuple[ConstraintMask, ...]:
    """For every resolved constraint, the mask over the choices of its node.

    Raises `ShardplanError` (`impossible`, `contradiction`) if hard constraints leave a node without any choice.
    """
    found: list[ConstraintMask] = []
    problems: list[Diagnostic] = []
    for asked in constraints.tensors:
        if asked.tensor not in built.kept:
            problems.append(_not_planned(asked))
            continue
        space = built.kept[asked.tensor]
        mask = _dims_mask(space, asked) if isinstance(asked, TensorConstraint) else _axis_mask(space, asked)
        found.append(ConstraintMask(asked.constraint, ("kept", asked.tensor), mask))
    problems += _unknown_factors(built, constraints)
    for wanted in constraints.operators:
        name = built.model.operators[wanted.operator].name
        found.append(ConstraintMask(wanted.constraint, ("operator", name), _splits_mask(built, wanted)))
    problems += _without_repeats(_clashes(built, found)) if not problems else []
    if problems:
        raise ShardplanError(*problems)
    return tuple(found)


def allowed(masks: Iterable[ConstraintMask], *, without: Sequence[Constraint] = ()) -> dict[Node, Mask]:
    """The choices that satisfy every hard constraint except those in `without`."""
    found: dict[Node, Mask] = {}
    for mask in masks:
        if mask.constraint.cost_us is None and mask.constraint not in without:
            found[mask.node] = found.get(mask.node, np.True_) & mask.satisfied
    return found


def penalties_of(masks: Iterable[ConstraintMask]) -> dict[Node, Costs]:
    """Penalties of choices in picoseconds, by node: what they cost beyond their price because they break a soft
    constraint."""
    costs: dict[Node, Costs] = {}
    for mask in masks:
        cost_us = mask.constraint.cost_us
        if cost_us is not None:
            cost = np.where(mask.satisfied, 0.0, np.rint(cost_us * PS_PER_US))
            costs[mask.node] = costs.get(mask.node, 0.0) + cost
    return costs


def penalised(problem: Problem, built: CostGraph, penalties: Mapping[Node, Costs]) -> Problem:
    """`problem` with the penalties added to the costs of its nodes."""
    if not penalties:
        return problem
    costs = [
        cost + penalties[node] if node in penalties else cost
        for node, cost in zip(node_order(built), problem.costs, strict=True)
    ]
    return replace(problem, costs=tuple(costs))


@dataclass(frozen=True)
class ConstraintMasks(Reduction[None]):
    """The reduction to choices that satisfy all hard constraints except `without`, with penalties for breaking soft
    ones."""

    constraints: ResolvedConstraints
    without: Sequence[Constraint] = ()

    def apply(self, problems: Problems) -> tuple[Problems, None]:
        known: dict[int, tuple[CostGraph, tuple[ConstraintMask, ...]]] = {}  # with the graph: it keeps its number

        def masks(built: CostGraph) -> tuple[ConstraintMask, ...]:
            if id(built) not in known:
                known[id(built)] = built, masks_of(built, self.constraints)
            return known[id(built)][1]

        limited = Restricting(lambda built: allowed(masks(built), without=self.without))

        def masked(layouts: LayoutProblem) -> LayoutProblem:
            built = layouts.built
            penalties = penalties_of(masks(built))
            problem = limited(penalised(layouts.problem, built, penalties), built)
            return replace(layouts, problem=problem, penalties=penalties)

        return problems.map(masked), None


@dataclass(frozen=True, slots=True)
class Without:
    """Prices of collectives if some collectives may not run over some mesh axes: those get a price above any other."""

    collectives: CollectivePricer
    forbidden: frozenset[tuple[CollectiveKind, int]]

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        if any((kind, axis) in self.forbidden for axis in axes):
            return float("inf")
        return self.collectives.seconds(kind, axes, payload_bytes)


def _sharded_dims(space: TensorSpace) -> NDArray[np.int64]:
    """The dim that each axis shards in each choice, shape (choices, axes)."""
    count = len(space.kind.shards)
    of_code = [*(shard.dim for shard in space.kind.shards), _NOT_SHARDED, _PARTIAL, _NOT_SHARDED]
    assert len(of_code) == count + 3
    dims: NDArray[np.int64] = np.array(of_code, dtype=np.int64)[space.codes]
    return dims


def _dims_mask(space: TensorSpace, wanted: TensorConstraint) -> Mask:
    dims = _sharded_dims(space)
    mask: Mask = np.ones(len(space), dtype=np.bool_)
    if None not in wanted.dims:
        mask &= (dims != _PARTIAL).all(axis=1)
    for dim, segments in enumerate(wanted.segments):
        if segments:
            others = [code for code, p in enumerate(space.kind.shards) if p.dim == dim and p.segments != segments]
            mask &= ~np.isin(space.codes, others).any(axis=1)
    for dim, axes in enumerate(wanted.dims):
        if axes is not None:
            asked = np.isin(np.arange(dims.shape[1]), axes)
            mask &= ((dims == dim) == asked).all(axis=1)
            if len(axes) > 1:
                for choice in np.flatnonzero(mask).tolist():
                    order = space.layout(choice).order
                    mask[choice] = [axis for axis in order if axis in axes] == list(axes)
    return mask


def _axis_mask(space: TensorSpace, asked: AxisConstraint) -> Mask:
    dims = _sharded_dims(space)[:, asked.axis]
    mask: Mask = dims == asked.dim if asked.dim >= 0 else dims < 0
    return mask


def _splits_mask(built: CostGraph, asked: OperatorConstraint) -> Mask:
    strategies, own = built.operators[asked.operator].strategies, _factors(built, asked.operator)
    mask: Mask = np.ones(len(strategies), dtype=np.bool_)
    for axis, factor, wanted in asked.splits:
        if factor and factor not in own:
            continue  # another operator of the same module has it
        splits = np.array([factor in (choice.factor, choice.label) for choice in strategies.axis_choices])
        mask &= splits[strategies.choices[:, axis]] == wanted
    return mask


def _factors(built: CostGraph, operator: int) -> frozenset[str]:
    """The factors that an operator may split, in every notation, and the notations that plans write (`n;3x768`)."""
    options = built.rules[operator].options
    return frozenset(option.factor for option in options) | frozenset(option.label for option in options)


def _offered(built: CostGraph, constraints: ResolvedConstraints) -> Mapping[Constraint, frozenset[str]]:
    """For each constraint, the factors of all operators that it matches: the matrix product of a module has more
    factors than its sum."""
    offered: dict[Constraint, frozenset[str]] = {}
    for asked in constraints.operators:
        known = offered.get(asked.constraint, frozenset())
        offered[asked.constraint] = known | _factors(built, asked.operator)
    return offered


def _unknown_factors(built: CostGraph, constraints: ResolvedConstraints) -> list[Diagnostic]:
    """One diagnostic for every factor that no matched operator has; it names the operator with the most factors."""
    offered, about = _offered(built, constraints), dict[Constraint, list[OperatorConstraint]]()
    for asked in constraints.operators:
        about.setdefault(asked.constraint, []).append(asked)
    problems = []
    for constraint, together in about.items():
        most = max(together, key=lambda asked: len(_factors(built, asked.operator))).operator
        name, known = built.model.operators[most].name, sorted(_factors(built, most))
        shown = f"'{name}' is {built.rules[most].equation}; it may split {', '.join(known) or 'nothing'}"
        others = len(together) - 1
        too = f", nor has any of the {others} others that match" if others else ""
        problems += [
            error(
                "unknown-factor",
                f"'{name}' has no factor '{factor}' that can be split{too}",
                detail=shown,
                hint=did_you_mean(factor, known),
                **constraint.where,
            )
            for _, factor, _ in together[0].splits
            if factor and factor not in offered[constraint]
        ]
    return problems


def _without_repeats(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The first of all diagnostics of one kind about one constraint, extended by how many more there are."""
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.file, problem.line, problem.column), []).append(problem)
    return [
        replace(first, detail="\n".join(filter(None, (first.detail, f"and {len(rest)} more like this"))))
        if rest
        else first
        for first, *rest in groups.values()
    ]


def _clashes(built: CostGraph, found: Sequence[ConstraintMask]) -> list[Diagnostic]:
    """One diagnostic for every node that hard constraints leave without a choice."""
    by_node: dict[Node, list[ConstraintMask]] = {}
    for mask in found:
        if mask.constraint.cost_us is None:
            by_node.setdefault(mask.node, []).append(mask)
    problems = []
    for together in by_node.values():
        left = together[0].satisfied
        for number, mask in enumerate(together):
            if not mask.satisfied.any():
                problems.append(_impossible(built, mask))
                break
            left = left & mask.satisfied
            if not left.any():
                other = next((b for b in together[:number] if not (b.satisfied & mask.satisfied).any()), None)
                problems.append(_contradiction(built, mask, [other] if other else together[:number]))
                break
    return problems


def _impossible(built: CostGraph, mask: ConstraintMask) -> Diagnostic:
    kind, name = mask.node
    detail = "it is legal by shape, but no operator or store could hold it so"
    if kind == "operator":
        rule = next(r for op, r in zip(built.model.operators, built.rules, strict=True) if op.name == name)
        sizes = ", ".join(f"{factor}={size}" for factor, size in sorted(rule.sizes.items()))
        detail = f"{rule.equation} with {sizes} on {built.cluster.mesh}"
    elif built.kept[name].kind.shape != built.model.tensor(name).shape:
        micro, shape = built.options.microbatches, list(built.kept[name].kind.shape)
        detail = f"it is {shape} in each of {micro} microbatches, and no operator or store could hold that so"
    done = "split" if kind == "operator" else "kept"
    summary = f"{_called(built, mask.node)} cannot be {done} as '{mask.constraint}' asks"
    return error("impossible", summary, detail=detail, **mask.constraint.where)


def _contradiction(built: CostGraph, last: ConstraintMask, others: Sequence[ConstraintMask]) -> Diagnostic:
    earlier = "\n".join(f"'{b.constraint}' ({b.constraint.place})" for b in others)
    summary = f"'{last.constraint}' contradicts what else is asked of {_called(built, last.node)}"
    hint = "remove one of them, or give one a cost"
    return error("contradiction", summary, detail=earlier, hint=hint, **last.constraint.where)


def _called(built: CostGraph, node: Node) -> str:
    """A node by its own name, and a weight by that of the checkpoint first: `'up.weight' ('val_86' in the graph)`."""
    kind, name = node
    weights = {parameter.tensor: parameter.name for parameter in built.model.parameters}
    known = name if kind == "operator" else weights.get(name, name)
    return f"'{known}'" if known == name else f"'{known}' ('{name}' in the graph)"


def _not_planned(asked: TensorConstraint | AxisConstraint) -> Diagnostic:
    summary = f"'{asked.tensor}' is a small constant, present on every device"
    return error("impossible", summary, **asked.constraint.where)
