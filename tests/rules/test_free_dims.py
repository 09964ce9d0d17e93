"""Dims that can be split without communication, as stated by hand for every operator, against what the rules offer.

The statements were made from the definitions of the operators, apart from the rules. `0:1` is dim 1 of operand 0,
`r0:1` of a result, of the example that the catalogue shows; several operators share a line.
"""

from __future__ import annotations

import pytest

from shardplan.rules.catalogue import example_rule
from shardplan.rules.row import make_rule
from shardplan.rules.signature import Shaped, Signature
from shardplan.rules.table import TABLES
from shardplan.rules.types import Option, Rule

BOTH = "0:0 0:1"
FREE: dict[str, dict[str, str]] = {
    "pointwise, one operand": {
        "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh Dropout": BOTH,
        "Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal": BOTH,
        "Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu": BOTH,
    },
    "pointwise, several operands": {
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max": BOTH,
        "Mean Min Mod Mul Or PRelu Pow Sub Sum SwiGLU Where Xor": BOTH,
    },
    "contraction": {
        "MatMul": "0:0 0:1 1:1", "Gemm": "0:0 1:1", "Einsum": "0:0 0:1 1:2", "MatMulInteger": "0:0 1:1",
        "QLinearMatMul": "0:0 3:1", "Det": BOTH,
    },
    "convolution": {
        "Conv ConvInteger DeformConv": "0:0 1:0", "QLinearConv": "0:0 3:0", "ConvTranspose": "0:0 1:1",
        "Col2Im": "0:0 r0:1", "CausalConvWithState": BOTH,
    },
    "reduction": {
        "ReduceSum ReduceL1 ReduceSumSquare ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSum": "0:0 0:2",
        "ReduceLogSumExp ArgMax ArgMin": "0:0 0:2", "GlobalAveragePool GlobalMaxPool GlobalLpPool": BOTH,
    },
    "normalisation": {
        "LayerNormalization RMSNormalization": BOTH, "BatchNormalization InstanceNormalization": BOTH,
        "GroupNormalization": BOTH, "LpNormalization": BOTH, "MeanVarianceNormalization": "0:1", "LRN": "0:0 0:2 0:3",
    },
    "softmax": {"Softmax LogSoftmax Hardmax": BOTH},
    "views": {
        "Reshape Flatten Squeeze Unsqueeze": "0:0 0:1 0:2", "Transpose": "0:0 0:1 0:2",
        "DepthToSpace SpaceToDepth": "0:0",
        "Split Concat Slice": "0:0", "Expand": "r0:0 r0:1", "Tile": "0:0 r0:1", "Pad CenterCropPad Trilu": BOTH,
        "ReverseSequence": "0:1 0:2",
    },
    "gather and scatter": {
        "Gather": "0:1 1:0 1:1", "GatherElements": "0:0", "GatherND": "0:1 0:2 1:0", "OneHot": BOTH,
        "ScatterElements Scatter": "0:0", "ScatterND": "0:1 0:2", "TensorScatter": "0:0 0:1 0:3",
    },
    "selection and scans": {"TopK CumSum CumProd": "0:0"},
    "makers of constants": {"ConstantOfShape": "r0:0 r0:1", "Range": "r0:0", "EyeLike": "r0:0 r0:1"},
    "attention": {
        "Attention": "0:0 0:1 0:2 1:1 2:1 2:3", "RotaryEmbedding": "0:0 0:1 0:2", "LinearAttention": "0:0 0:2 3:1",
    },
    "recurrent": {"RNN LSTM GRU": "0:1 1:0"},
    "pooling": {"MaxPool AveragePool LpPool MaxUnpool": BOTH, "MaxRoiPool RoiAlign": "0:1 1:0"},
    "resampling": {"Resize Upsample": BOTH, "GridSample": "0:0 0:1 1:1 1:2", "AffineGrid": "0:0"},
    "random": {
        "RandomNormal RandomUniform": "r0:0 r0:1", "RandomNormalLike RandomUniformLike Bernoulli": BOTH,
        "Multinomial": "0:0",
    },
    "quantised": {"QuantizeLinear DequantizeLinear": BOTH},
    "signal": {"DFT": BOTH, "STFT": "0:0"},
    "control flow": {
        "shardplan.Enter shardplan.Leave shardplan.Stack": BOTH, "shardplan.Each": "0:1 0:2",
        "shardplan.Choose": "1:0 1:1",
    },
    "com.microsoft": {
        "com.microsoft.Attention": "0:0", "com.microsoft.MultiHeadAttention": "0:0 0:2 1:2 2:2",
        "com.microsoft.GroupQueryAttention": "0:0 0:2 1:2 3:1", "com.microsoft.RotaryEmbedding": "0:0 0:1 0:2",
        "com.microsoft.SkipLayerNormalization com.microsoft.SkipSimplifiedLayerNormalization": BOTH,
        "com.microsoft.EmbedLayerNormalization": "0:0", "com.microsoft.MatMulNBits": "0:0 0:1 1:0",
        "com.microsoft.GatherBlockQuantized": "1:0 1:1", "com.microsoft.FusedMatMul": "0:0 0:1 1:1",
        "com.microsoft.FastGelu com.microsoft.BiasGelu com.microsoft.QuickGelu": BOTH,
        "com.microsoft.MoE com.microsoft.QMoE": "0:0", "com.microsoft.GroupNorm com.microsoft.SkipGroupNorm": "0:0",
        "com.microsoft.BiasSplitGelu": BOTH, "com.microsoft.NhwcConv": "0:0 1:0",
    },
}  # fmt: skip
NOT_OFFERED = {
    "EyeLike": "every device makes the whole, which costs nothing to send",
    "MaxUnpool": "its indices count over the whole tensor",
    "Range": "every device makes the whole, which costs nothing to send",
    "GRU": "its two directions, which one operator runs one after the other",
    "LSTM": "its two directions, which one operator runs one after the other",
    "RNN": "its two directions, which one operator runs one after the other",
}
"""Operators of which some dim could be split and is not, and why."""


