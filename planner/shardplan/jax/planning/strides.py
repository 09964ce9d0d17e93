"""Slices with strides, as reshapes and slices without.

The gradient of a slice with strides is padded between its elements, and XLA's partitioner pads a dim that is split with
wrong values, or fails (jax 0.10). No such padding is left here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def without_strides(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int]
) -> Any:
    """`jax.lax.slice` of the operand: a dim of size `strides * count` is read as `[count, strides]`, whose first column
    is the result."""
    begins, counts = (
        list(start_indices),
        [
            -(-(limit - start) // stride)
            for start, limit, stride in zip(start_indices, limit_indices, strides, strict=True)
        ],
    )
    ends = [start + count * stride for start, count, stride in zip(begins, counts, strides, strict=True)]
    behind = [max(0, end - size) for end, size in zip(ends, operand.shape, strict=True)]
    if any(behind):
        operand = jax.lax.pad(operand, jax.lax.full((), 0, operand.dtype), [(0, more, 0) for more in behind])
    kept = jax.lax.slice(operand, begins, ends)
    for dim, (count, stride) in enumerate(zip(counts, strides, strict=True)):
        if stride > 1:
            parts = jax.lax.reshape(kept, (*kept.shape[:dim], count, stride, *kept.shape[dim + 1 :]))
            kept = jax.lax.index_in_dim(parts, 0, dim + 1, keepdims=False)
    return kept
