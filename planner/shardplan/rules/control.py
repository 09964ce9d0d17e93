"""Operators in place of control flow: the borders of loops, and choices between branches.

All of them only hand values on. A carried value keeps one layout around its loop; `shardplan.graph.build` sees to that.
"""

from __future__ import annotations

from shardplan.model.types import CONTROL, Border
from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def each(signature: Signature) -> Row:
    """`Each`: the dim that is scanned is whole, since every device needs every entry."""
    names = letters("x", signature.rank())
    axis = signature.axis()
    made = [*names[:axis], *names[axis + 1 :]]
    return Row(f"{_with(made, axis)} -> {' '.join(made)}", cost="view", linear=((0,),))


def stack(signature: Signature) -> Row:
    """`Stack`: the new dim is whole, since every device makes every entry."""
    names = letters("x", signature.rank())
    axis = signature.axis(rank=signature.rank() + 1)
    return Row(f"{' '.join(names)}{signature.rest} -> {_with(names, axis)}", cost="free", linear=((0,),))


def _with(names: list[str], axis: int) -> str:
    return " ".join([*names[:axis], "_", *names[axis:]])


def _kinds(*kinds: str) -> str:
    return " ".join(f"{CONTROL}.{kind}" for kind in kinds)


TABLE: tuple[Entry, ...] = (
    row(_kinds(Border.ENTER), "x* -> x*", cost="free", linear=((0,),)),
    row(_kinds(Border.LEAVE), "x*, _* -> x*", cost="free", linear=((0,),)),
    by(_kinds(Border.EACH), each),
    by(_kinds(Border.STACK), stack),
    row(_kinds(Border.COUNT), "_*, ... -> _*", cost="free", why="every device counts for itself"),
    row(_kinds(Border.CHOOSE), "_*, x*, x* -> x*", cost="free", linear=((1, 2),)),
)
