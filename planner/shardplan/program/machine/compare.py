"""The distance between two values of a tensor."""

from __future__ import annotations

import math

import numpy as np

from shardplan.program.types import Array


def scale_of(array: Array) -> float:
    """The scale for the differences of small elements: the median size of the finite elements that are not 0."""
    if array.dtype.kind not in "fc":
        return 0.0
    sizes = np.abs(array)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(np.median(sizes)) if sizes.size else 0.0


def has_numbers(array: Array) -> bool:
    """Whether any element of it is a finite number; an empty array lacks none."""
    return not array.size or array.dtype.kind not in "fc" or bool(np.isfinite(array).any())


def difference(found: Array, expected: Array, scale: float) -> float:
    """Largest difference, relative to element plus scale of the tensor; infinite if only one is a number."""
    if expected.dtype.kind == "V":  # numbers of few bits, which numpy does not have
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    if expected.dtype.kind not in "fc":
        return 0.0 if np.array_equal(found, expected) else math.inf
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(all="ignore"):
        relative = np.abs(found - expected) / (np.abs(expected) + scale)
    relative = np.where(same, 0.0, relative)
    return float(np.nan_to_num(relative.max(initial=0.0), nan=math.inf, posinf=math.inf))
