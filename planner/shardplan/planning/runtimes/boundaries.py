"""Values that move only at the borders of modules with parameters, as torchtitan's `ShardingConfig` expresses them.

- Nothing moves between two operators outside of such modules, nor inside of one, except for the reduction of a
  row-parallel product before its bias. A module with several results passes them on in the layouts in which it makes
  them.
- Axes of one role do the same everywhere; several axes on one dim follow the order of the mesh; there are no segmented
  shards; partial values are sums.
- Values computed from inputs only, or from weights only, are computed for the device's part of the batch.
- Weights are read as they are stored, or a part of them; on `dp` all of their readers may have them gathered (FSDP).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardplan.cost.moves import Index
from shardplan.graph.build import CostGraph, Join, Node
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import RP, Placement, R, S
from shardplan.model.types import Model, Operator
from shardplan.planning.reduction import Mask
from shardplan.planning.runtimes.axis_states import (
    AxisMasks,
    AxisView,
    MaskCache,
    from_whole,
    same,
    same_or_slice_of_whole,
)
from shardplan.planning.runtimes.facts import readers_of
from shardplan.planning.runtimes.table import Role, Roles


def modules_with_parameters(operators: Sequence[Operator], parameters: Mapping[str, Sequence[str]]) -> dict[int, str]:
    """The module of every operator that is in a module with parameters: the module whose parameter it reads, or whose
    path it shares with such operators. `parameters`: by tensor, all names of each."""
    owners = {name.rpartition(".")[0] or name for names in parameters.values() for name in names}
    own = {}
    for index, operator in enumerate(operators):
        first = next((parameters[name][0] for name in operator.inputs if name in parameters), "")
        own[index] = (first.rpartition(".")[0] or first) if first else ""
        if own[index] and not f"{own[index]}.".startswith(f"{operator.module}." if operator.module else ""):
            owners.add(operator.module)  # a tied weight is read in a module that it is not named after
    found = {index: op.module if op.module in owners else own[index] for index, op in enumerate(operators)}
    return {index: module for index, module in found.items() if module}


@dataclass
class Boundaries:
    """The masks of one mesh whose axes have these roles; `axes`: per axis, the object that makes its masks."""

    built: CostGraph
    roles: Roles
    axes: Mapping[int, AxisMasks]
    _once: MaskCache = field(default_factory=MaskCache)

    def nodes(self) -> Iterator[tuple[Node, Mask]]:
        """The masks of operators and tensors."""
        built = self.built
        weights = {parameter.tensor for parameter in built.model.parameters}
        for index, operator in enumerate(built.model.operators):
            read = tuple(at for at, name in enumerate(operator.inputs) if name in weights)
            yield ("operator", operator.name), self._strategies(index, read)
        inputs = [name for name in built.model.inputs if name in built.kept and name not in weights]
        wanted = {role: self._cut(inputs, 0 if role == "dp" else 1) for role in ("dp", "cp")}
        for axis in self.axes:
            role, named = self.roles[axis], built.cluster.mesh.names[axis]
            if role in wanted and not wanted[role] and named != role and inputs:
                yield ("kept", inputs[0]), np.zeros(len(built.kept[inputs[0]]), dtype=np.bool_)
        for kind in ("kept", "served"):
            for name, space in built.places[kind].items():
                mask = self._layouts(space)
                if kind == "kept" and name in inputs:
                    for axis, on in self.axes.items():
                        places = self._places(name, self.roles[axis], wanted)
                        mask = mask & on.layouts(space, places.__contains__, "input", places)
                yield (kind, name), mask

    @staticmethod
    def _places(name: str, role: Role, wanted: Mapping[str, Sequence[str]]) -> tuple[Placement, ...]:
        """The placements that an input may have on an axis of a role."""
        if name in wanted.get(role, ()):
            return (S(0) if role == "dp" else S(1),)
        return (R, S(0)) if role == "dp" else (R,)

    def _cut(self, inputs: Sequence[str], dim: int) -> list[str]:
        """The inputs whose dim with that number is divisible by all axes of the role; if modules read some of them,
        only those."""
        role = "dp" if dim == 0 else "cp"
        ways = int(np.prod([self.built.cluster.mesh.shape[axis] for axis in self.axes if self.roles[axis] == role]))
        shapes = {name: self.built.kept[name].kind.shape for name in inputs}
        cut = [
            name
            for name, shape in shapes.items()
            if len(shape) > dim and shape[dim] % ways == 0 and self.built.kept[name].code(S(dim)) is not None
        ]
        return [name for name in cut if self._enters(name)] or cut

    def _enters(self, name: str) -> bool:
        """Whether an input reaches a module with parameters through operators that read nothing else."""
        for index, _ in self._readers.get(name, ()):
            operator = self.built.model.operators[index]
            alone = sum(each in self.built.kept for each in operator.inputs) == 1
            if index in self.modules and not alone:
                return True
            if alone and any(self._enters(made) for made in operator.outputs if made):
                return True
        return False

    def _strategies(self, index: int, weights: tuple[int, ...]) -> Mask:
        space = self.built.operators[index].strategies

        def make() -> Mask:
            mask = np.ones(len(space), dtype=np.bool_)
            for side, spaces in (("operands", space.operands), ("results", space.results)):
                for position, tensor in enumerate(spaces):
                    if tensor is not None:
                        mask &= self._alike(space.layout_codes(side, position))
            for axis, on in self.axes.items():
                is_dp = self.roles[axis] == "dp"

                def allows(view: AxisView, is_dp: bool = is_dp) -> bool:
                    planned = [p for p in (*view.operands, *view.results) if p is not None]
                    if any(p.segments for p in planned) or {*view.choice.reductions} - {"sum"}:
                        return False
                    return not (is_dp and view.shards(weights))

                mask &= on.strategies(index, allows, "bounded", is_dp, weights)
            return mask

        return self._once(("operator", id(self.built.operators[index]), weights), make)

    def _layouts(self, space: TensorSpace) -> Mask:
        def make() -> Mask:
            mask = self._alike(space.codes)
            order = tuple(range(space.codes.shape[1]))
            mask &= np.array([space.layout(choice).order == order for choice in range(len(space))], dtype=np.bool_)
            for on in self.axes.values():
                mask &= on.layouts(space, lambda p: not p.segments, "unsegmented")
            return mask

        return self._once(("tensor", id(space)), make)

    def _alike(self, codes: Index) -> Mask:
        """The mask of choices in which axes of one role do the same."""
        mask = np.ones(len(codes), dtype=np.bool_)
        for role in sorted(set(self.roles)):
            first, *others = [axis for axis in self.axes if self.roles[axis] == role] or [0]
            for other in others:
                mask &= codes[:, first] == codes[:, other]
        return mask

    # ---- edges ------------------------------------------------------------------------------------------------------

    def pair(self, join: Join, position: int) -> Mask | None:  # noqa: PLR0911 - a table of cases
        """The mask of an edge; `None` allows every pair."""
        (kind, name), (other, reader), _ = join
        model, number = self.built.model, self.built.number
        if kind != "operator" and name in self._weights:
            return self._all(join, position, _gathered, from_whole)
        tensor = reader if kind == "operator" else name
        seen_as_weight = self._turned.get(tensor)
        if seen_as_weight is not None and kind != "operator":
            return self._all(join, position, _gathered, from_whole)
        if kind == "operator":
            if self._leaves(number[name], tensor):
                return None
            if self._before_bias(tensor):
                return self._all(join, position, _summed, _summed)
            return self._all(join, position, same, same)
        if other == "operator" and number[reader] in self.modules:
            maker = self._makers.get(name)
            inside = maker is not None and self.modules.get(maker) == self.modules[number[reader]]
            if not inside:
                return None
            if self._before_bias(name) and model.operators[number[reader]].op_type == "Add":
                return self._all(join, position, _summed, _summed)
        if tensor not in self._live and kind != "operator":
            return self._all(join, position, same_or_slice_of_whole, same)
        return self._all(join, position, same, same)

    def _all(self, join: Join, position: int, on_dp: object, elsewhere: object) -> Mask:
        key = ("pair", on_dp, elsewhere, position, *(self._number_of(node) for node in join[:2]))

        def make() -> Mask:
            masks = [
                on.pairs(join, position, rule, rule)  # type: ignore[arg-type]
                for axis, on in self.axes.items()
                for rule in [on_dp if self.roles[axis] == "dp" else elsewhere]
            ]
            return np.asarray(np.logical_and.reduce(masks))

        return self._once(key, make)

    def _number_of(self, node: Node) -> tuple[str, int]:
        if node[0] == "operator":
            return node[0], id(self.built.operators[self.built.number[node[1]]])
        return node[0], id(self.built.places[node[0]][node[1]])

    @cached_property
    def modules(self) -> dict[int, str]:
        """The module with parameters of every operator that is in one."""
        return modules_with_parameters(self.built.model.operators, _names(self.built.model))

    @cached_property
    def _live(self) -> frozenset[str]:
        return next(iter(self.axes.values())).facts.live

    @cached_property
    def _weights(self) -> frozenset[str]:
        return frozenset(parameter.tensor for parameter in self.built.model.parameters)

    @cached_property
    def _turned(self) -> dict[str, str]:
        """Transposed weights."""
        return {
            operator.outputs[0]: operator.inputs[0]
            for operator in self.built.model.operators
            if operator.op_type == "Transpose" and operator.inputs[0] in self._weights
        }

    @cached_property
    def _makers(self) -> dict[str, int]:
        return {name: index for index, op in enumerate(self.built.model.operators) for name in op.outputs if name}

    @cached_property
    def _readers(self) -> dict[str, list[tuple[int, int]]]:
        return readers_of(self.built.model)

    @cached_property
    def _leaving(self) -> dict[str, int]:
        """The number of values that each module passes on."""
        counts: dict[str, int] = {}
        for name, maker in self._makers.items():
            module = self.modules.get(maker)
            if module is not None and name in self.built.kept and self._is_handed_on(name, module):
                counts[module] = counts.get(module, 0) + 1
        return counts

    def _is_handed_on(self, name: str, module: str) -> bool:
        readers = {self.modules.get(index) for index, _ in self._readers.get(name, ())}
        return name in self.built.model.outputs or bool(readers - {module})

    def _leaves(self, maker: int, name: str) -> bool:
        """Whether a value is the only one that its module passes on, and nothing inside reads it: then it may move."""
        module = self.modules.get(maker)
        if module is None or self._leaving.get(module) != 1 or not self._is_handed_on(name, module):
            return False
        return all(self.modules.get(index) != module for index, _ in self._readers.get(name, ()))

    def _before_bias(self, name: str) -> bool:
        """Whether a value is the product with a module's matrix, and its only reader adds a bias."""
        maker, readers = self._makers.get(name), self._readers.get(name, ())
        if maker is None or maker not in self.modules or len(readers) != 1 or name in self.built.model.outputs:
            return False
        reader = self.built.model.operators[readers[0][0]]
        other = [each for each in reader.inputs if each != name]
        bias = reader.op_type == "Add" and len(other) == 1 and other[0] in self._weights
        return bias and self.modules.get(readers[0][0]) == self.modules[maker]


def _names(model: Model) -> dict[str, tuple[str, ...]]:
    return {parameter.tensor: (parameter.name, *parameter.aliases) for parameter in model.parameters}


def _gathered(_: Placement, target: Placement) -> bool:
    return target in (R, RP)


def _summed(source: Placement, target: Placement) -> bool:
    return source == target or (source.kind == "P" and target.kind != "P")
