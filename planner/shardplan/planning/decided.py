"""What a plan decides, among the choices that a cost graph offers; and what that is on a finer mesh."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.operators import OperatorSpace
from shardplan.layout.layout import Layout
from shardplan.plan.assemble import Priced
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.planning.reduction import Allowed, Mask

_UNSPLIT: Final = "-"


@dataclass(frozen=True)
class Decided:
    """`operators`: how each is split, by name; `layouts`: of tensors, in all the places where they rest, and of the
    state that the optimizer has of them."""

    operators: Mapping[str, OperatorDecision]
    layouts: Mapping[Node, Layout]

    @classmethod
    def of_plan(cls, plan: Plan) -> Decided:
        layouts: dict[Node, Layout] = {}
        for tensor in plan.tensors:
            layouts["kept", tensor.name] = tensor.layout
            layouts["served", tensor.name] = tensor.served
            layouts["updated", tensor.name] = tensor.optimizer or tensor.layout
        return cls({operator.name: operator for operator in plan.operators}, layouts)

    @classmethod
    def of_priced(cls, priced: Priced) -> Decided:
        built, choice = priced.built, priced.choice
        spaces = built.places
        layouts = {node: spaces[node[0]][node[1]].layout(at) for node, at in choice.items() if node[0] in spaces}
        return cls({operator.name: operator for operator in priced.operators}, layouts)

    def on_finer(self, groups: Sequence[Sequence[int]], idle: Container[int] = ()) -> Decided:
        """The same on a mesh that has the axes `groups[i]` in place of axis i, major first; `idle`: axes of one
        device."""

        @functools.cache
        def finer(layout: Layout) -> Layout:
            return layout.on_finer(groups, idle)

        operators = {
            name: replace(
                one,
                split=tuple(
                    _UNSPLIT if axis in idle else label
                    for label, group in zip(one.split, groups, strict=True)
                    for axis in group
                ),
                reads=tuple(layout and finer(layout) for layout in one.reads),
                makes=tuple(layout and finer(layout) for layout in one.makes),
            )
            for name, one in self.operators.items()
        }
        return Decided(operators, {node: finer(layout) for node, layout in self.layouts.items()})

    def met(self) -> Mapping[str, frozenset[Layout]]:
        """By tensor, all layouts that it has anywhere."""
        found: dict[str, set[Layout]] = {}
        for (_, name), layout in self.layouts.items():
            found.setdefault(name, set()).add(layout)
        for one in self.operators.values():
            for names, layouts in ((one.inputs, one.reads), (one.outputs, one.makes)):
                for name, read in zip(names, layouts, strict=False):
                    if name and read is not None:
                        found.setdefault(name, set()).add(read)
        return {name: frozenset(layouts) for name, layouts in found.items()}

    def masks(self, built: CostGraph) -> dict[Node, Mask]:
        """For every operator and tensor, which choices of `built` are what is decided; none where it is not offered
        there."""
        masks: dict[tuple[object, ...], Mask] = {}
        found: dict[Node, Mask] = {}
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            wanted = self.operators[operator.name]
            key = (id(space), wanted.split, wanted.reads, wanted.makes)
            if key not in masks:
                masks[key] = _as_split(space, wanted)
            found["operator", operator.name] = masks[key]
        for kind, spaces in built.places.items():
            for name, tensor_space in spaces.items():
                if (kind, name) not in self.layouts:
                    continue
                layout = self.layouts[kind, name]
                place = (id(tensor_space), layout)
                if place not in masks:
                    choices = range(len(tensor_space))
                    masks[place] = np.array([tensor_space.layout(choice) == layout for choice in choices])
                found[kind, name] = masks[place]
        return found

    def fixed(self, built: CostGraph) -> Allowed:
        """The restriction to what is decided; where a cost graph does not offer that, to nothing."""
        return {node: mask for node, mask in self.masks(built).items() if mask.any()}


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
