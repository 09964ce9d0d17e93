"""One example of every operator whose equation depends on its form, for the catalogue of operators.

Each is the shapes of operands and results, as text, with the attributes, and constants by position.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from shardplan.rules.signature import Shaped, Signature

LATEST = 1000
"""A version of the opset that is newer than all."""


@dataclass(frozen=True)
class Example:
    """`shapes`: `4x6, - -> 4x6`, where `-` is an absent operand, `1` a scalar, and `[1]` a vector of one; elements
    are floats."""

    shapes: str
    attributes: Mapping[str, Hashable] = field(default_factory=dict)
    constants: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def signature(self, kind: str) -> Signature:
        """The signature of an operator of this form."""
        left, _, right = self.shapes.partition("->")
        sides = [tuple(_shaped(text.strip()) for text in side.split(",")) for side in (left, right)]
        attributes = tuple(sorted(self.attributes.items()))
        return Signature(kind, LATEST, sides[0], sides[1], attributes, tuple(self.constants.items()))


def _shaped(text: str) -> Shaped | None:
    if text == "-":
        return None
    return Shaped(() if text == "1" else tuple(int(size) for size in text.strip("[]").split("x")), "float")


_HEADS = {"q_num_heads": 32, "kv_num_heads": 8}
_STATES = "6x4x16, 1x{w}x16, 1x{w}x32 -> 6x1x4x32, 1x4x32"

EXAMPLES: Mapping[str, Example] = {
    "Sum": Example("4x6, 6 -> 4x6"),
    "Mul": Example("4x6, 6 -> 4x6"),
    "Div": Example("4x6, 6 -> 4x6"),
    "Pow": Example("4x6, 6 -> 4x6"),
    "Max": Example("4x6, 6 -> 4x6"),
    "Cast": Example("4x6 -> 4x6"),
    "Dropout": Example("4x6 -> 4x6"),
    "ai.onnx.preview.training.Adagrad": Example("1, 1, 4x6, 4x6, 4x6 -> 4x6, 4x6"),
    "ai.onnx.preview.training.Adam": Example("1, 1, 4x6, 4x6, 4x6, 4x6 -> 4x6, 4x6, 4x6"),
    "MatMul": Example("2x4x6, 6x8 -> 2x4x8"),
    "Gemm": Example("4x6, 6x8, 8 -> 4x8"),
    "Einsum": Example("4x6x8, 4x8x6 -> 4x6x6", {"equation": "ecm,emf->ecf"}),
    "Conv": Example("4x6x8x8, 12x6x3x3, 12 -> 4x12x8x8", {"pads": (1, 1, 1, 1)}),
    "ConvInteger": Example("4x6x8x8, 12x6x3x3 -> 4x12x8x8", {"pads": (1, 1, 1, 1)}),
    "QLinearConv": Example("4x6x8x8, 1, 1, 12x6x3x3, 12, 12, 1, 1 -> 4x12x8x8", {"pads": (1, 1, 1, 1)}),
    "ConvTranspose": Example("4x6x8x8, 6x12x2x2, 12 -> 4x12x16x16", {"strides": (2, 2)}),
    "DeformConv": Example("4x6x8x8, 12x6x1x1, 4x2x8x8 -> 4x12x8x8"),
    "Col2Im": Example("4x24x15, 2, 2 -> 4x6x5x6"),
    "CausalConvWithState": Example("4x6x8, 6x1x3, 6, 4x6x2 -> 4x6x8, 4x6x2"),
    "com.microsoft.FusedConv": Example("4x6x8x8, 12x6x3x3, 12 -> 4x12x8x8", {"pads": (1, 1, 1, 1)}),
    "MaxPool": Example("4x6x8x8 -> 4x6x8x8", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "Resize": Example("4x6x8x8, -, 4 -> 4x6x16x16", {"mode": "nearest"}, {2: (1, 1, 2, 2)}),
    "Upsample": Example("4x6x8x8, 4 -> 4x6x16x16", {"mode": "nearest"}, {1: (1, 1, 2, 2)}),
    "ReduceSum": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ReduceMean": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ReduceMax": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ReduceMin": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ReduceProd": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ReduceL2": Example("4x6x8 -> 4x8", {"axes": (1,), "keepdims": 0}),
    "ArgMax": Example("4x6x8 -> 4x8", {"axis": 1, "keepdims": 0}),
    "GlobalLpPool": Example("4x6x8x8 -> 4x6x1x1"),
    "Softmax": Example("4x6x8 -> 4x6x8"),
    "LayerNormalization": Example("4x6x8, 8, 8 -> 4x6x8"),
    "com.microsoft.SimplifiedLayerNormalization": Example("4x6x8, 8 -> 4x6x8"),
    "BatchNormalization": Example("4x6x8x8, 6, 6, 6, 6 -> 4x6x8x8"),
    "GroupNormalization": Example("4x12x8x8, 12, 12 -> 4x12x8x8", {"num_groups": 4}),
    "LpNormalization": Example("4x6x8 -> 4x6x8"),
    "MeanVarianceNormalization": Example("4x6x8x8 -> 4x6x8x8"),
    "Attention": Example("4x32x16x64, 4x8x16x64, 4x8x16x64 -> 4x32x16x64"),
    "RotaryEmbedding": Example("4x32x16x64, 4x16x32, 4x16x32 -> 4x32x16x64"),
    "LinearAttention": Example("4x16x256, 4x16x64, 4x16x64, 4x8x8x8 -> 4x16x256, 4x8x8x8", _HEADS),
    "RNN": Example(_STATES.format(w=32)),
    "LSTM": Example(_STATES.format(w=128)),
    "GRU": Example(_STATES.format(w=96)),
    "Reshape": Example("4x16x256, 4 -> 4x16x8x32"),
    "Transpose": Example("4x6x8 -> 4x8x6", {"perm": (0, 2, 1)}),
    "Tile": Example("4x6, 2 -> 4x12"),
    "Split": Example("4x18 -> 4x6, 4x6, 4x6", {"axis": 1}),
    "Concat": Example("4x6, 4x12 -> 4x18", {"axis": 1}),
    "Slice": Example("4x18, [1], [1], [1] -> 4x6", constants={1: (6,), 2: (12,), 3: (1,)}),
    "Pad": Example("4x6x8, 6 -> 4x6x10", constants={1: (0, 0, 1, 0, 0, 1)}),
    "CenterCropPad": Example("4x6x8, 3 -> 4x6x6"),
    "DepthToSpace": Example("4x24x8x8 -> 4x6x16x16", {"blocksize": 2}),
    "SpaceToDepth": Example("4x6x16x16 -> 4x24x8x8", {"blocksize": 2}),
    "Gather": Example("100x8, 4x6 -> 4x6x8"),
    "GatherElements": Example("4x6, 4x3 -> 4x3", {"axis": 1}),
    "GatherND": Example("4x6x8, 10x1 -> 10x6x8"),
    "OneHot": Example("4x6, 1, 2 -> 4x6x10"),
    "ScatterElements": Example("4x6, 4x3, 4x3 -> 4x6", {"axis": 1}),
    "ScatterND": Example("4x6x8, 10x1, 10x6x8 -> 4x6x8"),
    "TensorScatter": Example("4x8x16x64, 4x8x2x64, 4 -> 4x8x16x64"),
    "TopK": Example("4x6, 1 -> 4x2, 4x2"),
    "CumSum": Example("4x6, 1 -> 4x6", constants={1: (1,)}),
    "ReverseSequence": Example("6x4x8, 4 -> 6x4x8"),
    "QuantizeLinear": Example("4x6, 6, 6 -> 4x6", {"axis": 1}),
    "MatMulInteger": Example("4x6, 6x8, 1, 8 -> 4x8"),
    "QLinearMatMul": Example("4x6, 1, 1, 6x8, 8, 8, 1, 1 -> 4x8"),
    "NegativeLogLikelihoodLoss": Example("4x10x6, 4x6 -> 1"),
    "SoftmaxCrossEntropyLoss": Example("4x10x6, 4x6 -> 1"),
    "DFT": Example("4x6x8x2, -, 1 -> 4x6x8x2", constants={2: (2,)}),
    "com.microsoft.Attention": Example("4x16x256, 256x768, 768 -> 4x16x256", {"num_heads": 8}),
    "com.microsoft.MultiHeadAttention": Example("4x16x256, 4x16x256, 4x16x256 -> 4x16x256", {"num_heads": 8}),
    "com.microsoft.GroupQueryAttention": Example(
        "4x16x256, 4x16x64, 4x16x64, 4x2x9x32, 4x2x9x32, 4, 1 -> 4x16x256, 4x2x25x32, 4x2x25x32",
        {"num_heads": 8, "kv_num_heads": 2},
    ),
    "com.microsoft.RotaryEmbedding": Example("4x16x256, 4x16, 64x16, 64x16 -> 4x16x256", {"num_heads": 8}),
    "com.microsoft.SkipLayerNormalization": Example("4x6x8, 4x6x8, 8, 8 -> 4x6x8"),
    "com.microsoft.EmbedLayerNormalization": Example("4x6, 4x6, 99x8, 16x8, 2x8, 8, 8 -> 4x6x8, 4"),
    "com.microsoft.GroupNorm": Example("4x8x8x12, 12, 12 -> 4x8x8x12", {"groups": 4}),
    "com.microsoft.MatMulNBits": Example(
        "4x6x256, 64x8x16, 64x8 -> 4x6x64", {"N": 64, "K": 256, "block_size": 32, "bits": 4}
    ),
    "com.microsoft.GatherBlockQuantized": Example("99x128, 4x6, 99x8 -> 4x6x256", {"block_size": 32}),
    "com.microsoft.FusedMatMul": Example("2x4x6, 2x8x6 -> 2x4x8", {"transB": 1}),
    "com.microsoft.FusedGemm": Example("4x6, 6x8, 8 -> 4x8"),
    "com.microsoft.MoE": Example("64x32, 64x8, 8x128x32, -, 8x32x128 -> 64x32", {"k": 2}),
    "com.microsoft.QMoE": Example(
        "64x32, 64x8, 8x128x16, 8x128, -, 8x32x64, 8x32 -> 64x32", {"k": 2, "expert_weight_bits": 4}
    ),
    "com.microsoft.DynamicQuantizeMatMul": Example("4x6, 6x8, 1 -> 4x8"),
    "shardplan.Each": Example("6x4x8 -> 4x8", {"axis": 0}),
    "shardplan.Stack": Example("4x8 -> 6x4x8", {"axis": 0}),
    "com.microsoft.NhwcConv": Example("4x8x8x6, 12x3x3x6 -> 4x8x8x12", {"pads": (1, 1, 1, 1)}),
}
"""By kind; an operator without one is shown with that of the first kind of its line."""
