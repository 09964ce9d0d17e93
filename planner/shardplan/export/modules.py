"""The tensor-parallel style of every module of a model, for formats that shard modules and not tensors.

Such formats know one axis of tensor parallelism. A module with a weight is a *column* (it makes a slice of its
outputs), a *row* (it sums over a slice of its inputs), an embedding split over its vocabulary or its width, or whole;
between a column and a row, the model's code works on slices unchanged. A plan fits if it does nothing else to the
values that depend on weights: this module finds the style of every module, and everything that does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shardplan.layout.layout import Layout
from shardplan.layout.placement import Placement
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import Move, OperatorDecision, Plan, TensorDecision
from shardplan.planning.runtimes.facts import VIEWS, owner_of, wildcard

Style = Literal["column", "row", "vocabulary", "width", "whole", "per head"]
Weight = Literal["matrix", "table", "vector"]


@dataclass(frozen=True, slots=True)
class ModuleStyle:
    """`name`: of the module (its weight's name without `.weight`). `gathered`: the result is made whole; `split_input`:
    the input is whole and cut by the module. `segments`: of its fused outputs, each cut on its own. `transposed`: the
    weight is stored [in, out]. `experts`: it is a stack of weights [experts, out, in]. `weight`: what the weight is, a
    table being one of which rows are looked up.

    Style `per head`: a whole scale that meets values split by heads, in dim `dim`, so its gradient is partial.
    """

    name: str
    style: Style
    gathered: bool = False
    split_input: bool = False
    segments: tuple[int, ...] = ()
    transposed: bool = False
    experts: bool = False
    weight: Weight = "matrix"
    dim: int = -1


@dataclass
class OneAxis:
    """What `axis` (None if no axis splits a module) does. `modules`: by name, whole ones included. `refused`: what else
    the plan does, one line each, with the tensor's name. `other_axes`: axes that only split the batch; `in_pieces`:
    those on which weights are also stored in shards."""

    axis: int | None
    modules: dict[str, ModuleStyle] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    other_axes: tuple[str, ...] = ()
    in_pieces: tuple[str, ...] = ()


def one_axis(plan: Plan, *, gathers: bool = False) -> OneAxis:
    """Finds the axis of tensor parallelism and the style of every module on it. `gathers`: on other axes weights may be
    stored in shards and gathered for use (FSDP)."""
    in_pieces = tuple(axis for axis in _sharding_axes(plan) if gathers and _is_gathered(plan, axis))
    sharding = [axis for axis in _sharding_axes(plan) if axis not in in_pieces]
    found = OneAxis(sharding[0] if sharding else None)
    if len(sharding) > 1:
        names = " and ".join(plan.mesh.names[axis] for axis in sharding)
        examples = "; ".join(_examples(plan, sharding))
        found.refused.append(f"parameters are sharded over {names}, and the format has one axis: {examples}")
        return found
    others = [axis for axis in plan.mesh.real_axes if axis != found.axis]
    for axis in others:
        found.refused += _only_batch(plan, axis)
    found.other_axes = tuple(plan.mesh.names[axis] for axis in others if axis not in in_pieces)
    found.in_pieces = tuple(plan.mesh.names[axis] for axis in in_pieces)
    if found.axis is not None:
        _Walk(plan, found.axis, found).run()
    return found


def wildcards(modules: Mapping[str, ModuleStyle], refused: list[str]) -> dict[str, ModuleStyle]:
    """Modules by pattern, numbers in names as `*`; copies in different layers must agree, or are added to `refused`."""
    groups: dict[str, list[ModuleStyle]] = {}
    for name, module in modules.items():
        groups.setdefault(wildcard(name), []).append(module)
    found = {}
    for pattern, copies in groups.items():
        kinds: dict[tuple[object, ...], str] = {}
        for copy in copies:
            kinds.setdefault((copy.style, copy.gathered, copy.split_input, copy.segments), copy.name)
        if len(kinds) > 1:
            listed = ", ".join(f"{name} is {key[0]}" for key, name in kinds.items())
            refused.append(f"{pattern}: layers differ, and a rule is for all of them: {listed}")
        found[pattern] = copies[0]
    return found


def _sharding_axes(plan: Plan) -> list[int]:
    parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
    axes = range(len(plan.mesh))
    return [axis for axis in axes if any(tensor.layout.placements[axis].is_shard for tensor in parameters)]


def _is_gathered(plan: Plan, axis: int) -> bool:
    """Whether every weight is read whole on an axis, as it is kept or in pieces that are gathered."""
    weights = {tensor.name for tensor in plan.tensors if tensor.role == "parameter"}
    return all(
        read is None or name not in weights or not read.placements[axis].is_shard
        for operator in plan.operators
        for name, read in zip(operator.inputs, operator.reads, strict=True)
    )


def _examples(plan: Plan, axes: Sequence[int]) -> Iterator[str]:
    """For every axis the first parameter that it shards."""
    for axis in axes:
        tensor = next(t for t in plan.tensors if t.role == "parameter" and t.layout.placements[axis].is_shard)
        yield f"'{tensor.checkpoint}' over {plan.mesh.names[axis]}"


def _only_batch(plan: Plan, axis: int) -> Iterator[str]:
    """Why an axis that shards no parameter is not plain data parallelism."""
    name = plan.mesh.names[axis]
    weights = {tensor.name for tensor in plan.tensors if tensor.role == "parameter"}
    single = {tensor.name for tensor in plan.tensors if math.prod(tensor.shape) == 1}
    for tensor in plan.tensors:
        placement = tensor.layout.placements[axis]
        if tensor.role == "input" and placement.is_shard and placement.dim != 0:
            yield f"'{tensor.name}' is split along dim {placement.dim} over {name}, which is no batch"
    for move in _moves(plan, axis):
        if move.tensor in weights or move.tensor in single:
            continue  # gathered for use; a loss, which is added up
        if any(axis in step.collective.axes and not step.collective.is_free for step in move.steps):
            yield f"'{move.tensor}' is moved over {name} in the forward pass, which data parallelism does not do"


def _moves(plan: Plan, axis: int) -> Iterator[Move]:
    for move in plan.moves:
        changed = move.source.forward.placements[axis] != move.target.forward.placements[axis]
        if move.phase == "forward" and not move.regather and changed:
            yield move


class _Walk:
    """One pass over the operators, then one over the moves."""

    def __init__(self, plan: Plan, axis: int, found: OneAxis) -> None:
        self.plan, self.axis, self.found = plan, axis, found
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.weight_of: dict[str, TensorDecision] = {t.name: t for t in plan.tensors if t.role == "parameter"}
        self.live: dict[str, OperatorDecision] = {}
        self.module_of: dict[str, str] = {}

    def run(self) -> None:
        self._check_stored()
        for operator in self.plan.operators:
            self._visit(operator)
        for move in _moves(self.plan, self.axis):
            if move.tensor in self.live:
                self._check_move(move)
        self._check_unused()

    def _placement(self, layout: Layout | None) -> Placement | None:
        return None if layout is None else layout.forward.placements[self.axis]

    def _refuse(self, tensor: str, why: str) -> None:
        line = f"'{tensor}' {why}"
        if line not in self.found.refused:
            self.found.refused.append(line)

    def _check_stored(self) -> None:
        for move in _moves(self.plan, self.axis):
            if move.tensor in self.weight_of and any(step.collective.kind == "all_gather" for step in move.steps):
                name = self.weight_of[move.tensor].checkpoint
                self._refuse(name, f"is kept sharded over {self._name} and gathered for use (ZeRO-3)")

    @property
    def _name(self) -> str:
        return self.plan.mesh.names[self.axis]

    def _visit(self, operator: OperatorDecision) -> None:
        """Follow weights through views; classify an operator that reads one; mark what comes out as live."""
        reads = list(zip(operator.inputs, operator.reads, strict=True))
        weights = [(name, layout) for name, layout in reads if name in self.weight_of]
        large = [pair for pair in weights if len(self.weight_of[pair[0]].shape) > 1]
        data = [(name, layout) for name, layout in reads if name and name not in self.weight_of and layout is not None]
        live = [pair for pair in data if pair[0] in self.live]
        if weights and not data and operator.op_type in VIEWS:
            self.weight_of |= dict.fromkeys(operator.outputs, self.weight_of[weights[0][0]])
            return
        made = next((self._placement(layout) for layout in operator.makes if layout is not None), None)
        cut = [p.dim for _, layout in live if (p := self._placement(layout)) is not None and p.is_shard]
        if large:
            self._weight(operator, large[0], data, made)
        elif live:
            self._scale(operator, weights, cut)
            if made is not None and made.is_shard and not cut and not self._is_bias_of_column(weights):
                self._refuse(
                    operator.outputs[0], f"is split along dim {made.dim} over {self._name} (batch or sequence)"
                )
        if large or live:
            self.live |= dict.fromkeys(operator.outputs, operator)

    def _is_bias_of_column(self, weights: Sequence[tuple[str, Layout | None]]) -> bool:
        return any((p := self._placement(layout)) is not None and p.is_shard for _, layout in weights)

    def _weight(
        self,
        operator: OperatorDecision,
        weight: tuple[str, Layout | None],
        data: Sequence[tuple[str, Layout | None]],
        made: Placement | None,
    ) -> None:
        """Which style the module of this weight has."""
        decision = self.weight_of[weight[0]]
        name = self._module(decision, operator)
        kept = checkpoint_layout(decision.layout, decision.perm).placements[self.axis]
        read = self._placement(weight[1])
        is_lookup = operator.op_type.startswith("Gather")
        kind: Weight = "table" if is_lookup else "matrix"
        experts = len(decision.shape) > 2
        whole_input = not any((p := self._placement(layout)) is not None and p.is_shard for _, layout in data)
        if not kept.is_shard or (read is not None and not read.is_shard):
            if made is not None and made.is_shard:
                why = f"is read whole on every device while its inputs are split over {self._name} (batch or sequence)"
                self._refuse(decision.checkpoint, why)
            self._set(ModuleStyle(name, "whole", experts=experts, weight=kind), decision)
            return
        is_sum = made is not None and made.kind == "P"
        style: Style = ("vocabulary" if is_sum else "width") if is_lookup else ("row" if is_sum else "column")
        if not is_sum and not (made is not None and made.is_shard and whole_input):
            self._refuse(decision.checkpoint, f"is sharded over {self._name} in a way that is no column and no row")
        cut = kept.dim == len(decision.shape) - (1 if style in {"row", "width"} else 2)
        found = ModuleStyle(name, style, segments=kept.segments, transposed=not cut, experts=experts, weight=kind)
        self._set(found, decision)

    def _scale(
        self, operator: OperatorDecision, weights: Sequence[tuple[str, Layout | None]], cut: Sequence[int]
    ) -> None:
        """A vector (norm, bias) read beside live values; `cut`: dims in which some of these are split."""
        for value, layout in weights:
            decision = self.weight_of[value]
            placement = self._placement(layout)
            if placement is None or decision.checkpoint.endswith(".bias"):
                continue
            if placement.is_shard and decision.layout.placements[self.axis].is_shard:
                self._refuse(decision.checkpoint, f"is a vector that is sharded over {self._name} outside of a column")
            style: Style = "per head" if cut else "whole"
            dim = cut[0] if cut else -1
            self._set(ModuleStyle(self._module(decision, operator), style, weight="vector", dim=dim), decision)

    def _module(self, decision: TensorDecision, operator: OperatorDecision) -> str:
        """Of a tied weight, the owner that this operator belongs to."""
        owners = [owner_of(name) for name in (decision.checkpoint, *decision.aliases)]
        return operator.module if operator.module in owners else owners[0]

    def _set(self, module: ModuleStyle, decision: TensorDecision) -> None:
        before = self.found.modules.get(module.name)
        if before is not None and before.style != module.style:
            self._refuse(decision.checkpoint, f"is read as {before.style} and as {module.style}")
        self.found.modules[module.name] = module

    def _check_move(self, move: Move) -> None:
        """A move of a live value is part of a style or refused."""
        source, target = (layout.forward.placements[self.axis] for layout in (move.source, move.target))
        maker = self.live[move.tensor]
        if source.kind == "P" and target.kind == "R":
            return
        if source.kind == "R" and target.kind == "P":
            return  # added once, as a bias of a row is
        if source.is_shard and target.kind == "R":
            module = self.found.modules.get(self._owner(maker))
            if module is not None and module.style in {"column", "width"}:
                self._change(module, gathered=True)
                return
            self._refuse(move.tensor, f"is gathered over {self._name} inside of a module")
        elif source.kind == "R" and target.is_shard:
            reader = next((operator for operator in self.plan.operators if operator.name == move.reader), None)
            module = self.found.modules.get(self._owner(reader)) if reader else None
            if module is not None and module.style == "row":
                self._change(module, split_input=True)
                return
            self._refuse(move.tensor, f"is split along dim {target.dim} over {self._name} (batch or sequence)")
        elif source.kind == "P":
            why = f"is reduced to slices along dim {target.dim} over {self._name} (sequence parallelism)"
            self._refuse(move.tensor, why)
        else:
            self._refuse(move.tensor, f"is split along another dim over {self._name} (all-to-all)")

    def _owner(self, operator: OperatorDecision) -> str:
        """The module whose weight an operator reads, or the one that it is in."""
        for name in operator.inputs:
            if name in self.weight_of:
                return self._module(self.weight_of[name], operator)
        return operator.module

    def _change(self, module: ModuleStyle, *, gathered: bool = False, split_input: bool = False) -> None:
        self.found.modules[module.name] = replace(
            module, gathered=module.gathered or gathered, split_input=module.split_input or split_input
        )

    def _check_unused(self) -> None:
        """Biases go with their column; a row's bias is whole. Sharded weights that no operator reads are refused."""
        for tensor in self.plan.tensors:
            if tensor.role != "parameter" or not tensor.layout.placements[self.axis].is_shard:
                continue
            owners = {owner_of(name) for name in (tensor.checkpoint, *tensor.aliases)}
            styles = {self.found.modules[owner].style for owner in owners if owner in self.found.modules}
            if not styles - {"whole", "per head"}:
                self._refuse(tensor.checkpoint, f"is sharded over {self._name}, but its module is not")
            elif len(tensor.shape) == 1 and "column" not in styles:
                self._refuse(tensor.checkpoint, f"is sharded over {self._name} beside a weight that is no column")
