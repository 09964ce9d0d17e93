"""Normalisations: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, positive
from rule_execution import laws


def softmax_11(x: np.ndarray, axis: int) -> list[np.ndarray]:
    """Before opset 13: over the dim and all after it."""
    axes = tuple(range(axis, x.ndim))
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return [e / e.sum(axis=axes, keepdims=True)]


def local_response(x: np.ndarray, size: int) -> list[np.ndarray]:
    """The definition; the reference evaluator stops at as many channels as there are samples."""
    before, after = (size - 1) // 2, size // 2 + 1
    total = [np.square(x[:, max(0, c - before) : c + after]).sum(axis=1) for c in range(x.shape[1])]
    return [x / (1 + 1e-4 / size * np.stack(total, axis=1)) ** 0.75]


CASES = {
    "Softmax": (Case("Softmax", (f(4, 6, 8),), {"axis": 1}), "x0 k1 x2"),
    "Softmax opset 11": (Case("Softmax", (f(4, 6, 8),), {"axis": 1}, opset=11, oracle=softmax_11), "x0 k1 k2"),
    "LogSoftmax": (Case("LogSoftmax", (f(4, 6),)), "x0 k1"),
    "LayerNormalization": (Case("LayerNormalization", (f(2, 4, 6), f(6), f(6)), outputs=3), "x0 x1 k"),
    "LayerNormalization broadcast": (Case("LayerNormalization", (f(2, 4, 6), f(1, 1, 6), f(1, 6))), "x0 x1 k"),
    "LayerNormalization by position": (Case("LayerNormalization", (f(2, 4, 6), f(4, 6), f(2, 1, 1))), "x0 x1 k"),
    "LayerNormalization wide": (Case("LayerNormalization", (f(2, 4, 6), f(4, 6)), {"axis": 1}), "x k0 k1"),
    "RMSNormalization": (Case("RMSNormalization", (f(2, 4, 6), f(6))), "x0 x1 k"),
    "BatchNormalization": (Case("BatchNormalization", (f(2, 4, 6, 8), f(4), f(4), f(4), positive(4))), "n c y0 y1"),
    "BatchNormalization training": (
        Case("BatchNormalization", (f(4, 4, 6), f(4), f(4), f(4), positive(4)), {"training_mode": 1}, outputs=3),
        "n c y",
    ),
    "GroupNormalization": (
        Case("GroupNormalization", (f(2, 12, 4, 6), f(12), f(12)), {"num_groups": 6}, opset=21),
        "n g c y0 y1",
    ),
    "InstanceNormalization": (Case("InstanceNormalization", (f(2, 4, 6), f(4), f(4))), "n c y"),
    "LRN": (Case("LRN", (f(2, 6, 4, 4),), {"size": 3}, oracle=local_response), "n y0 y1"),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
