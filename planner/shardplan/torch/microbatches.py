"""Microbatches of a step: the batch cut along dim 0; gradients accumulate and are reduced with the last microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.plan.types import Plan
from shardplan.torch.applied_plan import AppliedPlan, applied_to
from shardplan.torch.batches import inputs
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.placements import like, wrap
from shardplan.torch.process_groups import ProcessGroups


class Microbatches:
    """The microbatches of one step, in order, each a dict of DTensors. Gradients that the plan reduces once a step are
    accumulated, and reduced in the backward pass of the last microbatch."""

    def __init__(self, applied: AppliedPlan, batch: Mapping[str, DTensor]) -> None:
        self._applied, self._batch = applied, batch

    def __len__(self) -> int:
        return microbatches_of(self._applied.plan)

    def __iter__(self) -> Iterator[dict[str, DTensor]]:
        accumulator, count = self._applied.execution.accumulator, len(self)
        accumulator.reset()
        try:
            for number in range(count):
                accumulator.begin_microbatch(number, count)
                yield {name: _rows(tensor, number, count) for name, tensor in self._batch.items()}
        finally:
            accumulator.begin_microbatch(0, 1)


def microbatches(model: nn.Module, batch: Mapping[str, Tensor]) -> Microbatches:
    """A step's batch (name -> tensor of the whole step) as the microbatches of the plan that `model` runs under.

    Every input of the plan must be there, whole on every process or as a DTensor (`shardplan.torch.inputs`). Others,
    targets say, are cut and sharded along dim 0 as the first input is. Call backward on each microbatch's loss before
    the next is taken, divided by `len(...)` where the loss is a mean.

    Raises `ShardplanError` as `inputs`, `not-parallel`, and `uneven-batch` for a tensor whose rows cannot be cut so.
    """
    applied = applied_to(model)
    plan, groups = applied.plan, applied.groups
    named = [tensor.name for tensor in plan.tensors if tensor.role == "input"]
    whole = inputs(plan, groups.device_mesh, {name: batch[name] for name in named if name in batch})
    rows = _rows_only(plan, groups)
    extra = {name: _beside(name, tensor, rows, groups, plan) for name, tensor in batch.items() if name not in whole}
    return Microbatches(applied, {**whole, **extra})


def _rows_only(plan: Plan, groups: ProcessGroups) -> Layout:
    """The layout of the first input, of which only shards of dim 0 are taken."""
    first = next((tensor.layout.forward for tensor in plan.tensors if tensor.role == "input"), None)
    if first is None:
        return Layout.replicated(len(groups.mesh))
    return Layout.of(*(p if p.is_shard and p.dim == 0 else R for p in first.placements), order=first.order)


def _beside(name: str, tensor: Tensor, rows: Layout, groups: ProcessGroups, plan: Plan) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    pieces = microbatches_of(plan) * groups.mesh.ways([axis for axis, p in enumerate(rows.placements) if p.is_shard])
    if not tensor.dim() or tensor.shape[0] % pieces:
        summary = f"'{name}' has shape {list(tensor.shape)}; its dim 0 cannot be cut into {pieces} equal parts"
        hint = "give it one row for each sample of the batch"
        raise ShardplanError(error("uneven-batch", summary, hint=hint))
    return wrap(shard_of_whole(tensor.to(groups.device), rows, groups), rows, tuple(tensor.shape), groups)


def _rows(tensor: DTensor, number: int, count: int) -> DTensor:
    """Of every process's rows the `number`-th of `count` equal parts; all of a tensor that has one row for all."""
    if count == 1 or tensor.shape[0] == 1:
        return tensor
    local = tensor.to_local().chunk(count, 0)[number]
    return like(tensor, local, (tensor.shape[0] // count, *tensor.shape[1:]))
