"""Convolutions, pooling, resampling: every option, carried out on 2 and 3 devices, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, f, i
from rule_execution import laws


def grouped_transpose(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray, group: int, strides: list[int]
) -> list[np.ndarray]:
    """Group by group, which the reference evaluator does only for one output channel per group."""
    parts = zip(np.split(x, group, axis=1), np.split(w, group), np.split(bias, group), strict=True)
    return [np.concatenate([Case("ConvTranspose", part, {"strides": strides}).run()[0] for part in parts], axis=1)]


CASES = {
    "Conv": (
        Case("Conv", (f(2, 4, 8, 12), f(6, 4, 3, 3), f(6)), {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}),
        "n c y0 y1 o",
    ),
    "Conv strided": (
        Case("Conv", (f(2, 4, 8, 12), f(6, 4, 3, 3)), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        "n c y0 y1 o",
    ),
    "Conv dilated": (
        Case("Conv", (f(2, 4, 12), f(6, 4, 3)), {"pads": [2, 2], "dilations": [2]}),
        "n c y o",
    ),
    "Conv by 1": (Case("Conv", (f(2, 4, 8), f(6, 4, 1), f(6))), "n c y o"),
    "Conv no padding": (Case("Conv", (f(2, 4, 8), f(6, 4, 3))), "n c o"),
    "Conv grouped": (
        Case("Conv", (f(2, 12, 8), f(24, 2, 3), f(24)), {"pads": [1, 1], "group": 6}),
        "n g c o y",
    ),
    "Conv depthwise": (Case("Conv", (f(2, 6, 8), f(6, 1, 3), f(6)), {"pads": [1, 1], "group": 6}), "n g y"),
    "ConvTranspose": (
        Case("ConvTranspose", (f(2, 4, 8), f(4, 6, 2), f(6)), {"strides": [2]}),
        "n c o",
    ),
    "ConvTranspose grouped": (
        Case(
            "ConvTranspose", (f(2, 12, 4), f(12, 2, 2), f(12)), {"strides": [2], "group": 6}, oracle=grouped_transpose
        ),
        "n g c o",
    ),
    "MaxPool": (
        Case("MaxPool", (f(2, 4, 8, 12),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        "n c y0 y1",
    ),
    "MaxPool no overlap": (Case("MaxPool", (f(2, 4, 8),), {"kernel_shape": [2], "strides": [2]}), "n c y"),
    "AveragePool": (Case("AveragePool", (f(2, 4, 12),), {"kernel_shape": [3], "pads": [1, 1]}), "n c y"),
    "Resize": (
        Case(
            "Resize",
            (f(2, 4, 6), None, np.array([1, 1, 2], np.float32)),
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            (2,),
        ),
        "x0 x1 x2",
    ),
    "Resize linear": (
        Case("Resize", (f(2, 4, 6), None, np.array([1, 1, 2], np.float32)), {"mode": "linear"}, (2,)),
        "x0 x1",
    ),
    "Resize by less than an element": (Case("Resize", (f(4, 6), None, np.array([1.2, 1], np.float32)), {}, (2,)), "x1"),
    "Resize keeping the ratio": (
        Case("Resize", (f(4, 6), None, None, i(8, 13)), {"keep_aspect_ratio_policy": "not_larger"}, (3,)),
        "x0 x1",
    ),
    "Resize of a part": (
        Case(
            "Resize",
            (f(4, 6, 2), np.array([0, 0.2, 0, 1, 0.8, 1], np.float32), None, i(4, 6, 2)),
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            (1, 3),
        ),
        "x0 x2",
    ),
    "Resize by a scale that data decides": (
        Case("Resize", (f(4, 6), None, np.array([2], np.float32)), {"axes": [0]}),
        "x1",
    ),
}
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)
