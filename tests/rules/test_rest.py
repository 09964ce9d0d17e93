"""Losses, recurrent layers, quantisation, and the rest: every option, carried out, gives what the whole gives."""

from __future__ import annotations

import numpy as np
from rule_cases import Case, b, f, i, index, positive, u
from rule_execution import laws

SPLIT = {"axis": 1}
TENTH = (np.float32(0.1), np.uint8(3))


def i8(*shape: int) -> np.ndarray:
    return (index(20, *shape) - 10).astype(np.int8)


def root_of_squares(x: np.ndarray) -> list[np.ndarray]:
    return [np.sqrt((x**2).sum(-1, keepdims=True))]


CASES = {
    "NLL none": (Case("NegativeLogLikelihoodLoss", (f(4, 6, 2), index(6, 4, 2)), {"reduction": "none"}), "n c y"),
    "NLL sum": (Case("NegativeLogLikelihoodLoss", (f(4, 6), index(6, 4)), {"reduction": "sum"}), "n c"),
    "NLL mean": (Case("NegativeLogLikelihoodLoss", (f(4, 6, 2), index(6, 4, 2))), "n c y"),
    "NLL weighted": (Case("NegativeLogLikelihoodLoss", (f(4, 6), index(6, 4), positive(6))), "n c"),
    "NLL ignoring": (Case("NegativeLogLikelihoodLoss", (f(4, 6), index(3, 4)), {"ignore_index": 1}), "n c"),
    "cross entropy": (Case("SoftmaxCrossEntropyLoss", (f(4, 6), index(6, 4)), outputs=2), "n c"),
    "cross entropy none": (
        Case("SoftmaxCrossEntropyLoss", (f(4, 6, 2), index(6, 4, 2)), {"reduction": "none"}),
        "n c y",
    ),
    "cross entropy weighted": (Case("SoftmaxCrossEntropyLoss", (f(4, 6), index(6, 4), positive(6))), "n c"),
    "LSTM": (
        Case("LSTM", (f(3, 2, 4), f(1, 24, 4), f(1, 24, 6), f(1, 48)), {"hidden_size": 6}, outputs=3, opset=14),
        "b h",
    ),
    "GRU": (Case("GRU", (f(3, 2, 4), f(1, 18, 4), f(1, 18, 6), f(1, 36)), {"hidden_size": 6}, outputs=2), "b h"),
    "RNN": (Case("RNN", (f(3, 2, 4), f(1, 6, 4), f(1, 6, 6)), {"hidden_size": 6}, outputs=2), "b h"),
    "QuantizeLinear": (Case("QuantizeLinear", (f(4, 6), np.float32(0.1), np.uint8(3))), "x0 x1"),
    "QuantizeLinear by channel": (Case("QuantizeLinear", (f(4, 6), positive(6), u(6)), SPLIT), "x0 x1"),
    "DequantizeLinear by channel": (Case("DequantizeLinear", (u(4, 6), positive(6), u(6)), SPLIT), "x0 x1"),
    "DequantizeLinear by block": (
        Case("DequantizeLinear", (u(4, 12), positive(4, 6), u(4, 6)), {"axis": 1, "block_size": 2}),
        "x0 x1",
    ),
    "DynamicQuantizeLinear": (Case("DynamicQuantizeLinear", (f(4, 6),), outputs=3), "x0 x1"),
    "MatMulInteger": (Case("MatMulInteger", (u(4, 6), u(6, 2), np.uint8(2), u(2))), "m k n"),
    "MatMulInteger by row": (Case("MatMulInteger", (u(4, 6), u(6, 2), u(4, 1))), "m k n"),
    "QLinearMatMul": (
        Case(
            "QLinearMatMul",
            (u(4, 6), *TENTH, u(6, 2), *TENTH, np.float32(9), np.uint8(5)),
        ),
        "m n",
    ),
    "ConvInteger": (Case("ConvInteger", (u(2, 4, 6, 6), u(6, 4, 1, 1), np.uint8(3))), "n c y0 y1 o"),
    "QLinearConv": (
        Case(
            "QLinearConv",
            (u(2, 4, 6, 6), *TENTH, u(6, 4, 1, 1), positive(6), u(6), np.float32(9), np.uint8(5)),
        ),
        "n y0 y1 o",
    ),
    "DeformConv": (Case("DeformConv", (f(2, 4, 4, 4), f(6, 4, 2, 2), f(2, 8, 3, 3), f(6))), "n c o"),
    "CausalConvWithState": (
        Case("CausalConvWithState", (f(2, 6, 5), f(6, 1, 3), f(6), f(2, 6, 2)), outputs=2, opset=27),
        "b c",
    ),
    "Col2Im": (Case("Col2Im", (f(2, 24, 15), i(6, 4), i(2, 2)), constants=(1, 2)), "n c"),
    "LpNormalization": (Case("LpNormalization", (f(4, 6),), {"axis": 1}), "x0 k1"),
    "MeanVarianceNormalization": (Case("MeanVarianceNormalization", (f(2, 4, 6, 2),)), "k0 x1 k2 k3"),
    "Hardmax": (Case("Hardmax", (f(4, 6),)), "x0 k1"),
    "CenterCropPad": (Case("CenterCropPad", (f(4, 6, 8), i(4, 2, 8)), constants=(1,)), "x0 x2"),
    "TensorScatter": (
        Case("TensorScatter", (f(2, 6, 8, 4), f(2, 6, 2, 4), i(1, 3)), opset=24),
        "b d1 d3",
    ),
    "RoiAlign": (
        Case("RoiAlign", (f(2, 4, 8, 8), positive(6, 4), index(2, 6)), {"output_height": 2, "output_width": 2}),
        "c r",
    ),
    "GridSample": (Case("GridSample", (f(2, 4, 6, 6), f(2, 4, 6, 2))), "n c o0 o1"),
    "AffineGrid": (Case("AffineGrid", (f(2, 2, 3), i(2, 4, 5, 6))), "n"),
    "LinearAttention": (
        Case(
            "LinearAttention",
            (f(2, 3, 48), f(2, 3, 24), f(2, 3, 24), f(2, 6, 4, 4), -positive(2, 3, 24), b(2, 3, 6).astype(np.float32)),
            {"q_num_heads": 12, "kv_num_heads": 6, "update_rule": "gated_delta"},
            outputs=2,
            opset=27,
        ),
        "b h g",
    ),
    "DFT": (Case("DFT", (f(4, 6, 1), None, np.int64(1)), constants=(2,)), "x0"),
    "Det": (Case("Det", (f(4, 6, 3, 3),)), "b0 b1"),
    "SwiGLU": (Case("SwiGLU", (f(4, 6), f(4, 6)), opset=28), "x0 x1"),
    "Shape": (Case("Shape", (f(4, 6),)), "x0 x1"),
    "Compare": (Case("Less", (f(4, 6), f(6))), "x0 x1"),
    "GlobalLpPool": (Case("GlobalLpPool", (f(2, 4, 6),), oracle=root_of_squares), "n c k"),
}  # fmt: skip
test_options, test_placements, test_splitting_on, test_results, test_partial_sums = laws(CASES)


def test_a_gated_state_is_gathered_twice():
    hidden = {"hidden_size": 6}
    operands = (f(3, 2, 4), f(1, 18, 4), f(1, 18, 6))
    assert [Case("GRU", operands, hidden).options()["h"].inner[0].count] == [6]
    after = Case("GRU", operands, {**hidden, "linear_before_reset": 1})
    assert [after.options()["h"].inner[0].count] == [3]
