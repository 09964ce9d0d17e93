"""Strides of a tensor in a program's memory, as those of the same tensor with its entries in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shardplan.errors import ShardplanError, error


def in_order(
    memory: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> tuple[tuple[int, ...], int]:
    """The strides and the offset by which `as_strided` reads of a contiguous tensor what `size`, `stride` and `offset`
    say of one that lies in memory as `memory` does. Raises `ShardplanError` (`foreign-memory`)."""
    own, order = memory.stride(), torch.empty(memory.shape, device="meta").stride()
    dims = sorted(range(memory.dim()), key=lambda dim: -own[dim])
    start = 0 if offset is None else offset - memory.storage_offset()

    def moved(step: int) -> int:
        made = 0
        for dim in dims:
            if own[dim] > 0 and memory.shape[dim] > 1:
                made, step = made + step // own[dim] * order[dim], step % own[dim]
        return made

    strides, begin = tuple(moved(each) for each in stride), moved(start)
    wanted = _places(size, stride) + start
    places = _places(size, strides) + begin
    held = _places(memory.shape, own).flatten()
    if places.numel() and (int(places.max()) >= held.numel() or not torch.equal(held[places], wanted)):
        summary = "as_strided reads what lies between the entries of its operand, or jumps from row to row"
        raise ShardplanError(error("foreign-memory", summary, hint="give it tensor.contiguous(), or use Tensor.unfold"))
    return strides, begin


def _places(size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """The places in memory of all entries."""
    made = torch.zeros((), dtype=torch.long)
    for number, step in zip(size, stride, strict=True):
        made = made.unsqueeze(-1) + torch.arange(number) * step
    return made
