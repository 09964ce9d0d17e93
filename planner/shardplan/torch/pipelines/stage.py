"""One pipeline stage as a graph under its own plan.

A graph takes the local part of what the stage receives and returns the local part of what it sends, in the layouts of
the plan; the transfer itself is outside of the graph (`shardplan.torch.pipelines.sharded_stage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.plan.types import TensorDecision
from shardplan.runtime.names import Named
from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.arguments import output_tensor
from shardplan.torch.exported.modes import PlannedGraph, exchange, run_graph_under
from shardplan.torch.exported.rewriter import GraphRewriter
from shardplan.torch.exported.writer import Traced, Writer
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.pipelines.cut import StageNodes
from shardplan.torch.propagation.conformance import check_conformance
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.lineage import leaf
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value


class StageOutput(NamedTuple):
    """A result of the last stage, of which every process has its local part."""

    layout: Layout
    shape: tuple[int, ...]
    grad: bool


@dataclass
class LocalStage:
    """A stage of this process. `root`: its tensors, also those that it does not read; `graph`: what `module` runs;
    `received`: a meta tensor like the local part that it receives; `results`: like those that it returns; `outputs`: of
    the last stage (None: not a tensor of the plan); `microbatch`: how many have run."""

    number: int
    nodes: StageNodes
    applied: AppliedPlan
    module: PlannedGraph = field(init=False)
    root: nn.Module = field(init=False)
    graph: fx.Graph = field(init=False)
    received: Tensor | None = None
    results: tuple[Tensor, ...] = ()
    outputs: list[StageOutput | None] = field(default_factory=list)
    microbatch: int = 0

    def take(self, other: LocalStage) -> None:
        """From here on run what `other` was written to run: the same stage of the model in another mode."""
        self.nodes, self.graph, self.received = other.nodes, other.graph, other.received
        self.results, self.outputs = other.results, other.outputs
        exchange(self.module, other.graph, other.module)

    def begin(self) -> None:
        """A step begins."""
        self.microbatch = 0
        self.applied.execution.accumulator.reset()

    def begin_microbatch(self) -> None:
        """A microbatch runs forward; the backward pass of the last one reduces accumulated gradients."""
        self.applied.execution.accumulator.begin_microbatch(self.microbatch, microbatches_of(self.applied.plan))
        self.microbatch += 1

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The placeholders of the graph, of the arguments of a microbatch, which begins."""
        self.begin_microbatch()
        missing = self.nodes.arguments[len(args) - (self.received is not None) :]
        return (*args, *(kwargs[keyword_of(name)] for name in missing))

    def global_outputs(self, outputs: Sequence[Any]) -> list[Any]:
        """Local results of the last stage as DTensors."""
        engine = self.applied.engine
        return [
            local if output is None else output_tensor(engine, local, output.layout, output.shape, grad=output.grad)
            for local, output in zip(outputs, self.outputs, strict=True)
        ]


def keyword_of(argument: str) -> str:
    """By which name a schedule is given an argument of the program: it has keywords of its own (`target`)."""
    return f"argument {argument}"


def write_stage(
    stage: LocalStage,
    program: ExportedProgram,
    root: nn.Module,
    partners: Mapping[str, TensorDecision],
    received: tuple[str, Layout] | None,
    sent: Layout | None,
) -> None:
    """Fill in `stage`: its graph over the tensors of `root`, which nothing runs yet. `received`: the tensor that it
    receives, and its layout on arrival; `sent`: the layout in which its result is sent.

    Raises `ShardplanError` as `check_conformance`, where the plan is applied strictly.
    """
    applied = stage.applied
    writer = Writer(root, applied.execution, applied.groups)
    engine = applied.engine.with_backend(writer)
    rewriting = _StageRewriting(program, stage, engine, writer, partners)
    rewriting.ends = received, sent
    outputs = rewriting.run()
    if applied.strict:
        check_conformance(engine)
    stage.module, stage.root = writer.finish(outputs, f"Stage{stage.number}"), root
    stage.graph = stage.module.graph


def run_stage(stage: LocalStage) -> None:
    """Makes a written stage ready to run, in whatever mode it will be."""
    stage.module.modes = _ModesOfPipeline(stage)
    run_graph_under(stage.module, stage.applied)


