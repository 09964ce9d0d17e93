"""Convolutions: batch, output and input channels, groups, and space at the price of a halo."""

from __future__ import annotations

import math

from shardplan.rules import windows
from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import Gemm


def conv(signature: Signature) -> Row:
    """`Conv`: data [N, Cin, space], weight [Cout, Cin/groups, kernel], bias [Cout]."""
    weight = signature.shape(1)
    found = windows.windows(signature, weight[2:])
    space, kernel = windows.text(found), " ".join(f"!{name}" for name in letters("w", len(found)))
    groups = signature.integer("group", 1)
    inputs, outputs = ("c", "o") if groups == 1 else ("(g c)", "(g o)")
    bias = f", +{outputs}" if signature.has(2) else ""
    positions = math.prod(signature.result().shape) * math.prod(weight[1:])
    return Row(
        f"n {inputs} {space}, {outputs} c {kernel}{bias} -> n {outputs} {space}",
        cost="conv",
        linear=((0, 2), (1, 2)),
        saves="0 1",
        flops=2.0 * positions,
        sizes={"g": groups} if groups > 1 else {},
        limits=windows.limits(found),
        inner=windows.halos(signature, found),
        gemm=_gemm(len(found), groups),
    )


def conv_transpose(signature: Signature) -> Row:
    """`ConvTranspose`: weight [Cin, Cout/groups, kernel]; the space is not split."""
    weight = signature.shape(1)
    space, kernel = " ".join("_" for _ in weight[2:]), " ".join(f"!{name}" for name in letters("w", len(weight) - 2))
    groups = signature.integer("group", 1)
    inputs, outputs = ("c", "o") if groups == 1 else ("(g c)", "(g o)")
    bias = f", +{outputs}" if signature.has(2) else ""
    return Row(
        f"n {inputs} {space}, {inputs} o {kernel}{bias} -> n {outputs} {space}",
        cost="conv",
        linear=((0, 2), (1, 2)),
        saves="0 1",
        flops=2.0 * math.prod(signature.shape()) * math.prod(weight[1:]),
        sizes={"g": groups} if groups > 1 else {},
        gemm=Gemm(m=("n",), n=("o",), k=("c",), batch=("g",) if groups > 1 else ()),
    )


def _gemm(space: int, groups: int) -> Gemm:
    """The matrix product that an implicit-GEMM convolution is: positions by output channels by input window."""
    return Gemm(
        m=("n", *letters("y", space)),
        n=("o",),
        k=("c", *letters("w", space)),
        batch=("g",) if groups > 1 else (),
    )


TABLE: tuple[Entry, ...] = (
    by("Conv", conv),
    by("ConvTranspose", conv_transpose),
)
