"""One stage of a pipeline as a graph: what it gets from the stage before, runs under its own plan, and hands on.

What goes from one stage to the next is sent outside of the graphs (`shardplan.torch.peers`): a graph begins with its
process's part of what it is fed and ends with its part of what it hands on, in the layouts that the plan says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.plan.types import TensorDecision
from shardplan.runtime.names import Named
from shardplan.torch.cuts import StageNodes
from shardplan.torch.engine import Engine
from shardplan.torch.exported import Rewriting
from shardplan.torch.graph import Key
from shardplan.torch.microbatch import microbatches_of
from shardplan.torch.parallelize import Applied, output_tensor, run_eagerly
from shardplan.torch.strictness import check_record
from shardplan.torch.values import Value
from shardplan.torch.writing import Traced, Writer


class Left(NamedTuple):
    """A result of the last stage, of which every process has its local part."""

    layout: Layout
    shape: tuple[int, ...]
    grad: bool


@dataclass
class Part:
    """A piece of the model on this process. `received`, `handed`: like the local tensors it gets and hands on (on the
    meta device), None at the ends; `left`: what the last stage's results are (None: not a tensor of the plan)."""

    number: int
    nodes: StageNodes
    applied: Applied
    module: fx.GraphModule = field(init=False)
    received: Tensor | None = None
    results: tuple[Tensor, ...] = ()
    left: list[Left | None] = field(default_factory=list)
    turn: int = 0

    def begin(self) -> None:
        """A step begins."""
        self.turn = 0
        self.applied.now.held.drop()

    def next_turn(self) -> None:
        """A microbatch runs forward; in training the last one brings the gradients home."""
        self.applied.now.held.turn(self.turn, microbatches_of(self.applied.plan))
        self.turn += 1

    def whole(self, outputs: Sequence[Any]) -> list[Any]:
        """Local results of the last stage as DTensors."""
        engine = self.applied.engine
        return [
            local if left is None else output_tensor(engine, local, left.layout, left.shape, grad=left.grad)
            for local, left in zip(outputs, self.left, strict=True)
        ]


def write_stage(
    part: Part,
    program: ExportedProgram,
    root: nn.Module,
    partners: Mapping[str, TensorDecision],
    fed: tuple[str, Layout] | None,
    handed: Layout | None,
) -> None:
    """Fill in `part`: its graph over the tensors of `root`. `fed`: what is handed over, and the layout it arrives in;
    `handed`: the layout in which what is handed on leaves.

    Raises `ShardplanError` as `check_record`, where the plan is applied strictly.
    """
    applied = part.applied
    writer = Writer(root, applied.now, applied.grid)
    engine = applied.engine.with_backend(writer)
    rewriting = _StageRewriting(program, part, engine, writer, partners)
    rewriting.ends = fed, handed
    outputs = rewriting.run()
    if applied.strict:
        check_record(engine)
    writer.graph.output(outputs)
    writer.graph.lint()
    part.module = fx.GraphModule(root, writer.graph, f"Stage{part.number}")
    _finish(part)


def most_alike(
    values: Sequence[fx.Node],
    wanted: str,
    part: Part,
    program: ExportedProgram,
    root: nn.Module,
    partners: Mapping[str, TensorDecision],
    fed: tuple[str, Layout] | None,
) -> fx.Node:
    """Which of `values`, that `part` computes, is the plan's value `wanted`: the one that is the same function of the
    same weights, else the first. Nothing is sent."""
    engine = part.applied.engine.with_backend(writer := Writer(root, part.applied.now, part.applied.grid))
    probe = _Probe(program, part, engine, writer, partners)
    probe.ends = fed, None
    probe.run()
    key = engine.graph.keys.get(wanted)
    if key is None:
        return values[0]
    keys = [probe.values[value].key for value in values]
    far = [(other[:3] != key[:3], abs(other.place - key.place), place) for place, other in enumerate(keys)]
    return values[min(far)[2]]


class _StageRewriting(Rewriting):
    ends: tuple[tuple[str, Layout] | None, Layout | None]

    def __init__(
        self, program: ExportedProgram, part: Part, engine: Engine, writer: Writer, known: Mapping[str, TensorDecision]
    ) -> None:
        super().__init__(program, part.applied, engine, writer)
        self.part, self.known = part, known

    def run(self) -> list[fx.Node]:
        fed, (given, _) = self.part.nodes.fed, self.ends
        if fed is not None and given is not None:
            self.values[fed] = self._received(fed, *given)
        return super().run()

    def wants(self, node: fx.Node) -> bool:
        return node in self.part.nodes.nodes

    def partners(self, names: Sequence[str]) -> Mapping[str, TensorDecision]:
        del names
        own = {decision.name: decision for decision in self.applied.inputs}
        return {name: own[decision.name] for name, decision in self.known.items() if decision.name in own}

    def results(self) -> Sequence[Any]:
        handed = self.part.nodes.handed
        return super().results() if handed is None else [handed]

    def _received(self, node: fx.Node, tensor: str, layout: Layout) -> Value:
        """What the stage before hands over, brought to where this stage keeps it."""
        example: Tensor = node.meta["val"]
        shape = tuple(example.shape)
        local = local_shape(layout.forward, self.applied.grid.mesh, shape)
        part = torch.empty(local, dtype=example.dtype, device="meta")
        part.requires_grad_(self.applied.trains and part.is_floating_point())
        self.part.received = part
        place = self.writer.placeholder("received", part)
        signatures = self.engine.graph.signatures
        key = Key(signatures.leaf("input", tensor), shape)
        arrived = layout if part.requires_grad else layout.forward
        value = Value(place, arrived, shape, example.dtype, part.requires_grad, key)
        kept = self.engine.graph.values[key].layout
        return self.engine.convert(value, kept, inner=True)

    def output(self, argument: Any) -> Any:
        value = self.values[argument] if isinstance(argument, fx.Node) else argument
        if not isinstance(value, Value):
            self.part.left.append(None)
            return super().output(argument)
        value = self.engine.kept(value)
        if self.part.nodes.handed is not None and self.ends[1] is not None:
            value = self.engine.convert(value, self.ends[1], inner=True)
        self.part.left.append(Left(value.layout, value.shape, value.grad))
        self.part.results = (*self.part.results, value.local.meta)
        return value.local.node


class _Probe(_StageRewriting):
    """Works out what values are, for a stage that this process need not run."""

    def weight(self, name: str, named: Named) -> Traced:
        shape = local_shape(named.layout.forward, self.applied.grid.mesh, named.shape)
        tensor = self._held(name)
        meta = torch.empty(shape, dtype=tensor.dtype, device="meta")
        meta.requires_grad_(tensor.requires_grad and self.applied.trains)
        return self.writer.attribute(name, meta)


def _finish(part: Part) -> None:
    """Take arguments by name, and let autograd bring again what the plan brings again."""
    applied, names = part.applied, part.nodes.arguments

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del module
        part.next_turn()
        applied.start_saving()
        missing = names[len(args) - (part.received is not None) :]
        return (*args, *(kwargs[name] for name in missing)), {}

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        applied.stop_saving()
        if output is None:
            return None
        return output[0] if len(output) == 1 else tuple(output)

    run_eagerly(part.module, enter, leave)
    object.__setattr__(part.module, "_shardplan", applied)
