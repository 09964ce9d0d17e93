"""Plans on exported programs: every node works on local tensors, every move of the plan is a node.

All layouts are decided when the graph is written; nothing is decided while it runs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardplan.plan.types import Plan
from shardplan.runtime.names import Rename
from shardplan.torch.applied_plan import AppliedPlan, attach, prepare
from shardplan.torch.argument_paths import Inputs, called_with
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.exported.compiled import Compiler, compile_between_moves
from shardplan.torch.exported.example_batch import first_microbatch
from shardplan.torch.exported.modes import Mode, PlannedGraph, UnweightedModel, exchange, root_for, run_graph_under
from shardplan.torch.exported.program import export_program, hold_all, parameter_tree
from shardplan.torch.exported.rewriter import GraphRewriter
from shardplan.torch.exported.writer import Writer
from shardplan.torch.propagation.conformance import check_conformance, warn_of_differences


def parallelize_exported(
    model: nn.Module,
    example_inputs: Inputs,
    plan: Plan,
    mesh: DeviceMesh,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
    backend: Compiler | None = None,
) -> fx.GraphModule:
    """The graph of `model` (by `torch.export`, with the shapes of `example_inputs`) with `plan` written into it.

    `example_inputs`: arguments by place (a tuple, or one tensor) or by name (a mapping), as `plan` takes them:
    the batch of a step, of which the graph gets the first microbatch under a plan of several, or one microbatch.
    The result is called as the model is, returns DTensors in the layouts of the plan's outputs, and holds the model's
    parameters as DTensors under their own names. All that `strict` refuses (see `parallelize`) is refused here, before
    anything runs. `eval()` and `train()` of the result write the graph of that mode when it is first asked for, from a
    copy of the model without its weights; they raise as this function does, and `fixed-mode`. `backend`: a backend of
    `torch.compile` for what stands between the moves (`"inductor"`); without one it runs operation by operation.

    Raises `ShardplanError` as `parallelize`, and `cannot-export` with what torch says.
    """
    args, kwargs = called_with(example_inputs, example_kwargs)
    applied = prepare(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    args, kwargs = first_microbatch(model, applied, args, kwargs)
    form = CallForm.of(model, args, kwargs)
    program, unweighted = export_program(model, args, kwargs), UnweightedModel.of(model, args, kwargs)
    attach(model, applied)
    root = parameter_tree(model)
    made = _written(program, applied, root, backend, type(model).__name__)
    hold_all(made, model)
    modes = _GraphModes(unweighted, applied, root, backend, form)
    modes.start(made, program.call_spec.out_spec)
    made.train(model.training)
    made.modes = modes
    run_graph_under(made, applied)
    return made


def _written(
    program: ExportedProgram, applied: AppliedPlan, root: nn.Module, backend: Compiler | None, name: str
) -> PlannedGraph:
    """The graph of a program over the tensors of `root`, as a module called `name`."""
    writer = Writer(root, applied.execution, applied.groups)
    engine = applied.engine.with_backend(writer)
    outputs = GraphRewriter(program, applied, engine, writer).run()
    (check_conformance if applied.strict else warn_of_differences)(engine)
    compiled = sum(name.startswith("between_") for name in root._modules)  # noqa: SLF001 - as torch has them
    made = writer.finish(outputs, name)
    if backend is not None:
        compile_between_moves(made, backend, compiled)
        applied.is_compiled = True
    return made


@dataclass
class _GraphModes:
    """The graphs of a model in the modes that were asked for. `root`: all its tensors; `form`: how it is called;
    `mode`: that of the graph that runs, and `spec`, of its results."""

    unweighted: UnweightedModel
    applied: AppliedPlan
    root: nn.Module
    backend: Compiler | None
    form: CallForm
    mode: Mode = ()
    spec: pytree.TreeSpec = field(init=False)
    graphs: dict[Mode, tuple[fx.Graph, pytree.TreeSpec]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> _GraphModes:
        """Those of a copy of the graph, with its tensors. Both ask the same model for what is not written yet."""
        made = memo[id(self)] = copy.copy(self)
        made.root = copy.deepcopy(self.root, memo)
        made.graphs = {mode: (copy.deepcopy(graph, memo), spec) for mode, (graph, spec) in self.graphs.items()}
        return made

    def start(self, graph: PlannedGraph, spec: pytree.TreeSpec) -> None:
        """`graph` is that of the mode in which the model is."""
        self.mode = self.unweighted.mode
        self.graphs[self.mode], self.spec = (graph.graph, spec), spec

    def begin(self, graph: PlannedGraph, *, training: bool) -> None:
        """`graph` is from here on that of `model.train(training)`."""
        model, mode = self.unweighted.in_mode(training=training, was=graph.training), self.unweighted.mode
        if mode == self.mode:
            return
        holder: nn.Module = graph
        if mode not in self.graphs:
            program = export_program(model, self.unweighted.args, self.unweighted.kwargs)
            holder = _written(program, self.applied, root_for(graph, self.root), self.backend, type(graph).__name__)
            self.graphs[mode] = holder.graph, program.call_spec.out_spec
        made, self.spec = self.graphs[mode]
        exchange(graph, made, holder)
        self.mode = mode

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The placeholders of the graph, of the arguments of a forward pass, which begins."""
        leaves = tuple(self.form.leaves(args, kwargs))
        self.applied.mode = self.mode
        return leaves

    def results(self, outputs: Any) -> Any:
        """What the model returns, of the outputs of the graph."""
        return pytree.tree_unflatten(outputs, self.spec)
