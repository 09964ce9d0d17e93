"""Plans on exported programs: every node works on local tensors, every move of the plan is a node.

All layouts are decided when the graph is written; nothing is decided while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from shardplan.plan.types import Plan
from shardplan.runtime.names import Rename
from shardplan.torch.applied_plan import attach, prepare, run_graph_under
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.exported.compiled import Compiler, compile_between_moves
from shardplan.torch.exported.program import export_program, hold_all, parameter_tree
from shardplan.torch.exported.rewriter import GraphRewriter
from shardplan.torch.exported.writer import Writer
from shardplan.torch.propagation.conformance import check_conformance, warn_of_differences


def parallelize_exported(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
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

    The result is called as the model is, returns DTensors in the layouts of the plan's outputs, and holds the model's
    parameters as DTensors under their own names. All that `strict` refuses (see `parallelize`) is refused here, before
    anything runs. `backend`: a backend of `torch.compile` for what stands between the moves (`"inductor"`); without
    one it runs operation by operation.

    Raises `ShardplanError` as `parallelize`, and `cannot-export` with what torch says.
    """
    applied = prepare(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    form = CallForm.of(model, example_inputs, dict(example_kwargs or {}))
    program = export_program(model, example_inputs, dict(example_kwargs or {}))
    attach(model, applied)
    root = parameter_tree(model)
    writer = Writer(root, applied.execution, applied.groups)
    engine = applied.engine.with_backend(writer)
    outputs = GraphRewriter(program, applied, engine, writer).run()
    (check_conformance if strict else warn_of_differences)(engine)
    made = writer.finish(outputs, type(model).__name__)
    hold_all(made, model)
    made.train(model.training)
    if backend is not None:
        compile_between_moves(made, backend)
        applied.is_compiled = True
    spec_out = program.call_spec.out_spec
    run_graph_under(
        made, applied, lambda *call: tuple(form.leaves(*call)), lambda out: pytree.tree_unflatten(out, spec_out)
    )
    return made
