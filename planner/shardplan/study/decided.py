"""What a plan decides, among the choices that a cost graph offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.operators import OperatorSpace
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.layout import Layout
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.planning.reduction import Allowed

Mask = NDArray[np.bool_]


def masks_of(plan: Plan, built: CostGraph) -> dict[Node, Mask]:
    """For every operator and tensor of `plan`, which choices of `built` are what it decides; none where it is not
    offered there."""
    masks: dict[tuple[object, ...], Mask] = {}
    found: dict[Node, Mask] = {}
    operators = {operator.name: operator for operator in plan.operators}
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        wanted = operators[operator.name]
        key = (id(space), wanted.split, wanted.reads, wanted.makes)
        if key not in masks:
            masks[key] = _as_split(space, wanted)
        found["operator", operator.name] = masks[key]
    for node, tensor_space, layout in _layouts(plan, built):
        place = (id(tensor_space), layout)
        if place not in masks:
            masks[place] = np.array([tensor_space.layout(choice) == layout for choice in range(len(tensor_space))])
        found[node] = masks[place]
    return found


def fixed_to(plan: Plan) -> Callable[[CostGraph], Allowed]:
    """The restriction to what `plan` decides; where a cost graph no longer offers that, to nothing."""
    return lambda built: {node: mask for node, mask in masks_of(plan, built).items() if mask.any()}


def _layouts(plan: Plan, built: CostGraph) -> Iterator[tuple[Node, TensorSpace, Layout]]:
    """What is decided of a tensor in all the places where it rests, and of the optimizer's state of it."""
    for tensor in plan.tensors:
        for kind, spaces, layout in (
            ("kept", built.kept, tensor.layout),
            ("served", built.served, tensor.served),
            ("updated", built.updated, tensor.optimizer or tensor.layout),
        ):
            if tensor.name in spaces:
                yield (kind, tensor.name), spaces[tensor.name], layout


def _as_split(space: OperatorSpace, wanted: OperatorDecision) -> Mask:
    """Strategies with the same label; of those that read and make the same layouts there may be another one instead."""
    strategies = space.strategies
    same = np.array([strategies.labels(number) == wanted.split for number in range(len(strategies))])
    if same.any():
        return same

    def alike(number: int) -> bool:
        reads = tuple(strategies.layout("operands", i, number) for i in range(len(wanted.reads)))
        makes = tuple(strategies.layout("results", i, number) for i in range(len(wanted.makes)))
        return (reads, makes) == (wanted.reads, wanted.makes)

    return np.array([alike(number) for number in range(len(strategies))])
