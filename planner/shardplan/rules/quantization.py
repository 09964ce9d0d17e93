"""Quantised values: they split with their scales, whether those stand for a tensor, for a row or for a block."""

from __future__ import annotations

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def quantize(signature: Signature) -> Row | None:
    """`QuantizeLinear`, `DequantizeLinear`: one scale, one along an axis, or one for each block of it."""
    scale, block = signature.shape(1), signature.integer("block_size")
    data = letters("x", signature.rank())
    if len(scale) < 2 and not block:
        axis = signature.axis(1) if scale not in {(), (1,)} else None
        scales = "_" * len(scale) if axis is None else data[axis]
    elif signature.shape()[signature.axis(1)] % max(1, block) == 0:
        scales = " ".join(data)
        data[signature.axis(1)] = f"({data[signature.axis(1)]} !block)"
    else:
        return None
    dims = " ".join(data)
    scales = ", ".join([scales] * (len(signature.operands) - 1))
    return Row(f"{dims}, {scales} -> {dims}", sizes={"block": block} if block else {}, work=2)


def matmul_integer(signature: Signature) -> Row:
    """`MatMulInteger`: zero points stand for the whole, for rows of the left or for columns of the right matrix."""
    points = [_per(signature, 2, "m"), _per(signature, 3, "n")][: len(signature.operands) - 2]
    return Row(f"{', '.join(['b* m k', 'b* k n', *points])} -> b* m n", cost="gemm")


def matmul_rounded(signature: Signature) -> Row:
    """`QLinearMatMul`: rounds its result, so the sum is whole."""
    rows, columns = (
        [_per(signature, position, name) for position in at] for at, name in (((1, 2), "m"), ((4, 5), "n"))
    )
    made = [_per(signature, position, "m") for position in (6, 7)]
    operands = ["b* m !k", *rows, "b* !k n", *columns, *made]
    sizes = signature.result().elements * signature.shape()[-1]
    return Row(f"{', '.join(operands)} -> b* m n", cost="gemm", flops=2.0 * sizes)


def _per(signature: Signature, position: int, name: str) -> str:
    """The dims of a scale or zero point: none, one for each row (column), or aligned with the whole matrix."""
    if not signature.has(position) or signature.operand(position).elements == 1:
        return "_*"
    if signature.rank(position) == 1:
        return name
    return "b* m _" if name == "m" else "b* _ n"


TABLE: tuple[Entry, ...] = (
    by("QuantizeLinear DequantizeLinear", quantize),
    row("DynamicQuantizeLinear", "~x* -> x*, , ", statistics=(2, 0), work=4),
    by("MatMulInteger", matmul_integer),
    by("QLinearMatMul", matmul_rounded),
)
