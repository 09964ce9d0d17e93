"""The bytes that a device holds, by category and moment, and their peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import CATEGORIES, MemoryRows
from shardplan.plan.step.buckets import shard_count
from shardplan.plan.types import Memory, Move

TEMPORARIES: Final = CATEGORIES.index("temporaries")


def bytes_by_moment(memory: MemoryRows, choice: Mapping[Node, int]) -> NDArray[np.int64]:
    """Bytes of every category (in the order of `Memory`) at every moment, shape (5, moments)."""
    category, start, end = memory.spans_of_all
    width, amounts = memory.moments + 1, memory.amounts(choice)
    change = np.zeros(len(CATEGORIES) * width, dtype=np.int64)
    np.add.at(change, category * width + start, amounts)
    np.subtract.at(change, category * width + end, amounts)
    return change.reshape(len(CATEGORIES), width).cumsum(axis=1)[:, :-1]


def moved_bytes(built: CostGraph, move: Move, *, gradient: bool = False) -> int:
    """A device's bytes of what a move has gathered, or of a gradient before its reduction."""
    kind = built.kept[move.tensor].kind
    whole, layout = (kind.gradient_bytes, move.source) if gradient else (kind.size_bytes, move.target)
    return -(-whole // shard_count(layout, built.cluster.mesh))


def peak_of(held: NDArray[np.int64]) -> Memory:
    """The bytes (of `bytes_by_moment`) at the first moment with the largest sum."""
    return Memory(*(int(value) for value in held[:, peak_moment(held)]))


def peak_moment(held: NDArray[np.int64]) -> int:
    """The first moment with the largest sum."""
    return int(held.sum(axis=0).argmax()) if held.shape[1] else 0