@dataclass(frozen=True)
class _ModesOfPipeline:
    """All stages of a model are in one mode."""

    stage: LocalStage

    def begin(self, graph: PlannedGraph, *, training: bool) -> None:
        """Raises `ShardplanError` (`fixed-mode`) where this stage alone is to be in another mode."""
        if training != graph.training:
            hint = "call train() and eval() of the pipeline, on all processes"
            raise ShardplanError(error("fixed-mode", "a stage of a pipeline has no mode of its own", hint=hint))

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The placeholders of the graph, of the arguments of a microbatch, which begins."""
        return self.stage.arguments(args, kwargs)

    def results(self, outputs: Sequence[Any]) -> Any:
        """What the stage returns, of the outputs of the graph."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def matching_value(
    values: Sequence[fx.Node],
    wanted: str,
    stage: LocalStage,
    program: ExportedProgram,
    root: nn.Module,
    partners: Mapping[str, TensorDecision],
    received: tuple[str, Layout] | None,
) -> fx.Node:
    """The value among `values` of `stage` that is the plan's value `wanted`: the one that is the same function of the
    same weights, else the first. Nothing is sent."""
    engine = stage.applied.engine.with_backend(writer := Writer(root, stage.applied.execution, stage.applied.groups))
    probe = _Probe(program, stage, engine, writer, partners)
    probe.ends = received, None
    probe.run()
    key = engine.graph.keys.get(wanted)
    if key is None:
        return values[0]
    keys = [probe.value_at(value).key for value in values]
    far = [(other[:3] != key[:3], abs(other.place - key.place), place) for place, other in enumerate(keys)]
    return values[min(far)[2]]


class _StageRewriting(GraphRewriter):
    ends: tuple[tuple[str, Layout] | None, Layout | None]

    def __init__(
        self,
        program: ExportedProgram,
        stage: LocalStage,
        engine: Engine,
        writer: Writer,
        known: Mapping[str, TensorDecision],
    ) -> None:
        super().__init__(program, stage.applied, engine, writer)
        self.stage, self.known = stage, known

    def run(self) -> list[fx.Node]:
        received, (arriving, _) = self.stage.nodes.received, self.ends
        if received is not None and arriving is not None:
            self.values[received] = self._received(received, *arriving)
        return super().run()

    def wants(self, node: fx.Node) -> bool:
        return node in self.stage.nodes.nodes

    def partners(self, names: Sequence[str]) -> Mapping[str, TensorDecision]:
        del names
        own = {decision.name: decision for decision in self.applied.inputs}
        return {name: own[decision.name] for name, decision in self.known.items() if decision.name in own}

    def results(self) -> Sequence[Any]:
        sent = self.stage.nodes.sent
        return super().results() if sent is None else [sent]

    def _received(self, node: fx.Node, tensor: str, layout: Layout) -> Value:
        """What this stage receives, moved to the layout in which its plan keeps it."""
        example: Tensor = node.meta["val"]
        shape = tuple(example.shape)
        local = local_shape(layout.forward, self.applied.groups.mesh, shape)
        part = torch.empty(local, dtype=example.dtype, device="meta")
        part.requires_grad_(self.applied.trains and part.is_floating_point())
        self.stage.received = part
        place = self.writer.placeholder("received", part)
        signatures = self.engine.graph.signatures
        key = Key(signatures.leaf("input", tensor), shape)
        arrived = layout if part.requires_grad else layout.forward
        told = leaf("received", tensor)
        value = Value(place, arrived, shape, example.dtype, part.requires_grad, key, lineage=told)
        kept = self.engine.graph.values[key].layout
        return self.engine.convert(value, kept, inner=True)

    def output(self, argument: Any) -> Any:
        value = self.value_at(argument) if isinstance(argument, fx.Node) else argument
        if not isinstance(value, Value):
            self.stage.outputs.append(None)
            return super().output(argument)
        if self.stage.nodes.sent is not None and self.ends[1] is not None:
            value = self.engine.convert(self.engine.kept(value), self.ends[1], inner=True)
        else:
            value = self.engine.as_output(value)
        self.stage.outputs.append(StageOutput(value.layout, value.shape, value.grad))
        self.stage.results = (*self.stage.results, value.local.meta)
        return value.local.node


class _Probe(_StageRewriting):
    """Computes the keys of values of a stage that this process need not run."""

    def weight(self, name: str, named: Named) -> Traced:
        shape = local_shape(named.layout.forward, self.applied.groups.mesh, named.shape)
        tensor = self._tensor(name)
        meta = torch.empty(shape, dtype=tensor.dtype, device="meta")
        meta.requires_grad_(tensor.requires_grad and self.applied.trains)
        return self.writer.attribute(name, meta)
