"""Shards as numpy arrays: cut from the whole tensor, and assembled to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.runtime.shards import Shard
from shardplan.units import counted

Array = NDArray[Any]


def cut(whole: Array, shard: Shard) -> Array:
    """The local array of a shard: a view where it is one slice of `whole`, else a copy.

    `ValueError` if `whole` has another shape than the shard's tensor.
    """
    if whole.shape != shard.shape:
        raise ValueError(f"'{shard.tensor}' has shape {shard.shape}, but this array has {whole.shape}")
    pieces = shard.pieces
    if len(pieces) == 1:
        return whole[pieces[0].source]
    local = np.empty(shard.local_shape, whole.dtype)
    for piece in pieces:
        local[piece.target] = whole[piece.source]
    return local


def assemble(locals_: Sequence[Array], shards: Sequence[Shard]) -> Array:
    """The whole array of which `locals_[i]` is `shards[i]`.

    `ValueError` if a local array has the wrong shape, copies differ (compared bit for bit), values are partial, or some
    part is held by no rank.
    """
    first = shards[0]
    whole = np.zeros(first.shape, locals_[0].dtype)
    seen = np.zeros(first.shape, np.bool_)
    for local, shard in zip(locals_, shards, strict=True):
        if shard.partial:
            raise ValueError(f"'{shard.tensor}' holds partial values on rank {shard.rank}; they must be combined first")
        if local.shape != shard.local_shape:
            expected = f"the plan says {shard.local_shape}"
            raise ValueError(f"rank {shard.rank} holds '{shard.tensor}' with shape {local.shape}, {expected}")
        for piece in shard.pieces:
            part = np.asarray(local[piece.target], order="C")
            known = seen[piece.source]
            if known.any() and not _equal_bits(part[known], whole[piece.source][known]):
                raise ValueError(f"rank {shard.rank} holds other values of '{shard.tensor}' than its copies")
            whole[piece.source] = part
            seen[piece.source] = True
    if not seen.all():
        raise ValueError(
            f"no rank given holds all of '{first.tensor}': {counted(int(np.count_nonzero(~seen)), 'element')} missing"
        )
    return whole


def _equal_bits(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()
