"""The (min, +) product of two cost tables, in blocks that stay in cache."""

from __future__ import annotations

import numpy as np

from shardplan.solve.constants import MINPLUS_BLOCK, MINPLUS_BUFFER, MINPLUS_LAYERS, MINPLUS_LONG, MINPLUS_SMALL
from shardplan.solve.problem import Costs


def min_plus(left: Costs, right: Costs) -> Costs:
    """`out[i, j] = min over k of left[i, k] + right[k, j]`: (n, k), (k, m) -> (n, m)."""
    rows, inner = left.shape
    columns = right.shape[1]
    if columns < rows:  # long rows make long vector operations
        return np.ascontiguousarray(min_plus(right.T, left.T).T)
    if columns < MINPLUS_LONG or rows * inner * columns <= MINPLUS_SMALL:
        return _in_layers(left, right)
    before = np.setbufsize(MINPLUS_BUFFER)
    try:
        return _by_blocks(left, right)
    finally:
        np.setbufsize(before)


def _in_layers(left: Costs, right: Costs) -> Costs:
    """The product of tables with short rows, a block of rows at a time, for all k in few operations."""
    rows, inner = left.shape
    columns = right.shape[1]
    out = np.empty((rows, columns))
    step = max(1, min(rows, MINPLUS_LAYERS // (inner * columns)))
    scratch = np.empty((inner, step, columns))
    for start in range(0, rows, step):
        best = out[start : start + step]
        sums = scratch[:, : len(best)]
        sums[...] = right[:, None, :]
        sums += left.T[:, start : start + step, None]  # in place: twice as fast as a sum of the two
        np.minimum.reduce(sums, axis=0, out=best)
    return out


def _by_blocks(left: Costs, right: Costs) -> Costs:
    """The product of tables with long rows, a block of rows at a time."""
    rows, inner = left.shape
    columns = right.shape[1]
    out = np.empty((rows, columns))
    step = max(1, MINPLUS_BLOCK // columns)
    scratch = np.empty((min(step, rows), columns))
    for start in range(0, rows, step):
        block = np.ascontiguousarray(left[start : start + step].T)[:, :, None]
        best = out[start : start + step]
        trial = scratch[: len(best)]
        np.add(block[0], right[0], out=best)
        for k in range(1, inner):
            np.add(block[k], right[k], out=trial)
            np.minimum(best, trial, out=best)
    return out
