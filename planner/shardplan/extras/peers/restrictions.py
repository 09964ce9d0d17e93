"""Restrictions to the choices that another planner has.

Prices of another planner make sense among its own choices alone. Where computation is free, doing everything everywhere
is best; so Alpa and Slapo split every matrix product. What such a planner cannot express (partial values between
operators, a copy gathered once for several readers, collectives inside an operator) has no price in its model, and is
left out. Constraints of the user take precedence.

| model  | matrix products          | values        | inputs, outputs | moves                               |
|--------|--------------------------|---------------|-----------------|-------------------------------------|
| alpa   | split by every axis      |               |                 |                                     |
| slapo  | split, last two dims     | never partial | whole           | each reader pays for its own        |
| hidet  |                          | never partial | inputs whole    | each reader's own, weights stay put |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.problem import node_order
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import P, R
from shardplan.planning.reduction import Allowed, Mask, restrict
from shardplan.solve.problem import Edge, Problem


def alpa(problem: Problem, built: CostGraph) -> Problem:
    """The problem of `built` with the choices that Alpa has."""
    return _restricted(problem, built, (alpa_products,))


def slapo(problem: Problem, built: CostGraph) -> Problem:
    """The problem of `built` with the choices that Slapo has."""
    rules = (
        alpa_products,
        _products_of_the_last_dims,
        _whole_values,
        _no_inner_collectives,
        _whole_inputs,
        _whole_outputs,
    )
    return _served_as_kept(_restricted(problem, built, rules), built, frozenset())


def hidet(problem: Problem, built: CostGraph) -> Problem:
    """The problem of `built` with the choices that Hidet has."""
    restricted = _restricted(problem, built, (_whole_values, _no_inner_collectives, _whole_inputs))
    return _served_as_kept(restricted, built, {parameter.tensor for parameter in built.model.parameters})


def alpa_products(built: CostGraph) -> Allowed:
    """The matrix products Alpa knows: every mesh axis splits one, and no two axes the same factor of it."""
    allowed: dict[Node, Mask] = {}
    real = built.cluster.mesh.real_axes
    for operator, rule, space in zip(built.model.operators, built.rules, built.operators, strict=True):
        if rule.cost == "gemm":
            distinct = [len(set(row)) == len(real) for row in space.strategies.choices[:, real].tolist()]
            everywhere = space.strategies.work == built.cluster.mesh.size
            allowed["operator", operator.name] = everywhere & np.array(distinct, dtype=np.bool_)
    return allowed


def _restricted(problem: Problem, built: CostGraph, rules: Sequence[Callable[[CostGraph], Allowed]]) -> Problem:
    """`problem` under `rules`, each at the nodes where it leaves a choice."""
    number = built.node_numbers
    for rule in rules:
        possible = (
            (node, mask) for node, mask in rule(built).items() if np.isfinite(problem.costs[number[node]][mask]).any()
        )
        problem = restrict(problem, built, dict(possible))
    return problem


def _products_of_the_last_dims(built: CostGraph) -> Allowed:
    """Matrix products whose operands and results are split in their last two dims alone."""
    allowed: dict[Node, Mask] = {}
    for operator, rule, space in zip(built.model.operators, built.rules, built.operators, strict=True):
        if rule.cost == "gemm":
            mask: Mask = np.ones(len(space), dtype=np.bool_)
            for side in ("operands", "results"):
                for position, tensor in enumerate(getattr(space.strategies, side)):
                    if tensor is not None:
                        mask &= _in_last_two(tensor)[space.strategies.layout_codes(side, position)].all(axis=1)
            allowed["operator", operator.name] = mask
    return allowed


def _in_last_two(space: TensorSpace) -> Mask:
    """For every placement code of a tensor, whether it leaves the leading dims alone."""
    first = len(space.kind.shape) - 2
    return np.array([*(shard.dim >= first for shard in space.kind.shards), True, True, True])


def _whole_values(built: CostGraph) -> Allowed:
    """Values are kept without partial sums."""
    return {("kept", name): (space.codes != space.code(P())).all(axis=1) for name, space in built.kept.items()}


def _no_inner_collectives(built: CostGraph) -> Allowed:
    """Operators have no collectives inside."""
    spaces = zip(built.model.operators, built.operators, strict=True)
    return {("operator", operator.name): space.inner_s.sum(axis=(0, 1)) == 0 for operator, space in spaces}


def _whole(built: CostGraph, names: Sequence[str]) -> Allowed:
    return {
        ("kept", name): (built.kept[name].codes == built.kept[name].code(R)).all(axis=1)
        for name in names
        if name in built.kept
    }


def _whole_inputs(built: CostGraph) -> Allowed:
    return _whole(built, built.model.inputs)


def _whole_outputs(built: CostGraph) -> Allowed:
    return _whole(built, built.model.outputs)


def _served_as_kept(problem: Problem, built: CostGraph, fixed: Collection[str]) -> Problem:
    """Tensors are served as they are kept; those in `fixed` are read where nothing has to move for that."""
    nodes = node_order(built)
    tables: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def limited(edge: Edge) -> Edge:
        (kind, name), (reader, _) = nodes[edge.u], nodes[edge.v]
        if kind == "operator" or not (reader == "served" or name in fixed):
            return edge
        key = (id(edge.table), id(built.kept[name]), id(built.served.get(name)), reader == "served")
        if key not in tables:
            as_kept = edge.table <= 0
            if reader == "served":
                as_kept = built.kept[name].forward[:, None] == built.served[name].forward[None, :]
            tables[key] = np.where(as_kept, edge.table, np.inf)
        return edge._replace(table=tables[key])

    return replace(problem, edges=tuple(map(limited, problem.edges)))
