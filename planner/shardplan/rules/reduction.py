"""Reductions: the dims that are kept split freely, the reduced ones leave partial results."""

from __future__ import annotations

from shardplan.rules.equation import EquationError, letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature
from shardplan.rules.types import InnerCollective

COMBINED_BY = {
    "ReduceSum": "sum", "ReduceL1": "sum", "ReduceSumSquare": "sum", "ReduceMean": "mean", "ReduceMax": "max",
    "ReduceMin": "min", "ReduceProd": "prod", "ReduceL2": "merge", "ReduceLogSum": "merge", "ReduceLogSumExp": "merge",
}  # fmt: skip
SAVES = {
    "ReduceL1": "0", "ReduceSumSquare": "0", "ReduceMax": "0 r0", "ReduceMin": "0 r0", "ReduceProd": "0 r0",
    "ReduceL2": "0 r0", "ReduceLogSum": "0 r0", "ReduceLogSumExp": "0 r0",
}  # fmt: skip


def reduce(signature: Signature) -> Row | None:
    """`Reduce*`: dims from an attribute, from opset 13 (`ReduceSum`) or 18 on from an operand; none given means all."""
    axes = reduced_axes(signature)
    if axes is None:
        return None
    equation, factors = reduction_equation(signature, axes, COMBINED_BY[signature.kind])
    is_linear = signature.kind in {"ReduceSum", "ReduceMean"}
    return Row(
        equation,
        linear=((0,),) if is_linear else (),
        saves=SAVES.get(signature.kind, ""),
        inner=_merged(signature, factors, values=1) if COMBINED_BY[signature.kind] == "merge" else {},
    )


def reduced_axes(signature: Signature) -> tuple[int, ...] | None:
    """The reduced dims counted from the front; None when they depend on data."""
    rank = signature.rank()
    axes = signature.integers("axes") or ()
    if signature.has(1):
        given = signature.constant(1)
        if given is None:
            return None
        axes = given
    if not axes and signature.integer("noop_with_empty_axes"):
        return ()
    return tuple(sorted(_from_the_front(axis, rank) for axis in axes)) if axes else tuple(range(rank))


def _from_the_front(axis: int, rank: int) -> int:
    """The dim that an attribute names. Raises `EquationError` if there is no such dim."""
    if not -rank <= axis < max(rank, 1):
        raise EquationError(f"axis {axis} is no dim of rank {rank}")
    return axis % rank if rank else 0


def reduction_equation(signature: Signature, axes: tuple[int, ...], how: str) -> tuple[str, list[str]]:
    """`x0 k x1 -> x0 x1 ; k:max` and the names of the reduced factors."""
    rank = signature.rank()
    summed = letters("k", len(axes))
    kept = iter(letters("x", rank - len(axes)))
    names = [summed[axes.index(dim)] if dim in axes else next(kept) for dim in range(rank)]
    keeps = signature.integer("keepdims", 1)
    made = [("_" if dim in axes else name) for dim, name in enumerate(names) if dim not in axes or keeps]
    notes = "" if how == "sum" else " ;" + "".join(f" {factor}:{how}" for factor in summed)
    return f"{' '.join(names)}{signature.rest} -> {' '.join(made)}{notes}", summed


def arg_extremum(signature: Signature) -> Row:
    """`ArgMax`, `ArgMin`: along the axis, pairs of value and index are merged inside."""
    axis = _from_the_front(signature.integer("axis"), signature.rank())
    equation, factors = reduction_equation(signature, (axis,), "merge")
    return Row(equation.replace(factors[0], f"@{factors[0]}", 1), inner=_merged(signature, factors, values=2))


def global_norm(signature: Signature) -> Row:
    """`GlobalLpPool`: sums of powers are merged inside, before the root."""
    merged = _merged(signature, letters("k", signature.rank() - 2), values=1)
    return Row("n c k* -> n c _* ; k:merge", saves="0 r0", inner=merged, work=4)


def _merged(signature: Signature, factors: list[str], values: int) -> dict[str, tuple[InnerCollective, ...]]:
    """One all-reduce of `values` numbers per element of the result."""
    payload = values * signature.result().size_bytes
    return dict.fromkeys(factors, (InnerCollective("all_reduce", payload),))


TABLE: tuple[Entry, ...] = (
    by(" ".join(COMBINED_BY), reduce, reads=(1,)),
    by("ArgMax ArgMin", arg_extremum),
    row("GlobalAveragePool", "n c k* -> n c _* ; k:mean", linear=((0,),)),
    by("GlobalLpPool", global_norm),
    row("GlobalMaxPool", "n c k* -> n c _* ; k:max", saves="0 r0"),
)
