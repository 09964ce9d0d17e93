"""Convolutions: batch, output and input channels, groups, and space at the price of a halo."""

from __future__ import annotations

import math

from shardplan.rules import windows
from shardplan.rules.equation import letters, listed
from shardplan.rules.row import Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import Gemm


def conv(signature: Signature) -> Row:
    """`Conv`: data [N, Cin, space], weight [Cout, Cin/groups, kernel], bias [Cout]."""
    bias = f", +{_channels(signature)[1]}" if signature.has(2) else ""
    return _sliding(signature, 1, "{data}, {weight}" + bias, saves="0 1", linear=((0, 2), (1, 2)))


def fused_conv(signature: Signature) -> Row:
    """`FusedConv` of ONNX Runtime: an addend and an activation follow, so input channels are whole."""
    data = f"n {_channels(signature)[1]} {' '.join('_' * (signature.rank() - 2))}"
    operands = ["{data}", "{weight}", _channels(signature)[1], data]
    return _sliding(signature, 1, listed(operands, signature.operands), saves="0 1 r0", whole_sum=True)


def conv_integer(signature: Signature) -> Row:
    """`ConvInteger`: zero points stand for the data as a whole, and for the weight or each output channel."""
    points = ["_*", _per_channel(signature, 3)][: len(signature.operands) - 2]
    return _sliding(signature, 1, ", ".join(["{data}", "{weight}", *points]))


def conv_rounded(signature: Signature) -> Row:
    """`QLinearConv`: rounds its result, so input channels are whole."""
    per = [_per_channel(signature, position) for position in (4, 5)]
    operands = ["{data}", "_*", "_*", "{weight}", *per, "_*", "_*", _channels(signature)[1]]
    return _sliding(signature, 3, listed(operands, signature.operands), whole_sum=True)


def conv_transpose(signature: Signature) -> Row:
    """`ConvTranspose`: weight [Cin, Cout/groups, kernel]; the space is not split."""
    weight, groups = signature.shape(1), signature.integer("group", 1)
    rank = len(weight) - 2
    space = " ".join(f"!{name}" for name in letters("y", rank))
    inputs, outputs = _channels(signature)
    bias = f", +{outputs}" if signature.has(2) else ""
    return Row(
        f"n {inputs} {space}, {inputs} o {_kernel(rank)}{bias} -> n {outputs} {' '.join('_' * rank)}",
        cost="conv",
        linear=((0, 2), (1, 2)),
        saves="0 1",
        flops=2.0 * signature.operand(0).elements * math.prod(weight[1:]),
        sizes={"g": groups} if groups > 1 else {},
        gemm=Gemm(
            m=("n", *letters("y", rank)),
            n=("o", *letters("w", rank)),
            k=("c",),
            batch=("g",) if groups > 1 else (),
        ),
    )


def deform_conv(signature: Signature) -> Row:
    """`DeformConv`: windows reach anywhere, so space is whole; with several groups of offsets, channels are too."""
    weight, groups = signature.shape(1), signature.integer("group", 1)
    inputs, outputs = _channels(signature)
    if signature.integer("offset_group", 1) > 1:
        inputs, outputs = (text.replace("g", "!g").replace("c", "!c") for text in (inputs, outputs))
    rank = len(weight) - 2
    made = " ".join(f"!{name}" for name in letters("y", rank))
    summed = "!c" if "!c" in inputs else "c"
    operands = [
        f"n {inputs} {' '.join('_' * rank)}",
        f"{outputs} {summed} {_kernel(rank)}",
        "n _*",
        f"+{outputs}",
        "n _*",
    ]
    return Row(
        f"{listed(operands, signature.operands)} -> n {outputs} {made}",
        cost="conv",
        linear=((1, 3),),
        saves="0 1 2 4",
        flops=2.0 * signature.result().elements * math.prod(weight[1:]),
        sizes={"g": groups} if groups > 1 else {},
        gemm=Gemm(
            m=("n", *letters("y", rank)),
            n=("o",),
            k=("c", *letters("w", rank)),
            batch=("g",) if groups > 1 else (),
        ),
    )


def col2im(signature: Signature) -> Row:
    """`Col2Im`: batch and channels; blocks overlap."""
    channels = signature.result().shape[1]
    block = signature.shape()[1] // max(1, channels)
    return Row("n (c !block) _, _, _ -> n c _*", cost="memory", linear=((0,),), sizes={"c": channels, "block": block})


def causal_conv(signature: Signature) -> Row:
    """`CausalConvWithState`: every channel by itself, the sequence whole; the state is what the next call needs."""
    is_linear = signature.text("activation", "none") == "none"
    return Row(
        f"{listed(['b c _', 'c _ _', 'c', 'b c _'], signature.operands)} -> b c _, b c _",
        cost="conv",
        linear=((0, 2, 3),) if is_linear else (),
        saves="0 1 3",
        flops=2.0 * signature.result().elements * signature.shape(1)[-1],
    )


def _sliding(
    signature: Signature,
    weight_at: int,
    operands: str,
    *,
    saves: str = "",
    linear: tuple[tuple[int, ...], ...] = (),
    whole_sum: bool = False,
) -> Row:
    """A convolution; `{data}` and `{weight}` in `operands` stand for the dims of the two."""
    weight, groups = signature.shape(weight_at), signature.integer("group", 1)
    found = windows.windows(signature, weight[2:])
    space = windows.text(found)
    inputs, outputs = _channels(signature)
    summed = "!c" if whole_sum else "c"
    given = operands.format(data=f"n {inputs} {space}", weight=f"{outputs} {summed} {_kernel(len(found))}")
    return Row(
        f"{given} -> n {outputs} {space}",
        cost="conv",
        linear=linear,
        saves=saves,
        flops=2.0 * signature.result().elements * math.prod(weight[1:]),
        sizes={"g": groups} if groups > 1 else {},
        limits=windows.limits(found),
        inner=windows.halos(signature, found),
        gemm=Gemm(
            m=("n", *letters("y", len(found))),
            n=("o",),
            k=("c", *letters("w", len(found))),
            batch=("g",) if groups > 1 else (),
        ),
    )


def _channels(signature: Signature) -> tuple[str, str]:
    """Dims of input and output channels, by group where there are several."""
    return ("c", "o") if signature.integer("group", 1) == 1 else ("(g c)", "(g o)")


def _per_channel(signature: Signature, position: int) -> str:
    """Dims of a scale or zero point of the weight: none, or its output channels."""
    single = not signature.has(position) or signature.operand(position).elements == 1
    return "_*" if single else _channels(signature)[1]


def _kernel(rank: int) -> str:
    return " ".join(f"!{name}" for name in letters("w", rank))


TABLE: tuple[Entry, ...] = (
    by("Conv", conv),
    by("com.microsoft.FusedConv", fused_conv),
    by("ConvInteger", conv_integer),
    by("QLinearConv", conv_rounded),
    by("ConvTranspose", conv_transpose),
    by("DeformConv", deform_conv),
    by("Col2Im", col2im),
    by("CausalConvWithState", causal_conv),
)
