"""Names of parallelism (data parallel, Megatron column, ZeRO-3 ...) recognised from the layouts of a plan's parameters.

For one mesh axis, with the placement in which an operator reads the parameter, that of the operator's other operand,
and that of its result:

| read  | other | result  | name                                                                              |
|-------|-------|---------|-----------------------------------------------------------------------------------|
| shard | any   | partial | Megatron row; vocabulary parallel where the operator is a lookup                  |
| shard | shard | shard   | expert parallel where a stack of matrices is cut, else Megatron column (a bias)   |
| shard | other | shard   | Megatron column                                                                   |
| whole | any   | shard   | ZeRO-3 if kept sharded; else data, sequence or spatial parallel by the result's dim |
| whole | any   | other   | ZeRO-3 if kept sharded; else replicated                                           |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardplan.layout.placement import Placement, R
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision

COLUMN, ROW, VOCABULARY = "Megatron column", "Megatron row", "vocabulary parallel"
EXPERT, ZERO, GATHERED = "expert parallel", "ZeRO-3", "gathered to use"
DATA, SEQUENCE, SPATIAL, REPLICATED = "data parallel", "sequence parallel", "spatial parallel", "replicated"

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
_VIEWS = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
LEAST_SHARE = 0.005
"""Recipes for less than this share of the parameters are combined as `other`; smaller changes are not reported."""
_BATCH_DIM = {"GRU": 2, "LSTM": 2, "RNN": 2}
"""Dim of the first result that is the batch, where it is not the first."""


@dataclass(frozen=True, slots=True)
class _Use:
    """An operator that computes with the parameter, and which of its operands that is."""

    operator: OperatorDecision
    position: int


class Recognizer:
    """Names for the parameters of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._training = plan.model.get("mode") != "inference"
        self._axes = range(len(plan.mesh))
        self._readers: dict[str, list[_Use]] = {}
        for operator in plan.operators:
            for position, name in enumerate(operator.inputs):
                if name:
                    self._readers.setdefault(name, []).append(_Use(operator, position))

    def recipe(self, parameter: TensorDecision) -> tuple[str, ...]:
        """One name for each mesh axis; several, joined by ` + `, where its readers differ; `unused` without readers."""
        uses = list(self._uses(parameter.name))
        return tuple(
            " + ".join(dict.fromkeys(self._name(parameter, use, axis) for use in uses)) or "unused"
            for axis in self._axes
        )

    def _uses(self, tensor: str) -> Iterator[_Use]:
        """Operators that compute with the tensor, seen through the views (casts, transposes ...) in between."""
        for use in self._readers.get(tensor, ()):
            through = [name for name in use.operator.outputs if self._readers.get(name)]
            if use.operator.op_type in _VIEWS and through and (use.position == 0 or use.operator.op_type == "Concat"):
                for name in through:
                    yield from self._uses(name)
            else:
                yield use

    def _name(self, parameter: TensorDecision, use: _Use, axis: int) -> str:
        operator = use.operator
        read = _placement(operator, "reads", use.position, axis)
        made = _placement(operator, "makes", 0, axis)
        if read.is_shard:
            return _sharded_name(parameter, use, made, axis)
        if parameter.layout.placements[axis].is_shard:
            return ZERO if self._training else GATHERED
        if not made.is_shard:
            return REPLICATED
        dim = made.dim
        if dim == _BATCH_DIM.get(operator.op_type, 0):
            return DATA
        return SPATIAL if operator.op_type.startswith("Conv") else SEQUENCE


def _sharded_name(parameter: TensorDecision, use: _Use, made: Placement, axis: int) -> str:
    operator = use.operator
    if made.kind == "P":
        return VOCABULARY if operator.op_type in _LOOKUPS else ROW
    others = [i for i in range(len(operator.reads)) if i != use.position and operator.reads[i] is not None]
    beside = _placement(operator, "reads", others[0], axis) if others else R
    is_stack = len(parameter.shape) > 2 and operator.op_type in {"MatMul", "Einsum"}
    return EXPERT if is_stack and beside.is_shard and made.is_shard else COLUMN


def _placement(operator: OperatorDecision, side: str, position: int, axis: int) -> Placement:
    layouts = operator.reads if side == "reads" else operator.makes
    layout = layouts[position] if position < len(layouts) else None
    return layout.placements[axis] if layout is not None else R


def recipe_text(recipe: tuple[str, ...], names: tuple[str, ...]) -> str:
    """`data parallel on machine, Megatron column on gpu`; axes with the same name together; replication said once."""
    by_name: dict[str, list[str]] = {}
    for name, axis in zip(recipe, names, strict=True):
        by_name.setdefault(name, []).append(axis)
    if set(by_name) == {REPLICATED}:
        return REPLICATED
    return ", ".join(f"{name} on {' and '.join(axes)}" for name, axes in by_name.items() if name != REPLICATED)


def axis_shares(plan: Plan, recipes: Mapping[str, tuple[str, ...]]) -> list[dict[str, float]]:
    """For each mesh axis: name -> share of the parameter elements it holds for, largest first."""
    parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
    total = sum(math.prod(parameter.shape) for parameter in parameters) or 1
    shares = []
    for axis in range(len(plan.mesh)):
        found: dict[str, float] = {}
        for parameter in parameters:
            name = recipes[parameter.name][axis]
            found[name] = found.get(name, 0.0) + math.prod(parameter.shape) / total
        shares.append(dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))))
    return shares


def recipe_changes(old: Plan, new: Plan) -> dict[str, dict[str, tuple[float, float]]]:
    """Mesh axis -> name -> share of the parameter elements that it holds for in either plan, where they differ by more
    than a rounding. Nothing for plans with stages, each of which has axes of its own."""
    if old.pipeline or new.pipeline:
        return {}
    was, now = _shares_by_axis(old), _shares_by_axis(new)
    changes: dict[str, dict[str, tuple[float, float]]] = {}
    for axis in [*now, *(axis for axis in was if axis not in now)]:
        before, after = was.get(axis, {}), now.get(axis, {})
        pairs = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**after, **before}}
        found = {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) >= LEAST_SHARE}
        changes |= {axis: found} if found else {}
    return changes


def _shares_by_axis(plan: Plan) -> dict[str, dict[str, float]]:
    recognizer = Recognizer(plan)
    recipes = {tensor.name: recognizer.recipe(tensor) for tensor in plan.tensors if tensor.role == "parameter"}
    return dict(zip(plan.mesh.names, axis_shares(plan, recipes), strict=True))
