"""Loads the parameters of one rank from the whole checkpoint, reading only the bytes of its shards and those
near them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import ShardplanError, error
from shardplan.loading.assign import Part, assign
from shardplan.loading.checkpoint import Checkpoint
from shardplan.loading.ranged import Array, Reader
from shardplan.plan.types import Plan
from shardplan.runtime.shards import Run


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """A stored tensor's part: `dtype` as safetensors writes it, `array` carries its bits (see `loading.ranged`)."""

    name: str
    dtype: str
    array: Array


def load_rank(
    checkpoint: Checkpoint, plan: Plan, rank: int, rename: Mapping[str, str] | None = None
) -> dict[str, LocalTensor]:
    """Every tensor of the checkpoint as `rank` holds it, by its name in the checkpoint.

    `rename` and errors as of `assign`, which also tells warnings. Raises `ShardplanError` (`cut-group`, `act-order`).
    """
    return {tensor.name: tensor for tensor in iterate_rank(checkpoint, plan, rank, rename)}


def iterate_rank(
    checkpoint: Checkpoint, plan: Plan, rank: int, rename: Mapping[str, str] | None = None
) -> Iterator[LocalTensor]:
    """`load_rank`, one tensor at a time, so that the caller can put each on its device and let go of it."""
    parts = assign(plan, checkpoint, rename).parts(rank)
    with Reader() as reader:
        for part in parts:
            yield read_part(reader, part)


def read_part(reader: Reader, part: Part) -> LocalTensor:
    """The part of one tensor. Raises `ShardplanError` (`act-order`, `unreadable-checkpoint`)."""
    array = reader.part(part.entry, part.runs, part.view).reshape(part.shape)
    if part.groups:
        array = renumber(array, part.groups, part.entry.name)
    return LocalTensor(part.entry.name, part.entry.dtype, array)


def renumber(values: Array, groups: tuple[Run, ...], name: str) -> Array:
    """Group numbers as positions in the concatenation of the runs `groups`, which one device holds.

    Raises `ShardplanError` (`act-order`) if a row belongs to another group: rows were quantised in the order of their
    activations and not in the order in which they are stored.
    """
    found: NDArray[Any] = np.full(values.shape, -1, values.dtype)
    place = 0
    for start, stop in groups:
        inside = (values >= start) & (values < stop)
        found[inside] = values[inside] - start + place
        place += stop - start
    if (found < 0).any():
        summary = f"'{name}': rows of this weight were quantised in another order (act-order), so groups cannot be cut"
        hint = "keep the input dim of this weight whole (--pin), or quantise with desc_act=False"
        raise ShardplanError(error("act-order", summary, hint=hint))
    return found
