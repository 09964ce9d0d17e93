"""Operand alignment of old opsets that newer ones dropped."""

from __future__ import annotations

from dataclasses import replace

from shardplan.rules.row import Row
from shardplan.rules.signature import Signature

_BINARY = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"))
_BROADCASTS_SINCE = 7


def aligned(line: Row, signature: Signature) -> Row:
    """The line of an operator, its second operand aligned as before opset 7: along `axis`, or the channels."""
    if signature.version >= _BROADCASTS_SINCE or len(signature.operands) < 2:
        return line
    rank, other = signature.rank(), signature.rank(1)
    if signature.kind in _BINARY and other < rank:
        axis = signature.axis(rank - other)
    elif signature.kind == "PRelu" and other == 1 < rank:
        axis = 1
    else:
        return line
    names = [f"x{dim}" for dim in range(rank)]
    whole = " ".join(names)
    return replace(line, equation=f"{whole}, {' '.join(names[axis : axis + other])} -> {whole}")
