"""Inputs of planning one stage: its memory limit, weight bytes, constraints and the layouts at its borders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.constraints.resolve import resolve
from shardplan.constraints.types import Constraint
from shardplan.cost.recipes import state_bytes
from shardplan.errors import ShardplanError
from shardplan.graph.build import CostGraph
from shardplan.graph.options import PlanOptions
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.plan.types import TensorDecision
from shardplan.planning.reduction import Allowed


def weight_bytes(model: Model, operators: Iterable[int], options: PlanOptions) -> float:
    """Bytes of the weights that these operators read, all devices together and each weight once; in training with
    gradients and optimizer state."""
    weights = {parameter.tensor: parameter for parameter in model.parameters}
    total = 0.0
    for name in sorted({name for index in operators for name in model.operators[index].inputs if name in weights}):
        tensor = model.tensor(name)
        if options.training and weights[name].trainable and tensor.is_float:
            each = state_bytes(options.optimizer, tensor.dtype)
            total += tensor.elements * (each.parameter + each.gradient + each.state)
        else:
            total += tensor.size_bytes
    return total


def constraints_on(constraints: Sequence[Constraint], model: Model, mesh: Mesh) -> tuple[Constraint, ...]:
    """The constraints about something that `model`, a part of a larger one, has."""
    found = []
    for constraint in constraints:
        try:
            resolve([constraint], model, mesh)
        except ShardplanError as problem:
            if all(diagnostic.code == "no-match" for diagnostic in problem.diagnostics):
                continue
        found.append(constraint)
    return tuple(found)


def kept_so(built: CostGraph, ends: Mapping[str, Layout]) -> Allowed:
    """The restriction to these tensors being kept in these layouts and no others."""
    return {("kept", name): _equals(built.kept[name], layout) for name, layout in ends.items()}


def all_kept_so(built: CostGraph, decided: Mapping[str, TensorDecision]) -> Allowed:
    """The restriction to tensors resting and being served as they do elsewhere."""
    masks: dict[tuple[int, Layout], NDArray[np.bool_]] = {}

    def mask(space: TensorSpace, layout: Layout) -> NDArray[np.bool_]:
        if (id(space), layout) not in masks:
            masks[id(space), layout] = _equals(space, layout)
        return masks[id(space), layout]

    kept = {("kept", name): mask(built.kept[name], like.layout) for name, like in decided.items() if name in built.kept}
    served = {
        ("served", name): mask(built.served[name], like.served)
        for name, like in decided.items()
        if name in built.served
    }
    return {**kept, **served}


def _equals(space: TensorSpace, layout: Layout) -> NDArray[np.bool_]:
    return np.array([space.layout(choice) == layout for choice in range(len(space))])
