"""A step in several microbatches: the batch cut, and gradients held back until the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.plan.types import Plan
from shardplan.torch.batches import inputs
from shardplan.torch.grid import Grid
from shardplan.torch.microbatch import microbatches_of
from shardplan.torch.parallelize import Applied, applied_to
from shardplan.torch.placements import wrap
from shardplan.torch.steps import part_of_whole


class Microbatches:
    """The microbatches of one step, in order, each a dict of DTensors. While the last one is under way, gradients that
    the plan reduces once a step are reduced; before, they are held."""

    def __init__(self, applied: Applied, batch: Mapping[str, DTensor]) -> None:
        self._applied, self._batch = applied, batch

    def __len__(self) -> int:
        return microbatches_of(self._applied.plan)

    def __iter__(self) -> Iterator[dict[str, DTensor]]:
        held, count = self._applied.now.held, len(self)
        held.drop()
        try:
            for number in range(count):
                held.turn(number, count)
                yield {name: _rows(tensor, number, count) for name, tensor in self._batch.items()}
        finally:
            held.turn(0, 1)


def microbatches(model: nn.Module, batch: Mapping[str, Tensor]) -> Microbatches:
    """A step's batch (name -> tensor of the whole step) as the microbatches of the plan that `model` runs under.

    Every input of the plan must be there, whole on every process or as a DTensor (`shardplan.torch.inputs`). Others,
    targets say, are cut and sharded along dim 0 as the first input is. Call backward on each microbatch's loss before
    the next is taken, divided by `len(...)` where the loss is a mean.

    Raises `ShardplanError` as `inputs`, `not-parallel`, and `uneven-batch` for a tensor whose rows cannot be cut so.
    """
    applied = applied_to(model)
    plan, grid = applied.plan, applied.grid
    named = [tensor.name for tensor in plan.tensors if tensor.role == "input"]
    whole = inputs(plan, grid.device_mesh, {name: batch[name] for name in named if name in batch})
    rows = _rows_only(plan, grid)
    extra = {name: _beside(name, tensor, rows, grid, plan) for name, tensor in batch.items() if name not in whole}
    return Microbatches(applied, {**whole, **extra})


def _rows_only(plan: Plan, grid: Grid) -> Layout:
    """The layout of the first input, of which only shards of dim 0 are taken."""
    first = next((tensor.layout.forward for tensor in plan.tensors if tensor.role == "input"), None)
    if first is None:
        return Layout.replicated(len(grid.mesh))
    return Layout.of(*(p if p.is_shard and p.dim == 0 else R for p in first.placements), order=first.order)


def _beside(name: str, tensor: Tensor, rows: Layout, grid: Grid, plan: Plan) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    pieces = microbatches_of(plan) * grid.mesh.ways([axis for axis, p in enumerate(rows.placements) if p.is_shard])
    if not tensor.dim() or tensor.shape[0] % pieces:
        summary = f"'{name}' has shape {list(tensor.shape)}; its dim 0 cannot be cut into {pieces} equal parts"
        hint = "give it one row for each sample of the batch"
        raise ShardplanError(error("uneven-batch", summary, hint=hint))
    return wrap(part_of_whole(tensor.to(grid.device), rows, grid), rows, tuple(tensor.shape), grid)


def _rows(tensor: DTensor, number: int, count: int) -> DTensor:
    """Of every process's rows the `number`-th of `count` equal parts."""
    local = tensor.to_local().chunk(count, 0)[number]
    like = torch.empty((tensor.shape[0] // count, *tensor.shape[1:]), device="meta")
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
