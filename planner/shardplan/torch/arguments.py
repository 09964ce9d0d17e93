"""Arguments and results of a model under a plan: inputs in the plan's layouts, results as DTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.distributed.tensor import DTensor

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.plan.types import TensorDecision
from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.placements import to_layout, wrap
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.lineage import leaf
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value


def match_inputs(names: Sequence[str], inputs: Sequence[TensorDecision]) -> dict[str, TensorDecision]:
    """Argument -> input of the plan: by name, the remaining ones in order.

    Raises `ShardplanError` (`wrong-inputs`) if there are fewer inputs than arguments.
    """
    by_name = {tensor.name: tensor for tensor in inputs}
    partner = {name: by_name[name] for name in names if name in by_name}
    rest = [tensor for tensor in inputs if tensor not in partner.values()]
    others = [name for name in names if name not in partner]
    if len(others) > len(rest):
        listed = ", ".join(by_name) or "none"
        summary = f"the model is called with the tensors {', '.join(names)}; the plan's inputs are {listed}"
        hint = did_you_mean(others[0], by_name) or "solve again for a model with these inputs"
        raise ShardplanError(error("wrong-inputs", summary, hint=hint))
    return partner | dict(zip(others, rest, strict=False))


def input_value(applied: AppliedPlan, decision: TensorDecision, tensor: Tensor) -> Value:
    """An argument, whole on every process or a DTensor, moved to the layout in which the plan keeps the input, if its
    shape allows that layout.

    Raises `ShardplanError`: `unknown-placement`.
    """
    engine, mesh = applied.engine, applied.groups.mesh
    shape = tuple(tensor.shape)
    local, layout = tensor, Layout.replicated(len(mesh))
    if isinstance(tensor, DTensor):
        found = to_layout(tensor.placements, mesh, shape)
        if found is None:
            summary = f"input '{decision.name}' has placements {list(tensor.placements)}, which no plan can name"
            hint = "make it with shardplan.torch.inputs(plan, mesh, batch)"
            raise ShardplanError(error("unknown-placement", summary, hint=hint))
        local, layout = tensor.to_local(), found
    if local.device.type != "meta":
        local = local.to(applied.groups.device)
    key = Key(engine.graph.signatures.leaf("input", decision.name), shape)
    value = engine.result(local, layout, shape, key)
    if not engine.knows(key) and is_legal(decision.layout.forward, mesh, shape):
        value = engine.convert(value, decision.layout, inner=True)
    value.lineage = leaf("input", decision.name)
    return value


def check_shapes(applied: AppliedPlan, shapes: Mapping[str, tuple[int, ...]], *, strict: bool) -> None:
    """Checks the shapes of inputs, by the plan's names (see `AppliedPlan.take`). Shapes that differ from the plan's in
    more than the number of rows pass only if more may be sent than the plan says.

    Raises `ShardplanError` (`wrong-shape`).
    """
    if not applied.take(shapes) and strict:
        changed = [each for each in applied.inputs if shapes.get(each.name, each.shape) != each.shape]
        found, shape = changed[0], shapes[changed[0].name]
        only_rows = all(shapes[each.name][1:] == each.shape[1:] for each in changed) and shape[:1] < found.shape[:1]
        refuse_shape(applied, found, shape, applied.fewest_rows(found, changed) if only_rows else None)


def refuse_shape(
    applied: AppliedPlan,
    decision: TensorDecision,
    shape: tuple[int, ...],
    rows: int | None = None,
    *,
    is_graph: bool = False,
) -> None:
    """Raises `ShardplanError` (`wrong-shape`) for an input of another shape than the plan's. `rows`: of which number
    the rows of a smaller batch have to be a multiple; `is_graph`: no input of another shape runs."""
    if shape != decision.shape:
        found = _wrong_shape(decision, shape, microbatches_of(applied.plan), rows)
        if is_graph and microbatches_of(applied.plan) == 1:
            hint = "a graph is of one shape: pad the batch to it, solve again for this one, or apply the plan with "
            found = replace(found, hint=f"{hint}parallelize, which takes fewer rows")
        raise ShardplanError(found)


def _wrong_shape(decision: TensorDecision, shape: tuple[int, ...], micro: int, rows: int | None) -> Diagnostic:
    whose = "the plan is for" if micro == 1 else f"each of the plan's {micro} microbatches has"
    summary = f"input '{decision.name}' has shape {list(shape)}, {whose} {list(decision.shape)}"
    hint = "solve again for this shape, pad the batch to the plan's, or let more be sent: strict=False"
    if rows is not None and rows < decision.shape[0]:
        hint = f"give it a multiple of {rows} rows, which the plan can divide, or let more be sent: strict=False"
    if 0 in shape[:1]:
        hint = "leave batches without rows out"
    elif micro > 1:
        hint = "cut the batch of a step: for part in shardplan.torch.microbatches(model, batch)"
    return error("wrong-shape", summary, hint=hint)


def output_tensor(engine: Engine, local: Tensor, layout: Layout, shape: tuple[int, ...], *, grad: bool) -> DTensor:
    """A local result as the DTensor that the program gets; its gradient comes back in the plan's layout of it."""
    return wrap(local, layout, shape, engine.groups, gradient=layout.gradient if grad else None)
