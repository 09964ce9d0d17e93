"""Microbatches of a step: the batch cut along dim 0; gradients accumulate and are reduced with the last microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.plan.types import Plan
from shardplan.torch.applied_plan import AppliedPlan, applied_to
from shardplan.torch.batches import first_with_rows, inputs, planned_inputs, rows_only
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.microbatch_plan import fewest_rows, microbatches_of, one_microbatch, with_rows
from shardplan.torch.placements import like, to_placements, wrap
from shardplan.torch.process_groups import ProcessGroups


class Microbatches:
    """The microbatches of one step, in order, each a dict of DTensors. Gradients that the plan reduces once a step are
    accumulated, and reduced in the backward pass of the last microbatch."""

    def __init__(self, applied: AppliedPlan, batch: Mapping[str, Any]) -> None:
        self._applied, self._batch = applied, batch

    def __len__(self) -> int:
        return microbatches_of(self._applied.plan)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        accumulator, count = self._applied.execution.accumulator, len(self)
        accumulator.reset()
        try:
            for number in range(count):
                accumulator.begin_microbatch(number, count)
                yield {name: _rows(tensor, number, count) for name, tensor in self._batch.items()}
        finally:
            accumulator.begin_microbatch(0, 1)


def microbatches(model: nn.Module, batch: Mapping[str, Any]) -> Microbatches:
    """A step's batch (name -> tensor of the whole step) as the microbatches of the plan that `model` runs under.

    Every input of the plan must be there, whole on every process or as a DTensor (`shardplan.torch.inputs`). Other
    tensors, targets say, are cut and sharded along dim 0 as the first input is. Call backward on each microbatch's
    loss before the next is taken, divided by `len(...)` where the loss is a mean.

    Raises `ShardplanError` as `inputs`, `not-parallel`, and `uneven-batch` for a tensor whose rows cannot be cut so.
    """
    applied = applied_to(model)
    plan, groups = applied.plan, applied.groups
    known = planned_inputs(plan, groups, batch)
    _check_rows(plan, {each.name: each.shape for each in known.values()})
    whole = inputs(plan, groups.device_mesh, {name: batch[name] for name in known})
    rows = rows_only(first_with_rows(known), len(groups.mesh))
    given = {name: _laid_out(tensor, known[name].layout.forward, groups) for name, tensor in whole.items()}
    extra = {name: _beside(name, each, rows, groups, plan) for name, each in batch.items() if name not in known}
    return Microbatches(applied, {**given, **extra})


def _check_rows(plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `ShardplanError` (`wrong-shape`) for a smaller batch whose microbatches the plan cannot divide."""
    count, small = microbatches_of(plan), one_microbatch(plan)
    changed = {each.name: shapes[each.name] for each in plan.tensors if shapes.get(each.name, each.shape) != each.shape}
    parts = {name: divmod(shape[0], count) for name, shape in changed.items()}
    if not changed or (
        not any(left for _, left in parts.values())
        and with_rows(small, {name: rows for name, (rows, _) in parts.items()}) is not None
    ):
        return
    first, shape = next(iter(changed.items()))
    summary = f"input '{first}' has shape {list(shape)}, whose rows the plan cannot divide into {count} microbatches"
    hint = f"pad it to a multiple of {count * fewest_rows(small, first, changed)} rows, or solve again for this batch"
    raise ShardplanError(error("wrong-shape", summary, hint=hint))


def _laid_out(tensor: DTensor, layout: Layout, groups: ProcessGroups) -> DTensor:
    """A tensor in the layout in which it is cut, so that the parts of all tensors have the same rows."""
    return tensor.redistribute(placements=to_placements(layout, groups.mesh))


def _beside(name: str, given: Any, rows: Layout, groups: ProcessGroups, plan: Plan) -> Any:
    if not isinstance(given, Tensor):
        return given
    pieces = microbatches_of(plan) * groups.mesh.ways([axis for axis, p in enumerate(rows.placements) if p.is_shard])
    if not given.dim() or given.shape[0] % pieces:
        summary = f"'{name}' has shape {list(given.shape)}; its dim 0 cannot be cut into {pieces} equal parts"
        hint = "give it one row for each sample of the batch"
        raise ShardplanError(error("uneven-batch", summary, hint=hint))
    if isinstance(given, DTensor):
        return _laid_out(given, rows, groups)
    return wrap(shard_of_whole(given.to(groups.device), rows, groups), rows, tuple(given.shape), groups)


def _rows(tensor: Any, number: int, count: int) -> Any:
    """Of every process's rows the `number`-th of `count` equal parts; what is no tensor, or has one row for all, as it
    is."""
    if not isinstance(tensor, DTensor) or count == 1 or tensor.shape[0] == 1:
        return tensor
    local = tensor.to_local().chunk(count, 0)[number]
    return like(tensor, local, (tensor.shape[0] // count, *tensor.shape[1:]))
