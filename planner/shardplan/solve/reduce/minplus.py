"""The (min, +) product of two cost tables, in blocks that stay in cache."""

from __future__ import annotations

import numpy as np

from shardplan.solve.constants import MINPLUS_BLOCK, MINPLUS_BUFFER, MINPLUS_SMALL
from shardplan.solve.problem import Costs


def min_plus(left: Costs, right: Costs) -> Costs:
    """`out[i, j] = min over k of left[i, k] + right[k, j]`: (n, k), (k, m) -> (n, m)."""
    rows, inner = left.shape
    columns = right.shape[1]
    if rows * inner * columns <= MINPLUS_SMALL:
        return np.asarray((left[:, :, None] + right[None, :, :]).min(axis=1))
    if columns < rows:  # long rows make long vector operations
        return np.ascontiguousarray(min_plus(right.T, left.T).T)
    before = np.setbufsize(MINPLUS_BUFFER)
    try:
        return _by_blocks(left, right)
    finally:
        np.setbufsize(before)


def _by_blocks(left: Costs, right: Costs) -> Costs:
    """The product of large tables, a block of rows at a time."""
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
