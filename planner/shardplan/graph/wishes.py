"""Wishes of the user as restrictions and charges of the choices in a cost graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardplan.constraints.resolve import AxisWish, OperatorWish, TensorWish, Wishes
from shardplan.constraints.types import Constraint
from shardplan.cost.types import CollectivePricer, Floats
from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.problem import node_order
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.collective import CollectiveKind
from shardplan.solve.problem import Costs, Problem

Mask = NDArray[np.bool_]
_PICOSECONDS_PER_US = 1e6
_NOT_SHARDED, _PARTIAL = -1, -2


@dataclass(frozen=True, slots=True)
class Bearing:
    """What one constraint means for one node: `mask`, the choices that satisfy it."""

    constraint: Constraint
    node: Node
    mask: Mask


def bearings(built: CostGraph, wishes: Wishes) -> tuple[Bearing, ...]:
    """What every wish means for the choices of its node.

    Raises `ShardplanError` (`impossible`, `contradiction`) when hard ones leave a node without any choice.
    """
    found: list[Bearing] = []
    problems: list[Diagnostic] = []
    for wish in wishes.tensors:
        if wish.tensor not in built.kept:
            problems.append(_not_planned(wish))
            continue
        space = built.kept[wish.tensor]
        mask = _dims_mask(space, wish.dims) if isinstance(wish, TensorWish) else _axis_mask(space, wish)
        found.append(Bearing(wish.constraint, ("kept", wish.tensor), mask))
    problems += _unknown_factors(built, wishes)
    for wanted in wishes.operators:
        name = built.model.operators[wanted.operator].name
        found.append(Bearing(wanted.constraint, ("operator", name), _splits_mask(built, wanted)))
    problems += _without_repeats(_clashes(built, found)) if not problems else []
    if problems:
        raise ShardplanError(*problems)
    return tuple(found)


def allowed(bearings: Iterable[Bearing], *, without: Sequence[Constraint] = ()) -> dict[Node, Mask]:
    """The choices that satisfy every hard constraint (but for `without`)."""
    masks: dict[Node, Mask] = {}
    for bearing in bearings:
        if bearing.constraint.cost_us is None and bearing.constraint not in without:
            masks[bearing.node] = masks.get(bearing.node, np.True_) & bearing.mask
    return masks


def charged(problem: Problem, built: CostGraph, charges: Mapping[Node, Costs]) -> Problem:
    """`problem` with the charges added to the costs of its nodes."""
    if not charges:
        return problem
    order = node_order(built)
    costs = [cost + charges[node] if node in charges else cost for node, cost in zip(order, problem.costs, strict=True)]
    return replace(problem, costs=tuple(costs))


def charges_of(bearings: Iterable[Bearing]) -> dict[Node, Costs]:
    """Picoseconds that the choices of nodes cost beyond their price, because they break a soft constraint."""
    costs: dict[Node, Costs] = {}
    for bearing in bearings:
        cost_us = bearing.constraint.cost_us
        if cost_us is not None:
            cost = np.where(bearing.mask, 0.0, np.rint(cost_us * _PICOSECONDS_PER_US))
            costs[bearing.node] = costs.get(bearing.node, 0.0) + cost
    return costs


@dataclass(frozen=True, slots=True)
class Without:
    """Prices of collectives where some may not run over some axes: these cost more than anything."""

    collectives: CollectivePricer
    forbidden: frozenset[tuple[CollectiveKind, int]]

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        if any((kind, axis) in self.forbidden for axis in axes):
            return float("inf")
        return self.collectives.seconds(kind, axes, payload_bytes)

    def seconds_array(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: Floats) -> Floats:
        if any((kind, axis) in self.forbidden for axis in axes):
            return np.full(np.shape(payload_bytes), np.inf)
        return self.collectives.seconds_array(kind, axes, payload_bytes)


def _sharded_dims(space: TensorSpace) -> NDArray[np.int64]:
    """The dim that each axis shards in each choice, shape (choices, axes)."""
    count = len(space.kind.shards)
    of_code = [*(shard.dim for shard in space.kind.shards), _NOT_SHARDED, _PARTIAL, _NOT_SHARDED]
    assert len(of_code) == count + 3
    dims: NDArray[np.int64] = np.array(of_code, dtype=np.int64)[space.codes]
    return dims


def _dims_mask(space: TensorSpace, wanted: Sequence[tuple[int, ...] | None]) -> Mask:
    dims = _sharded_dims(space)
    mask: Mask = np.ones(len(space), dtype=np.bool_)
    if None not in wanted:
        mask &= (dims != _PARTIAL).all(axis=1)
    for dim, axes in enumerate(wanted):
        if axes is not None:
            asked = np.isin(np.arange(dims.shape[1]), axes)
            mask &= ((dims == dim) == asked).all(axis=1)
            if len(axes) > 1:
                for choice in np.flatnonzero(mask).tolist():
                    order = space.layout(choice).order
                    mask[choice] = [axis for axis in order if axis in axes] == list(axes)
    return mask


def _axis_mask(space: TensorSpace, wish: AxisWish) -> Mask:
    dims = _sharded_dims(space)[:, wish.axis]
    mask: Mask = dims == wish.dim if wish.dim >= 0 else dims < 0
    return mask


def _splits_mask(built: CostGraph, wish: OperatorWish) -> Mask:
    strategies, own = built.operators[wish.operator].strategies, _factors(built, wish.operator)
    mask: Mask = np.ones(len(strategies), dtype=np.bool_)
    for axis, factor, wanted in wish.splits:
        if factor and factor not in own:
            continue  # another operator of the same module has it
        splits = np.array([choice.factor == factor for choice in strategies.axis_choices])
        mask &= splits[strategies.choices[:, axis]] == wanted
    return mask


def _factors(built: CostGraph, operator: int) -> frozenset[str]:
    return frozenset(option.factor for option in built.rules[operator].options)


def _offered(built: CostGraph, wishes: Wishes) -> Mapping[Constraint, frozenset[str]]:
    """Per constraint the factors of all operators that it is about: the product of a module has more than its sum."""
    offered: dict[Constraint, frozenset[str]] = {}
    for wish in wishes.operators:
        known = offered.get(wish.constraint, frozenset())
        offered[wish.constraint] = known | _factors(built, wish.operator)
    return offered


def _unknown_factors(built: CostGraph, wishes: Wishes) -> list[Diagnostic]:
    """One diagnostic for every factor that no operator of its constraint has, about the operator with the most."""
    offered, about = _offered(built, wishes), dict[Constraint, list[OperatorWish]]()
    for wish in wishes.operators:
        about.setdefault(wish.constraint, []).append(wish)
    problems = []
    for constraint, together in about.items():
        most = max(together, key=lambda wish: len(_factors(built, wish.operator))).operator
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
    """Of what is wrong in one way with one constraint the first, which says how many more there are."""
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.file, problem.line, problem.column), []).append(problem)
    return [
        replace(first, detail="\n".join(filter(None, (first.detail, f"and {len(rest)} more like this"))))
        if rest
        else first
        for first, *rest in groups.values()
    ]


def _clashes(built: CostGraph, found: Sequence[Bearing]) -> list[Diagnostic]:
    """One diagnostic for every node that hard constraints leave without a choice."""
    by_node: dict[Node, list[Bearing]] = {}
    for bearing in found:
        if bearing.constraint.cost_us is None:
            by_node.setdefault(bearing.node, []).append(bearing)
    problems = []
    for node, together in by_node.items():
        left = together[0].mask
        for number, bearing in enumerate(together):
            if not bearing.mask.any():
                problems.append(_impossible(built, bearing))
                break
            left = left & bearing.mask
            if not left.any():
                other = next((b for b in together[:number] if not (b.mask & bearing.mask).any()), None)
                problems.append(_contradiction(node, bearing, [other] if other else together[:number]))
                break
    return problems


def _impossible(built: CostGraph, bearing: Bearing) -> Diagnostic:
    kind, name = bearing.node
    detail = "it is legal by shape, but no operator or store could hold it so"
    if kind == "operator":
        rule = next(r for op, r in zip(built.model.operators, built.rules, strict=True) if op.name == name)
        sizes = ", ".join(f"{factor}={size}" for factor, size in sorted(rule.sizes.items()))
        detail = f"{rule.equation} with {sizes} on {built.cluster.mesh}"
    elif built.kept[name].kind.shape != built.model.tensor(name).shape:
        micro, shape = built.options.microbatches, list(built.kept[name].kind.shape)
        detail = f"it is {shape} in each of {micro} microbatches, and no operator or store could hold that so"
    summary = f"'{name}' cannot be {'split' if kind == 'operator' else 'kept'} as '{bearing.constraint}' asks"
    return error("impossible", summary, detail=detail, **bearing.constraint.where)


def _contradiction(node: Node, last: Bearing, others: Sequence[Bearing]) -> Diagnostic:
    earlier = "\n".join(f"'{b.constraint}' ({b.constraint.place})" for b in others)
    summary = f"'{last.constraint}' contradicts what else is asked of '{node[1]}'"
    hint = "remove one of them, or give one a cost"
    return error("contradiction", summary, detail=earlier, hint=hint, **last.constraint.where)


def _not_planned(wish: TensorWish | AxisWish) -> Diagnostic:
    summary = f"'{wish.tensor}' is a small constant, present on every device"
    return error("impossible", summary, **wish.constraint.where)
