"""Restrictions of the choices: to what a caller allows, and to what another planner's cost model can express.

Prices of another planner make sense among its own choices alone. Where computation is free, doing everything
everywhere is best; so Alpa and Slapo split every matrix product. What such a planner cannot express (partial values
between operators, a copy gathered once for several readers, collectives inside an operator) has no price in its model,
and is left out. Constraints of the user take precedence.

| model  | matrix products          | values        | inputs, outputs | moves                               |
|--------|--------------------------|---------------|-----------------|-------------------------------------|
| alpa   | split by every axis      |               |                 |                                     |
| slapo  | split, last two dims     | never partial | whole           | each reader pays for its own        |
| hidet  |                          | never partial | inputs whole    | each reader's own, weights stay put |
| trtllm |                          |               |                 |                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.named import CostModel
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.problem import node_order
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import P, R
from shardplan.planning.recipes import alpa_products
from shardplan.planning.reduction import Allowed, Layouts, Mask, Posed, Reduction, Restrict, restrict
from shardplan.solve.problem import Edge, Problem


@dataclass(frozen=True)
class Restriction(Reduction[None]):
    """The choices that a caller allows: those of a recipe, of another plan, of a stage's borders."""

    restrict: Restrict | None

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        return posed.map(self._restricted) if self.restrict else posed, None

    def _restricted(self, layouts: Layouts) -> Layouts:
        assert self.restrict is not None
        problem = restrict(layouts.problem, layouts.built, self.restrict(layouts.built))
        return replace(layouts, problem=problem)


@dataclass(frozen=True)
class KnownToPlanner(Reduction[None]):
    """The choices that the planner of a cost model knows."""

    cost_model: CostModel

    def apply(self, posed: Posed) -> tuple[Posed, None]:
        return posed.map(self._known), None

    def _known(self, layouts: Layouts) -> Layouts:
        return replace(layouts, problem=as_known(layouts.problem, layouts.built, self.cost_model))


def as_known(problem: Problem, built: CostGraph, cost_model: CostModel) -> Problem:
    """`problem` without what the planner of that cost model does not know, where that leaves a choice."""
    number = {node: index for index, node in enumerate(node_order(built))}
    for rule in _CHOICES[cost_model.name]:
        possible = (
            (node, mask) for node, mask in rule(built).items() if np.isfinite(problem.costs[number[node]][mask]).any()
        )
        problem = restrict(problem, built, dict(possible))
    if cost_model.name in _EACH_FOR_ITSELF:
        weights = {parameter.tensor for parameter in built.model.parameters} if cost_model.name == "hidet" else set()
        problem = _each_for_itself(problem, built, weights)
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


def _nothing_inside(built: CostGraph) -> Allowed:
    """Operators have no collectives inside."""
    spaces = zip(built.model.operators, built.operators, strict=True)
    return {("operator", operator.name): space.inner_s == 0 for operator, space in spaces}


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


_CHOICES: Final[Mapping[str, Sequence[Callable[[CostGraph], Allowed]]]] = {
    "shardplan": (),
    "alpa": (alpa_products,),
    "slapo": (alpa_products, _products_of_the_last_dims, _whole_values, _nothing_inside, _whole_inputs, _whole_outputs),
    "hidet": (_whole_values, _nothing_inside, _whole_inputs),
    "trtllm": (),
}
_EACH_FOR_ITSELF: Final = frozenset({"slapo", "hidet"})


def _each_for_itself(problem: Problem, built: CostGraph, fixed: Collection[str]) -> Problem:
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
        return replace(edge, table=tables[key])

    return replace(problem, edges=tuple(map(limited, problem.edges)))