def statements() -> list[tuple[str, str, list[str]]]:
    """(family, operator, free dims)."""
    return [
        (family, kind, dims.split())
        for family, lines in FREE.items()
        for kinds, dims in lines.items()
        for kind in kinds.split()
    ]


def rule_of(kind: str) -> Rule:
    entry = next(entry for table in TABLES.values() for entry in table if kind in entry.kinds)
    return example_rule(entry, kind)


def is_free(option: Option) -> bool:
    return not option.inner and all(placement.kind != "P" for placement in option.results)


def free_dims(rule: Rule) -> set[str]:
    """Dims of operands and results that some option splits without communication."""
    found = set()
    for option in filter(is_free, (*rule.options, *rule.latent)):
        for side, placements in (("", option.operands), ("r", option.results)):
            found |= {f"{side}{i}:{p.dim}" for i, p in enumerate(placements) if p.is_shard}
    return found


def missing(kind: str, dims: list[str]) -> list[str]:
    return sorted(set(dims) - free_dims(rule_of(kind)))


@pytest.mark.parametrize("family", FREE)
def test_what_is_free_is_offered(family):
    lacking = {kind: lack for name, kind, dims in statements() if name == family and (lack := missing(kind, dims))}
    assert lacking.keys() == {kind for name, kind, _ in statements() if name == family and kind in NOT_OFFERED}


def test_nearly_all_operators_offer_all_that_is_free():
    kinds = [kind for _, kind, _ in statements()]
    assert len(kinds) == len(set(kinds))
    complete = [kind for _, kind, dims in statements() if not missing(kind, dims)]
    assert len(kinds) > 180
    assert len(complete) >= 0.95 * len(kinds)


def test_every_operator_of_the_tables_is_judged():
    """Operators that are not in the statements have no free dim, or belong to a family of which one is stated."""
    stated = {kind for _, kind, _ in statements()}
    offered = {
        kind
        for table in TABLES.values()
        for entry in table
        for kind in entry.kinds
        if not entry.why and free_dims(rule_of(kind)) and not stated & set(entry.kinds)
    }
    assert sorted(kind for kind in offered if not kind.startswith("ai.onnx.")) == [
        "Constant", "Shape", "Size", "com.microsoft.BiasAdd", "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.FusedConv", "com.microsoft.FusedGemm", "com.microsoft.SimplifiedLayerNormalization",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses_that_are_not_summed_are_free_over_samples(kind):
    """Batch and space are free where nothing is summed over them."""
    entry = next(entry for entry in TABLES["loss"] if kind in entry.kinds)
    operands = Shaped((4, 10, 6), "float"), Shaped((4, 6), "int64")
    given = Signature(kind, 13, operands, (Shaped((4, 6), "float"),), (("reduction", "none"),))
    assert {"0:0", "0:2", "1:0", "1:1", "r0:0"} <= free_dims(make_rule(entry.row(given), given))
