"""A data loader whose processes read only the part of each batch that the plan gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan, TensorDecision
from shardplan.torch.argument_types import check_mesh, check_plan
from shardplan.torch.batches import inputs, part_of, refuse_stages


class PlannedLoader:
    """See `data_loader`. `loader` is the loader of this process's rows."""

    def __init__(self, plan: Plan, mesh: DeviceMesh, dataset: Dataset, sampler: Any, asked: Mapping[str, Any]) -> None:
        self._plan, self._mesh = plan, mesh
        refuse_stages(plan)
        read = [tensor for tensor in plan.tensors if tensor.role == "input"]
        batch = _batch_of(read)
        rank = torch.distributed.get_rank()
        self._parts = {tensor.name: part_of(plan, tensor.name, rank) for tensor in read}
        rows = {row for parts in self._parts.values() for part in parts for row in _indices(part.source[0], batch)}
        self.rows = sorted(rows)
        self._place = {row: number for number, row in enumerate(self.rows)}
        first = {(part.target[0].start, part.source[0].start): part.source[0] for part in self._parts[read[0].name]}
        self._beside = [self._place[row] for _, rows in sorted(first.items()) for row in _indices(rows, batch)]
        order = SequentialSampler(dataset) if sampler is None else sampler
        self.loader = DataLoader(dataset, batch_sampler=_Rows(order, batch, self.rows), **asked)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for found in self.loader:
            if not isinstance(found, Mapping):
                hint = f"let dataset[index] be a mapping of names to tensors: {', '.join(self._parts)}"
                summary = f"the samples come as {type(found).__name__}, and not by the names of the plan's inputs"
                raise ShardplanError(error("bad-argument", summary, hint=hint))
            local = {name: self._local(name, value) for name, value in found.items()}
            yield inputs(self._plan, self._mesh, local, local=True)

    def _local(self, name: str, read: Any) -> Any:
        """Of the rows that were read, of whole other dims, this process's part of an input; of what is none, the rows
        of the first input."""
        if name not in self._parts:
            return read[self._beside] if isinstance(read, Tensor) and len(read) == len(self.rows) else read
        parts = self._parts[name]
        shape = [max(part.target[dim].stop for part in parts) for dim in range(read.dim())]
        made = read.new_empty(shape)
        for part in parts:
            first, *others = part.source
            made[part.target] = read[(slice(self._place[first.start], self._place[first.stop - 1] + 1), *others)]
        return made


def _indices(rows: slice, count: int) -> range:
    return range(*rows.indices(count))


class _Rows(Sampler):  # type: ignore[misc]
    """The indices of `rows` of every whole batch of `order`."""

    def __init__(self, order: Any, batch: int, rows: Sequence[int]) -> None:
        self._order, self._batch, self._rows = order, batch, rows

    def __len__(self) -> int:
        return len(self._order) // self._batch

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self._order:
            batch.append(index)
            if len(batch) == self._batch:
                yield [batch[row] for row in self._rows]
                batch = []


def data_loader(plan: Plan, mesh: DeviceMesh, dataset: Dataset, *, sampler: Any = None, **asked: Any) -> PlannedLoader:
    """Batches of the plan's inputs as DTensors, of which this process has read only its rows.

    `dataset[index]` is a mapping of the plan's inputs to one sample each, and of whatever else a step needs (targets),
    which comes as `inputs` gives it; `sampler` gives the order of samples, which has to be the same on all processes
    (seed it), by default the dataset's own order. Samples of an incomplete batch are left out. `asked`: arguments of
    `torch.utils.data.DataLoader` (`num_workers`, `collate_fn` ...).

    Raises `ShardplanError` as `inputs`, `bad-argument`, and `uneven-batch` if the plan's inputs have different numbers
    of rows.
    """
    check_plan(plan)
    check_mesh(mesh)
    taken = sorted(_OF_BATCHES & asked.keys())
    if taken:
        summary = f"'{taken[0]}' is none of the caller's: batches are those of the plan"
        raise ShardplanError(error("bad-argument", summary, hint="give the order of samples as sampler="))
    if isinstance(dataset, IterableDataset):
        summary = "samples of an iterable dataset have no index, by which a process could read only its own"
        hint = "read whole batches, and give them to shardplan.torch.inputs(plan, mesh, batch)"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    return PlannedLoader(plan, mesh, dataset, sampler, asked)


_OF_BATCHES = frozenset(("batch_size", "batch_sampler", "shuffle", "drop_last"))


def _batch_of(read: Sequence[TensorDecision]) -> int:
    sizes = {tensor.name: tensor.shape[0] if tensor.shape else 0 for tensor in read}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        said = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in read) or "none"
        summary = f"the plan's inputs have no number of rows in common: {said}"
        hint = "read them yourself: shardplan.torch.part_of says which part of each a rank needs"
        raise ShardplanError(error("uneven-batch", summary, hint=hint))
    return next(iter(sizes.values()))
