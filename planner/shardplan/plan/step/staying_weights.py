"""Gathered weights that stay from forward to backward, and those that memory is too short for.

A weight that backward reads stays gathered after forward, or is re-gathered (FSDP's `reshard_after_forward`). To
stay saves a gather and takes memory meanwhile. As many weights stay as fit. Those of the first layers are
re-gathered first: they would stay longest, and most of backward runs before them, beside which they can be gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph
from shardplan.graph.memory import MemoryRows
from shardplan.plan.step.memory_timeline import moved_bytes
from shardplan.plan.types import Move


class Copy(NamedTuple):
    """A gathered weight that stays: its bytes on a device in the moments begin <= t < end."""

    tensor: str
    begin: int
    end: int
    size_bytes: int


def copies(built: CostGraph, moves: Sequence[Move], memory: MemoryRows) -> list[Copy]:
    """The gathered weights that stay, in the order of their last readers; while a reader runs, the rows of `memory`
    count them."""
    again = {(move.tensor, move.reader) for move in moves if move.regather}
    found = []
    for move in moves:
        if move.phase == "forward" and move.kind == "prefetched" and (move.tensor, move.reader) not in again:
            readers = _readers(built, move)
            if readers:
                last = max(readers)
                size = built.model.in_all_copies(move.tensor, moved_bytes(built, move))
                found.append(Copy(move.tensor, last + 1, memory.time.backward(last), size))
    return sorted(found, key=lambda one: one.begin)


def _readers(built: CostGraph, move: Move) -> list[int]:
    """The readers whose backward reads what a move has gathered."""
    readers = built.flow.readers.get(move.tensor, ())
    if move.reader:
        readers = [pair for pair in readers if pair[0] == built.number[move.reader]]
    return [index for index, position in readers if (index, position) in built.recompute.held]


def bytes_of(held: Sequence[Copy], moments: int) -> NDArray[np.int64]:
    """Bytes of copies at every moment, shape (moments,)."""
    change = np.zeros(moments + 1, dtype=np.int64)
    for copy in held:
        change[copy.begin] += copy.size_bytes
        change[copy.end] -= copy.size_bytes
    return change.cumsum()[:-1]


def to_regather(held: Sequence[Copy], most: NDArray[np.int64], limit_bytes: int) -> frozenset[str]:
    """The fewest weights, the first ones first, without which the rest of the copies fit. `most`: bytes at every moment
    with all copies."""
    low, high = 0, len(held)
    while low < high:
        middle = (low + high) // 2
        if (most - bytes_of(held[:middle], len(most))).max() <= limit_bytes:
            high = middle
        else:
            low = middle + 1
    return frozenset(copy.tensor for copy in held[:low])
