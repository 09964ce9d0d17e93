"""An exported program cut into the stages of a pipeline.

A stage runs the operations that read its weights, and those in between. The plan says which weights a stage has; so a
cut is after the last operation that reads a weight of an earlier stage and before the first that reads one of a later
stage, where exactly one value that depends on weights is used later. Values that depend on no weight (masks, positions)
are computed by every stage that reads them. So are changes of buffers that depend on no weight (counters): by all
stages that read the buffer, else by one that has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.torch.exported.program import (
    arguments_written,
    changed_buffers,
    input_specs,
    is_tensor_argument,
    user_outputs,
)
from shardplan.torch.rules.function_names import in_place
from shardplan.torch.rules.views import is_view


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
    program: ExportedProgram,
    weights: Mapping[str, Sequence[int]],
    boundaries: Sequence[Boundary],
    choose: Choose,
    homes: Mapping[str, int],
) -> tuple[StageNodes, ...]:
    """The stages of `program`, one more than `boundaries`. `weights`: name of a parameter -> the stages that have it;
    `homes`: name of a parameter or buffer -> the first stage that has it, unless all have it.

    `choose` is asked where a stage could end at several places.

    Raises `ShardplanError` (`cannot-cut`) with every boundary at which not exactly one value is sent, or with buffers
    that a stage changes by what it computes of weights, and others read.
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
    ends = list(zip(itertools.pairwise(places), [None, *sent], [*sent, None], strict=True))
    stages = [chain.stage(low, high, received, out) for (low, high), received, out in ends]
    for number, changes in chain.other_changes(stages, homes).items():
        (low, high), received, out = ends[number]
        stages[number] = chain.stage(low, high, received, out, changes)
    chain.refuse_common_buffers(stages)
    return tuple(stages)


class _Chain:
    """Operations that depend on weights, in order. `stages`: of those that read a weight, (first, last) that has it;
    `changes`: buffers with nodes that change them; `ends`: what is computed for some of these alone."""

    def __init__(self, program: ExportedProgram, weights: Mapping[str, Sequence[int]]) -> None:
        self.program = program
        self.specs = input_specs(program)
        self.outputs = [node for node in user_outputs(program) if isinstance(node, fx.Node)]
        held = {
            node: weights[str(self.specs[node.name].target)]
            for node in program.graph.nodes
            if node.op == "placeholder" and str(self.specs[node.name].target) in weights
        }
        self.changes = list(_changes(program, self.specs))
        self.ends = _ends(program, [node for _, node in self.changes], self.outputs)
        self.order = _in_order(program, set(held), self.ends)
        self.stages: list[tuple[int, int] | None] = []
        for node in self.order:
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
            if place < len(self.order) and self.order[place] in self.ends:
                continue  # a buffer is changed where that is computed which it becomes
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

    def stage(
        self, low: int, high: int, received: fx.Node | None, sent: fx.Node | None, changes: Iterable[fx.Node] = ()
    ) -> StageNodes:
        """The operations from `low` to `high`, and `changes` of buffers, with all that they read."""
        own = {*self.order[low:high], *changes}
        wanted = _needed([*own, *(self.outputs if sent is None else ())], stop=received) | own
        wanted |= {buffer for buffer, change in self.changes if change in own}
        wanted = self._with_changes(wanted)
        arguments = [
            node.name
            for node in self.program.graph.nodes
            if node in wanted and node.op == "placeholder" and is_tensor_argument(self.specs[node.name])
        ]
        return StageNodes(frozenset(wanted), received, sent, tuple(arguments))

    def _with_changes(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """These nodes, and the changes of buffers that they read which depend on no weight."""
        free = [pair for pair in self.changes if pair[1] not in self.index]
        while True:
            changes = [pair for pair in free if pair[0] in nodes and pair[1] not in nodes]
            if not changes:
                return nodes
            nodes = nodes | _needed(itertools.chain(*changes), stop=None)

    def other_changes(self, stages: Sequence[StageNodes], homes: Mapping[str, int]) -> dict[int, list[fx.Node]]:
        """By stage, the changes of buffers that no stage reads."""
        found: dict[int, list[fx.Node]] = {}
        for buffer, change in self.changes:
            if change.op == "call_function" and not any(change in stage.nodes for stage in stages):
                home = homes.get(str(self.specs[buffer.name].target), 0)
                found.setdefault(home, []).append(change)
        return found

    def refuse_common_buffers(self, stages: Sequence[StageNodes]) -> None:
        """Raises `ShardplanError` (`cannot-cut`) where one stage changes a buffer and another one reads it: the other
        cannot know, and is at another microbatch."""
        for buffer, change in self.changes:
            having = [number for number, stage in enumerate(stages) if buffer in stage.nodes]
            if change in self.index and len(having) > 1:
                own = next(number for number, stage in enumerate(stages) if change in stage.nodes)
                other = next(number for number in having if number != own)
                name = self.specs[buffer.name].target
                summary = (
                    f"stage {own} changes the buffer '{name}' by what it computes of weights, stage {other} reads it"
                )
                hint = "end the stages elsewhere (stages: by hand), or apply a plan without stages with parallelize"
                raise ShardplanError(error("cannot-cut", summary, hint=hint))


def _in_order(program: ExportedProgram, bound: set[fx.Node], ends: Container[fx.Node]) -> list[fx.Node]:
    """The operations that depend on what is `bound`. Those at the `ends` follow the last operation that they depend on:
    an export may set buffers behind all else."""
    order: list[fx.Node] = []
    for node in program.graph.nodes:
        read = [source for source in node.all_input_nodes if source in bound]
        if node.op == "call_function" and read:
            bound.add(node)
            computed = [order.index(source) for source in read if source.op == "call_function"] if node in ends else []
            order.insert(max(computed) + 1 if computed else len(order), node)
    return order


def _ends(program: ExportedProgram, changes: Container[fx.Node], outputs: Container[fx.Node]) -> set[fx.Node]:
    """The operations among `changes` whose result nothing reads, and those that nothing but such operations reads."""
    ends: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        users = {user for user in node.users if user.op != "output"}
        if node.op == "call_function" and ends.issuperset(users) and (users or node in changes) and node not in outputs:
            ends.add(node)
    return ends


def _changes(program: ExportedProgram, specs: Mapping[str, InputSpec]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The buffers that a program changes, as placeholders, each with the node of a change."""
    buffers = {node: specs[node.name] for node in program.graph.nodes if node.op == "placeholder"}
    buffers = {node: spec for node, spec in buffers.items() if spec.kind == InputKind.BUFFER}
    by_name = {str(spec.target): node for node, spec in buffers.items()}
    for name, made in changed_buffers(program).items():
        yield by_name[name], made
    for node in program.graph.nodes:
        for target in arguments_written(node) if node.op == "call_function" else ():
            base = _base(target)
            if base in buffers:
                yield base, node


def _base(tensor: Any) -> Any:
    """What a node is a view of, or what it has changed in place."""
    while isinstance(tensor, fx.Node) and tensor.op == "call_function":
        if not (in_place(tensor.target) or is_view(tensor.target, ())):
            break
        tensor = tensor.args[0]
    return tensor


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
