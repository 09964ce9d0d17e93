"""An exported program cut into the stages of a pipeline.

A stage runs the operations that read its weights, and those in between. The plan says which weights a stage has; so a
cut is after the last operation that reads a weight of an earlier stage and before the first that reads one of a later
stage, where exactly one value that depends on weights is used later. Values that depend on no weight (masks, positions)
are computed by every stage that reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.export import ExportedProgram

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.torch.exported.program import input_specs, is_tensor_argument, user_outputs


@dataclass(frozen=True)
class Boundary:
    """Between two stages: the plan's tensor that is sent, and its shape in one microbatch."""

    tensor: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StageNodes:
    """The part of a program that a stage runs. `nodes`: in order, arguments and weights among them; `received`: the
    value that the previous stage sends; `sent`: the value for the next stage; `arguments`: of the program, as read."""

    nodes: frozenset[fx.Node]
    received: fx.Node | None
    sent: fx.Node | None
    arguments: tuple[str, ...]


Choose = Callable[[int, StageNodes, Sequence[fx.Node]], fx.Node]
"""Which of several values stage n sends on, given the nodes up to the last of them."""


def cut(
    program: ExportedProgram, weights: Mapping[str, Sequence[int]], boundaries: Sequence[Boundary], choose: Choose
) -> tuple[StageNodes, ...]:
    """The stages of `program`, one more than `boundaries`. `weights`: name of a parameter -> the stages that have it.

    `choose` is asked where a stage could end at several places.

    Raises `ShardplanError` (`cannot-cut`) with every boundary at which not exactly one value is sent.
    """
    chain = _Chain(program, weights)
    places, sent = [0], list[fx.Node]()
    faults: list[Diagnostic] = []
    for number, boundary in enumerate(boundaries):
        found = chain.places(number, boundary, places[-1])
        if not found:
            faults.append(chain.fault(number, boundary))
            continue
        value, values = next(iter(found)), list(found)
        if len(found) > 1:
            nodes = chain.stage(places[-1], max(found.values()), sent[-1] if sent else None, values[-1])
            value = choose(number, nodes, values)
        places.append(found[value])
        sent.append(value)
    if faults:
        raise ShardplanError(*faults)
    places.append(len(chain.order))
    return tuple(
        chain.stage(low, high, received, out)
        for (low, high), received, out in zip(itertools.pairwise(places), [None, *sent], [*sent, None], strict=True)
    )


class _Chain:
    """Operations that depend on weights, in order. `stages`: of those that read a weight, (first, last) that has it."""

    def __init__(self, program: ExportedProgram, weights: Mapping[str, Sequence[int]]) -> None:
        self.program = program
        self.specs = input_specs(program)
        self.outputs = [node for node in user_outputs(program) if isinstance(node, fx.Node)]
        held = {
            node: weights[str(self.specs[node.name].target)]
            for node in program.graph.nodes
            if node.op == "placeholder" and str(self.specs[node.name].target) in weights
        }
        bound = set(held)
        self.order: list[fx.Node] = []
        self.stages: list[tuple[int, int] | None] = []
        for node in program.graph.nodes:
            if node.op == "call_function" and any(source in bound for source in node.all_input_nodes):
                bound.add(node)
                self.order.append(node)
                read = [held[source] for source in node.all_input_nodes if source in held]
                self.stages.append((max(map(min, read)), min(map(max, read))) if read else None)
        self.index = {node: place for place, node in enumerate(self.order)}
        self.last = {node: self._last(node) for node in self.order}

    def _last(self, node: fx.Node) -> int:
        """The place of the last operation that reads a value."""
        if node in self.outputs:
            return len(self.order)
        return max((self.index[user] for user in node.users if user in self.index), default=-1)

    def bounds(self, boundary: int) -> tuple[int, int]:
        """The places between which the cut lies: none of an earlier stage's weights is read after, none of a later
        one's before."""
        low = max((place + 1 for place, had in enumerate(self.stages) if had and had[1] <= boundary), default=0)
        high = min(
            (place for place, had in enumerate(self.stages) if had and had[0] > boundary), default=len(self.order)
        )
        return low, high

    def crossing(self, place: int) -> list[fx.Node]:
        """The values that are used on both sides of a place."""
        return [node for node in self.order[:place] if self.last[node] >= place]

    def places(self, boundary: int, wanted: Boundary, after: int) -> dict[fx.Node, int]:
        """Values of the right shape that alone cross a place, each with the first such place."""
        low, high = self.bounds(boundary)
        found: dict[fx.Node, int] = {}
        for place in range(max(low, after + 1), high + 1):
            values = self.crossing(place)
            if len(values) == 1 and _shape(values[0]) == wanted.shape:
                found.setdefault(values[0], place)
        return found

    def fault(self, number: int, wanted: Boundary) -> Diagnostic:
        """Why there is no such place."""
        low, high = self.bounds(number)
        summary = f"the model has no place where stage {number} can end as the plan says, with '{wanted.tensor}'"
        if low > high:
            detail = f"{self._said(low - 1)} needs a weight of stage {number} or before, {self._said(high)} one after"
        else:
            values = self.crossing(low)
            named = ", ".join(f"{node.name} {list(_shape(node) or ())}" for node in values[:4])
            detail = f"behind {self._said(low - 1)} {len(values)} values go on: {named}"
        hint = "is the model the one that was planned? solve again for it, with --stages or stages: by hand"
        return error("cannot-cut", summary, detail=detail, hint=hint)

    def _said(self, place: int) -> str:
        return self.order[place].name if 0 <= place < len(self.order) else "the end"

    def stage(self, low: int, high: int, received: fx.Node | None, sent: fx.Node | None) -> StageNodes:
        """The operations from `low` to `high` with all that they read."""
        own = set(self.order[low:high])
        wanted = _needed([*own, *(self.outputs if sent is None else ())], stop=received) | own
        arguments = [
            node.name
            for node in self.program.graph.nodes
            if node in wanted and node.op == "placeholder" and is_tensor_argument(self.specs[node.name])
        ]
        return StageNodes(frozenset(wanted), received, sent, tuple(arguments))


def _needed(nodes: Iterable[fx.Node], stop: fx.Node | None) -> set[fx.Node]:
    """Everything that `nodes` depend on, except what `stop` depends on."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found and node is not stop:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
