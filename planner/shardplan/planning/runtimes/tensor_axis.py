"""An axis of tensor parallelism by modules: every module with a matrix is whole, column-parallel or row-parallel.

- A column-parallel module reads a whole input and makes a slice of its output, which may be gathered at once; a
  row-parallel module reads slices and makes partial sums, which are reduced at once. An embedding table is
  row-parallel, or column-parallel with gathered output.
- Any other operator makes slices only from slices, reduces nothing over them, and reads a whole operand beside them
  only if no gradient goes back to it (or if it is a vector: a scale of heads). So all slices come from columns and
  end in rows.
- Inputs and outputs of the model are whole. So is what this module does not handle: one module with several weights,
  weights that one module reads in two ways, convolutions and recurrent layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from shardplan.graph.build import Join, Node
from shardplan.layout.placement import RP, Placement, R
from shardplan.planning.reduction import Mask
from shardplan.planning.runtimes.axis_states import AxisMasks, AxisView, same, same_or_partial_gradient
from shardplan.planning.runtimes.facts import WeightView, owner_of, readers_of
from shardplan.planning.runtimes.table import Modules

_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum"})
_LOOKUPS = frozenset({"Gather"})


@dataclass(frozen=True)
class TensorAxis:
    """The masks of one such axis; `can`: what a column or row may be."""

    on: AxisMasks
    can: Modules

    def nodes(self) -> Iterator[tuple[Node, Mask]]:
        """The masks of operators and tensors."""
        built, facts, on = self.on.built, self.on.facts, self.on
        for index, operator in enumerate(built.model.operators):
            if index in facts.is_view:
                mask = on.strategies(index, _as_weight, "view")
            elif index in facts.matrices:
                mask = self._matrix(index)
            else:
                mask = self._follows(index)
            yield ("operator", operator.name), mask
        ends = {*built.model.inputs, *built.model.outputs}
        read = {name for operator in built.model.operators for name in operator.inputs}
        for name, space in built.kept.items():
            if name in facts.views:
                cut = name in read and (name in self._biases.values() or facts.views[name].rank > 1)
                yield ("kept", name), on.layouts(space, _whole_or_cut if cut else _whole, "weight", cut)
            elif name in ends:
                yield ("kept", name), on.layouts(space, lambda p: p in (R, RP), "whole")
            else:
                yield ("kept", name), on.layouts(space, _whole_or_cut, "value")

    def pair(self, join: Join, position: int) -> Mask:  # noqa: PLR0911 - a table of cases
        """The mask of an edge."""
        (kind, name), (other, reader), _ = join
        facts, number, on = self.on.facts, self.on.built.number, self.on
        if kind == "operator":
            index = number[name]
            if index not in facts.matrices:
                return on.pairs(join, position, same, "same")
            if self._is_lookup(index):
                return on.pairs(join, position, _looked_up, "looked up")
            return on.pairs(join, position, _summed_gathered, "summed or gathered")
        if name in facts.views:
            to_matrix = other == "operator" and number[reader] in facts.matrices
            if facts.views[name].rank > 1:
                return on.pairs(join, position, same, "same")
            return on.pairs(join, position, _added if to_matrix else same_or_partial_gradient, "vector", to_matrix)
        if other == "operator" and number[reader] in facts.matrices:
            cuts = self.can.split_input and not self._is_lookup(number[reader])
            return on.pairs(join, position, _entering_cut if cuts else same_or_partial_gradient, "entering", cuts)
        return on.pairs(join, position, same, "same")

    def _is_lookup(self, index: int) -> bool:
        return self.on.built.model.operators[index].op_type in _LOOKUPS

    # ---- operators with a matrix ------------------------------------------------------------------------------------

    def _matrix(self, index: int) -> Mask:
        """Whole, column-parallel or row-parallel."""
        operator, facts = self.on.built.model.operators[index], self.on.facts
        at, view = facts.matrices[index], facts.view(index)
        weights = tuple(position for position, name in enumerate(operator.inputs) if name in facts.views)
        is_lookup = operator.op_type in _LOOKUPS
        if not self._may_be_cut(index, view) or sum(facts.views[operator.inputs[w]].rank > 1 for w in weights) > 1:
            return self.on.strategies(index, lambda choice: choice.is_idle, "idle")
        assert view.dims is not None
        dims, rank, can = view.dims, view.rank, self.can

        def allows(choice: AxisView) -> bool:  # noqa: PLR0911 - a table of cases
            weight, made = choice.operands[at], choice.made
            if choice.is_idle:
                return True
            if weight is None or not weight.is_shard or choice.choice.inner or not made:
                return False
            data = [position for position in range(len(choice.operands)) if position not in weights]
            cut, segments = dims[weight.dim], weight.segments
            if all(each.kind == "P" for each in made):
                if is_lookup:
                    return can.tables and cut == 0 and not segments
                return (can.transposed or cut == rank - 1) and not segments
            if choice.shards(data) or not all(each.is_shard for each in made):
                return False
            if is_lookup:
                return can.widths and cut == rank - 1 and not segments
            return (can.transposed or cut == rank - 2) and self._fuses(segments)

        return self.on.strategies(index, allows, "matrix", at, weights, dims, rank, is_lookup)

    def _fuses(self, segments: tuple[int, ...]) -> bool:
        """Whether a column-parallel module may be fused from parts of these sizes."""
        if not segments or self.can.fused:
            return True
        return self.can.halves and len(segments) == 2 and len(set(segments)) == 1

    def _may_be_cut(self, index: int, view: WeightView) -> bool:
        """Whether a module is of a kind that can be column-parallel or row-parallel at all."""
        operator, parameter = self.on.built.model.operators[index], view.parameter
        kind = "table" if operator.op_type in _LOOKUPS else "product" if operator.op_type in _PRODUCTS else ""
        if not kind or view.dims is None or self.on.facts.modules[index] in self._mixed:
            return False
        if view.rank == 2:
            return parameter.name.endswith(".weight")
        return view.rank == 3 and kind == "product" and self.can.experts and not parameter.name.endswith(".weight")

    @cached_property
    def _mixed(self) -> frozenset[str]:
        """Modules that both look up rows of a weight and multiply with one, under one name."""
        kinds: dict[str, set[tuple[object, ...]]] = {}
        operators, facts = self.on.built.model.operators, self.on.facts
        for index, module in facts.modules.items():
            view = facts.view(index)
            kinds.setdefault(module, set()).add((operators[index].op_type in _LOOKUPS, view.parameter.name))
        return frozenset(module for module, found in kinds.items() if len(found) > 1)

    # ---- the others -------------------------------------------------------------------------------------------------

    def _follows(self, index: int) -> Mask:
        """Whole, or slices made from slices."""
        built, facts = self.on.built, self.on.facts
        operator, space = built.model.operators[index], built.operators[index].strategies
        vectors = tuple(at for at, name in enumerate(operator.inputs) if name in facts.views)
        bias = tuple(at for at in vectors if self._biases.get((index, at)) is not None)
        learns = tuple(
            at for at, each in enumerate(space.operands) if each is not None and each.kind.has_gradient
        )  # fmt: skip

        def allows(choice: AxisView) -> bool:
            if choice.is_idle:
                return True
            if choice.choice.inner or any(p is not None and p.kind == "P" for p in (*choice.operands, *choice.results)):
                return False
            data = [at for at in range(len(choice.operands)) if at not in vectors]
            if not choice.shards(data) or any(at not in bias for at in choice.shards(vectors)):
                return False
            return not any(at in learns and choice.operands[at] == RP for at in data)

        return self.on.strategies(index, allows, "follows", vectors, bias, learns)

    @cached_property
    def _biases(self) -> dict[tuple[int, int], str]:
        """Where a bias is added to the matrix product of the same module: (operator, operand) -> parameter."""
        built, facts = self.on.built, self.on.facts
        makers = {name: index for index, operator in enumerate(built.model.operators) for name in operator.outputs}
        alone = {name for name, readers in readers_of(built.model).items() if len(readers) == 1}
        found = {}
        for index, operator in enumerate(built.model.operators):
            modules = {facts.modules.get(makers.get(name, -1)) for name in operator.inputs} - {None}
            for at, name in enumerate(operator.inputs):
                view = facts.views.get(name)
                if view is None or view.rank != 1 or name not in alone or name not in built.kept:
                    continue
                owner = facts.modules.get(index) if index in facts.matrices else None
                own = owner_of(view.parameter.name)
                if view.parameter.name.endswith(".bias") and (own == owner or own in modules):
                    found[index, at] = name
        return found


def _whole(placement: Placement) -> bool:
    return placement == R


def _whole_or_cut(placement: Placement) -> bool:
    return placement == R or placement.is_shard


def _as_weight(choice: AxisView) -> bool:
    """A view of a weight is whole, or sharded as the weight is."""
    cut = choice.shards(range(len(choice.operands)))
    return choice.is_idle or (bool(cut) and not choice.choice.inner and all(each.is_shard for each in choice.made))


def _summed_gathered(source: Placement, target: Placement) -> bool:
    return source == target or (target == R and (source.kind == "P" or (source.is_shard and not source.segments)))


def _looked_up(source: Placement, target: Placement) -> bool:
    return target == R and (source == R or source.kind == "P" or source.is_shard)


def _entering_cut(source: Placement, target: Placement) -> bool:
    return same_or_partial_gradient(source, target) or (source == R and target.is_shard and not target.segments)


def _added(source: Placement, target: Placement) -> bool:
    return source == target or (source == R and target.kind in ("R/P", "P"))
