"""Quantised values: they split with their scales, whether those stand for a tensor, for a row or for a block."""

from __future__ import annotations

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def quantize(signature: Signature) -> Row | None:
    """`QuantizeLinear`, `DequantizeLinear`: one scale, one along an axis, or one for each block of it."""
    data, block = letters("x", signature.rank()), signature.integer("block_size")
    axis = signature.axis(1) if signature.rank() > 1 else 0
    if not block:
        per = ["_*" if _is_single(signature, i) else data[axis] for i in range(1, len(signature.operands))]
    elif signature.shape()[axis] % block == 0:
        per = [" ".join(data)] * (len(signature.operands) - 1)
        data[axis] = f"({data[axis]} !block)"
    else:
        return None
    dims = " ".join(data)
    return Row(f"{', '.join([dims, *per])} -> {dims}", sizes={"block": block} if block else {}, work=2)


def _is_single(signature: Signature, position: int) -> bool:
    """Whether a scale or zero point is absent or stands for the whole tensor."""
    return not signature.has(position) or signature.operand(position).elements == 1


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
    if _is_single(signature, position):
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
