"""Operators that are told something else on a device, or communicate: a case for each entry of the tables of localisers
and descriptions, with dims that two and four devices divide."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, b, f, i, index, positive, u


def whole(*values: int):
    return i(*values)


CASES = {
    "reshape splits a dim": Case("Reshape", (f(8, 32), i(8, 4, 8)), constants=(1,)),
    "reshape merges dims": Case("Reshape", (f(8, 4, 8), i(-1, 8)), constants=(1,)),
    "old reshape": Case("Reshape", (f(8, 4, 8), i(0, 32)), constants=(1,), opset=11),
    "expand": Case("Expand", (f(8, 1, 4), i(8, 4, 4)), constants=(1,)),
    "squeeze": Case("Squeeze", (f(4, 1, 8),)),
    "old squeeze": Case("Squeeze", (f(2, 1, 8),), opset=11),
    "tile": Case("Tile", (f(4, 8), i(4, 1)), constants=(1,)),
    "split": Case("Split", (f(4, 16), i(4, 8, 4)), {"axis": 1}, (1,), outputs=3),
    "split evenly": Case("Split", (f(4, 16),), {"axis": 1, "num_outputs": 2}, outputs=2),
    "old split": Case("Split", (f(4, 16),), {"axis": 1, "split": [8, 8]}, outputs=2, opset=11),
    "slice": Case("Slice", (f(8, 16), i(4, 0), i(12, 8), i(1, 0)), constants=(1, 2, 3)),
    "slice to the end": Case("Slice", (f(8, 16), i(-8), i(2**62), i(1)), constants=(1, 2, 3)),
    "slice with steps": Case("Slice", (f(8, 16), i(1), i(16), i(1), i(2)), constants=(1, 2, 3, 4)),
    "old slice": Case("Slice", (f(8, 16),), {"starts": [0, 8], "ends": [8, 16]}, opset=9),
    "resize": Case("Resize", (f(4, 4, 4, 8), None, None, i(4, 4, 8, 8)), {"mode": "nearest"}, (3,)),
    "centre": Case("CenterCropPad", (f(8, 4), i(8, 6)), constants=(1,)),
    "affine": Case("AffineGrid", (f(4, 2, 3), i(4, 1, 3, 3)), constants=(1,)),
    "one hot": Case("OneHot", (index(8, 4, 4), np.array(8), f(2)), {"axis": 1}, (1,)),
    "one hot from the end": Case("OneHot", (index(8, 8) - 4, np.array(8), f(2)), {}, (1,)),
    "gather": Case("Gather", (f(8, 4), index(8, 2, 4) - 4)),
    "gather inner": Case("Gather", (f(4, 8, 4), index(8, 4)), {"axis": 1}),
    "gather elements": Case("GatherElements", (f(8, 4), index(8, 4, 4)), {"axis": 0}),
    "gather elements of a long dim": Case("GatherElements", (f(4, 40), index(40, 4, 8)), {"axis": 1}),
    "triangle": Case("Trilu", (f(2, 8, 4), np.array(1)), {"upper": 0}, (1,)),
    "attention": Case("Attention", (f(4, 4, 8, 4), f(4, 4, 8, 4), f(4, 4, 8, 4))),
    "grouped attention": Case(
        "Attention", (f(2, 8, 32), f(2, 8, 16), f(2, 8, 16), b(8, 8)), {"q_num_heads": 8, "kv_num_heads": 4}
    ),
    "causal attention": Case("Attention", (f(4, 4, 8, 4), f(4, 4, 8, 4), f(4, 4, 8, 4)), {"is_causal": 1}),
    "causal and masked attention": Case(
        "Attention", (f(2, 4, 8, 4), f(2, 4, 8, 4), f(2, 4, 8, 4), b(2, 1, 1, 8)), {"is_causal": 1}
    ),
    "causal attention with a bias": Case(
        "Attention",
        (f(2, 8, 16), f(2, 8, 8), f(2, 8, 8), f(8, 8)),
        {"is_causal": 1, "q_num_heads": 4, "kv_num_heads": 2},
    ),
    "causal attention with past keys": Case(
        "Attention",
        (f(2, 4, 4, 4), f(2, 4, 4, 4), f(2, 4, 4, 4), None, f(2, 4, 2, 4), f(2, 4, 2, 4)),
        {"is_causal": 1},
        outputs=3,
    ),
    "attention in a window": Case(
        "Attention",
        (f(2, 4, 16, 4), f(2, 4, 16, 4), f(2, 4, 16, 4)),
        {"is_causal": 1, "left_window_size": 3},
        opset=25,
    ),
    "causal attention and its scores": Case(
        "Attention",
        (f(2, 2, 8, 4), f(2, 2, 8, 4), f(2, 2, 8, 4)),
        {"is_causal": 1, "qk_matmul_output_mode": 3},
        outputs=4,
        opset=23,
    ),
    "attention and its scores": Case(
        "Attention", (f(2, 4, 4, 4), f(2, 4, 8, 4), f(2, 4, 8, 4)), {"qk_matmul_output_mode": 3}, outputs=4, opset=23
    ),
    "rotary": Case("RotaryEmbedding", (f(4, 4, 16), f(4, 4, 2), f(4, 4, 2)), {"num_heads": 4}),
    "convolution": Case("Conv", (f(4, 4, 16, 8), f(4, 4, 3, 3), f(4)), {"pads": [1, 1, 1, 1]}),
    "convolution in groups": Case("Conv", (f(2, 8, 8, 8), f(8, 2, 3, 3)), {"group": 4, "pads": [1, 1, 1, 1]}),
    "dilated convolution": Case("Conv", (f(2, 4, 16, 4), f(4, 4, 3, 1)), {"dilations": [2, 1], "pads": [2, 0, 2, 0]}),
    "strided convolution": Case("Conv", (f(2, 4, 16), f(4, 4, 3)), {"strides": [2], "auto_pad": "SAME_UPPER"}),
    "transposed convolution": Case("ConvTranspose", (f(4, 8, 3, 3), f(8, 4, 2, 2))),
    "integer convolution": Case("ConvInteger", (u(2, 4, 8, 8), u(4, 4, 1, 1))),
    "largest of a window": Case("MaxPool", (f(4, 4, 16, 8),), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"}),
    "mean of a window": Case("AveragePool", (f(4, 4, 8),), {"kernel_shape": [2], "strides": [2]}),
    "norm of a window": Case("LpPool", (f(4, 4, 16),), {"kernel_shape": [2], "strides": [2], "p": 2}),
    "lstm": Case("LSTM", (f(3, 4, 8), f(1, 32, 8), f(1, 32, 8), f(1, 64)), {"hidden_size": 8}, outputs=3),
    "lstm both ways": Case(
        "LSTM", (f(3, 4, 4), f(2, 16, 4), f(2, 16, 4)), {"hidden_size": 4, "direction": "bidirectional"}, outputs=2
    ),
    "lstm from a state": Case(
        "LSTM",
        (f(3, 4, 4), f(1, 16, 4), f(1, 16, 4), f(1, 32), None, f(1, 4, 4), f(1, 4, 4), f(1, 12)),
        {"hidden_size": 4},
        outputs=3,
    ),
    "rnn": Case("RNN", (f(3, 4, 4), f(1, 4, 4), f(1, 4, 4), f(1, 8)), {"hidden_size": 4}, outputs=2),
    "softmax": Case("Softmax", (f(4, 8),)),
    "old softmax": Case("Softmax", (f(4, 4, 4),), {"axis": 1}, opset=11),
    "log softmax": Case("LogSoftmax", (f(4, 8),), {"axis": 0}),
    "hardmax": Case("Hardmax", (f(4, 8),)),
    "layer norm": Case("LayerNormalization", (f(4, 4, 8), f(4, 8), f(4, 8)), {"axis": 1}, outputs=3),
    "rms norm": Case("RMSNormalization", (f(4, 8), f(8))),
    "instance norm": Case("InstanceNormalization", (f(4, 4, 8), f(4), f(4))),
    "group norm": Case("GroupNormalization", (f(4, 16, 8), f(16), f(16)), {"num_groups": 4}),
    "old group norm": Case("GroupNormalization", (f(4, 16, 8), f(4), f(4)), {"num_groups": 4}, opset=18),
    "batch norm": Case("BatchNormalization", (f(8, 4, 4), f(4), f(4), f(4), positive(4))),
    "batch norm in training": Case(
        "BatchNormalization", (f(8, 4, 4), f(4), f(4), f(4), positive(4)), {"training_mode": 1}, outputs=3
    ),
    "lp norm": Case("LpNormalization", (f(4, 8),), {"axis": 1, "p": 2}),
    "mean and variance": Case("MeanVarianceNormalization", (f(4, 4, 4, 4),)),
    "mean": Case("ReduceMean", (f(4, 8), i(1)), {"keepdims": 0}, (1,)),
    "largest": Case("ReduceMax", (f(4, 8), i(0)), constants=(1,)),
    "length": Case("ReduceL2", (f(4, 8), i(1)), constants=(1,)),
    "log of sum": Case("ReduceLogSum", (positive(4, 8), i(1)), constants=(1,)),
    "log of sum of exponentials": Case("ReduceLogSumExp", (f(4, 8), i(0, 1)), constants=(1,)),
    "global length": Case("GlobalAveragePool", (f(4, 4, 8, 4),)),
    "where largest": Case("ArgMax", (f(4, 8),), {"axis": 1, "keepdims": 0}),
    "where smallest": Case("ArgMin", (np.round(f(8, 4)),), {"axis": 0, "select_last_index": 1}),
    "quantize": Case("DynamicQuantizeLinear", (f(4, 8),), outputs=3),
    "loss": Case("NegativeLogLikelihoodLoss", (f(4, 8), index(8, 4)), {"reduction": "sum"}),
    "weighted mean loss": Case("NegativeLogLikelihoodLoss", (f(4, 8, 4), index(8, 4, 4), positive(8))),
    "mean loss": Case("NegativeLogLikelihoodLoss", (f(4, 8), index(8, 4))),
    "shape": Case("Shape", (f(4, 8),)),
    "gru": Case("GRU", (f(3, 4, 4), f(1, 12, 4), f(1, 12, 4), f(1, 24)), {"hidden_size": 4}, outputs=2),
    "gru that resets after": Case(
        "GRU",
        (f(3, 4, 4), f(2, 12, 4), f(2, 12, 4), f(2, 24), None, f(2, 4, 4)),
        {"hidden_size": 4, "linear_before_reset": 1, "direction": "bidirectional"},
        outputs=2,
    ),
    "loss of chosen classes": Case(
        "NegativeLogLikelihoodLoss", (f(4, 8, 4), index(8, 4, 4), positive(8)), {"ignore_index": 3}
    ),
    "weighted sum of losses": Case(
        "NegativeLogLikelihoodLoss", (f(4, 8), index(8, 4), positive(8)), {"reduction": "sum"}
    ),
    "cross entropy": Case("SoftmaxCrossEntropyLoss", (f(4, 8), index(8, 4)), outputs=2),
    "weighted cross entropy": Case(
        "SoftmaxCrossEntropyLoss", (f(4, 8, 4), index(8, 4, 4), positive(8)), {"ignore_index": 5}, outputs=2
    ),
    "cross entropy of each": Case(
        "SoftmaxCrossEntropyLoss", (f(4, 8, 4), index(8, 4, 4), positive(8)), {"reduction": "none"}
    ),
    "summed cross entropy": Case("SoftmaxCrossEntropyLoss", (f(4, 8), index(8, 4)), {"reduction": "sum"}),
    "resize that keeps the ratio": Case(
        "Resize",
        (f(4, 4, 4, 6), None, None, i(8, 11)),
        {"keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]},
        (3,),
    ),
    "resize all dims by the least ratio": Case(
        "Resize", (f(4, 8), None, None, i(8, 20)), {"keep_aspect_ratio_policy": "not_larger"}, (3,)
    ),
    "normal": Case("RandomNormal", (), {"shape": [4, 8]}, oracle=lambda **_: [np.zeros((4, 8), np.float32)]),
    "uniform": Case("RandomUniformLike", (f(4, 8),)),
    "bernoulli": Case("Bernoulli", (np.full((4, 8), 0.5, np.float32),), {"seed": 4.0}),
    "multinomial": Case(
        "Multinomial", (f(4, 8),), {"sample_size": 6}, oracle=lambda *_, **__: [np.zeros((4, 6), np.int32)]
    ),
    "dropout in training": Case("Dropout", (f(4, 8), np.array(0.5, np.float32), np.array(True)), {}, (1, 2), outputs=2),
    "bits": Case("BitCast", (f(4, 8),), {"to": 6}, opset=26),
    "local response": Case("LRN", (f(4, 8, 4, 4),), {"size": 3}),
    "far logarithms": Case("LogSoftmax", (f(4, 8) * 2000,)),
}


def values_of(case: Case) -> dict[str, np.ndarray]:
    return {f"i{position}": array for position, array in enumerate(case.operands) if array is not None}
