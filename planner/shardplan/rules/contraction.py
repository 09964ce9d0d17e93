"""Matrix products and what generalises them."""

from __future__ import annotations

from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature
from shardplan.rules.types import Cost


def matmul(signature: Signature) -> Row:
    """`MatMul` as numpy has it: a vector on either side stands for one row or one column."""
    left = "k" if signature.rank(0) == 1 else "b* m k"
    right = "k" if signature.rank(1) == 1 else "b* k n"
    made = " ".join(name for name, rank in (("m", signature.rank(0)), ("n", signature.rank(1))) if rank > 1)
    batch = "b* " if signature.result().rank > len(made.split()) else ""
    left, right = (text if batch else text.removeprefix("b* ") for text in (left, right))
    return Row(f"{left}, {right} -> {batch}{made}", cost="gemm", linear=((0,), (1,)), saves="0 1")


def gemm(signature: Signature) -> Row:
    """`Gemm`: either matrix may be transposed; the addend broadcasts and is added once."""
    left = "k m" if signature.integer("transA") else "m k"
    right = "n k" if signature.integer("transB") else "k n"
    operands = f"{left}, {right}"
    if signature.has(2):
        operands += f", +{' '.join(('m', 'n')[2 - signature.rank(2) :])}"
    return Row(f"{operands} -> m n", cost="gemm", linear=((0, 2), (1, 2)), saves="0 1")


def einsum(signature: Signature) -> Row | None:
    """`Einsum`: its own equation in our letters; what is not in the result is summed.

    Where an operand has no loop of its own, as of a vector for each entry of a batch, every number is used once: no
    matrix unit helps, and what counts is bytes (a weighted sum of experts' results, a product with a diagonal).
    """
    text = signature.text("equation").replace(" ", "")
    inputs, arrow, made = text.partition("->")
    terms = inputs.split(",")
    if not arrow:
        once = sorted({letter for letter in inputs if letter.isalpha() and inputs.count(letter) == 1})
        made = ("..." if "..." in inputs else "") + "".join(once)
    linear = tuple((position,) for position in range(len(terms)))
    saves = " ".join(str(position) for position in range(len(terms))) if len(terms) > 1 else ""
    equation = f"{', '.join(_spaced(term) for term in terms)} -> {_spaced(made)}"
    if len(terms) != 2:
        return Row(equation, cost="pointwise", linear=linear, saves=saves)
    cost: Cost = "gemm" if all(_own(term, other, made) for term, other in (terms, terms[::-1])) else "memory"
    return Row(equation, cost=cost, linear=linear, saves=saves)


def _own(term: str, other: str, made: str) -> bool:
    """Whether an operand has a loop that the result has too and the other operand has not."""
    return bool({*term} & {*made} - {*other} - {"."})


def _spaced(term: str) -> str:
    """`...ij` -> `batch* i j`."""
    return " ".join(term.replace("...", "*")).replace("*", "batch*")


TABLE: tuple[Entry, ...] = (
    by("MatMul", matmul),
    by("Gemm", gemm),
    by("Einsum", einsum),
    row("Det", "b* !m !n -> b*", cost="memory", saves="0 r0"),
)
