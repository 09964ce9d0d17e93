"""Facts about a model for runtimes that shard modules: which operators read which weights, and in which module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shardplan.graph.build import CostGraph
from shardplan.model.types import Model, Operator, Parameter

VIEWS: Final = frozenset({"Transpose", "Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"})
"""Operators whose result is still the same weight."""
_DIMS_KEPT: Final = frozenset({"Cast", "Identity"})


@dataclass(frozen=True, slots=True)
class WeightView:
    """A weight, or a view of it: dim i is dim `dims[i]` of the checkpoint's tensor; `None` if dims were merged or
    added."""

    parameter: Parameter
    rank: int
    dims: tuple[int, ...] | None


@dataclass(frozen=True)
class Facts:
    """`views`: weights and their views by the tensor's name. `matrices`: by operator number, the operand position of
    the first weight with two or more dims that the operator computes with. `is_view`: operators that only make views.
    `live`: values that depend on inputs and on weights; the program computes other values (masks, positions) by itself.
    """

    model: Model
    views: Mapping[str, WeightView]
    matrices: Mapping[int, int]
    is_view: frozenset[int]
    live: frozenset[str]
    modules: Mapping[int, str] = field(default_factory=dict)
    """The module of every operator in `matrices`."""

    def view(self, index: int) -> WeightView:
        """The weight that an operator of `matrices` reads."""
        return self.views[self.model.operators[index].inputs[self.matrices[index]]]


def owner_of(parameter: str) -> str:
    """The module of a parameter; a parameter that is not called `weight` or `bias` stands for itself."""
    module, _, last = parameter.rpartition(".")
    return module if module and last in {"weight", "bias"} else parameter


def wildcard(name: str) -> str:
    """`model.layers.0.q_proj` -> `model.layers.*.q_proj`: the pattern of a rule for the module of all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)|(?<=\.)\d+$", "*", name)


def facts_of(built: CostGraph) -> Facts:
    """The facts about the model of a cost graph."""
    model = built.model
    views = {p.tensor: _whole(model, p) for p in model.parameters if p.tensor in model.tensors}
    matrices: dict[int, int] = {}
    is_view: set[int] = set()
    fed, weighted = set(model.inputs), set(views)
    for index, operator in enumerate(model.operators):
        for depending in (fed, weighted):
            if not depending.isdisjoint(operator.inputs):
                depending.update(filter(None, operator.outputs))
        read = [(at, views[name]) for at, name in enumerate(operator.inputs) if name in views]
        if not read:
            continue
        data = [name for name in operator.inputs if name and name not in views and name in built.kept]
        if operator.op_type in VIEWS and not data:
            is_view.add(index)
            views |= dict.fromkeys(filter(None, operator.outputs), _seen(operator, read[0][1]))
            continue
        large = [at for at, view in read if view.rank > 1]
        if large:
            matrices[index] = large[0]
    modules = {
        index: _module(views[model.operators[index].inputs[at]].parameter, model.operators[index])
        for index, at in matrices.items()
    }
    return Facts(model, views, matrices, frozenset(is_view), frozenset(fed & weighted), modules)


def _whole(model: Model, parameter: Parameter) -> WeightView:
    rank = len(model.tensor(parameter.tensor).shape)
    return WeightView(parameter, rank, parameter.perm or tuple(range(rank)))


def _seen(operator: Operator, view: WeightView) -> WeightView:
    """A weight as seen through one more operator."""
    if operator.op_type in _DIMS_KEPT:
        return view
    if operator.op_type == "Transpose" and view.dims is not None:
        perm = operator.attributes.get("perm")
        order = [int(str(dim)) for dim in perm] if isinstance(perm, list | tuple) else range(len(view.dims))[::-1]
        return WeightView(view.parameter, view.rank, tuple(view.dims[dim] for dim in order))
    return WeightView(view.parameter, view.rank, None)


def _module(parameter: Parameter, operator: Operator) -> str:
    """The module of a weight; of a tied weight, the one that this operator belongs to."""
    owners = [owner_of(name) for name in (parameter.name, *parameter.aliases)]
    return operator.module if operator.module in owners else owners[0]


def readers_of(model: Model) -> dict[str, list[tuple[int, int]]]:
    """For every value, the operators that read it, each with the position of the operand."""
    found: dict[str, list[tuple[int, int]]] = {}
    for index, operator in enumerate(model.operators):
        for position, name in enumerate(operator.inputs):
            if name:
                found.setdefault(name, []).append((index, position))
    return found
