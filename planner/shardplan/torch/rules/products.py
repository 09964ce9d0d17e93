"""Products that sum over dims, and embedding lookups."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key, lookup, product
from shardplan.torch.propagation.values import Call, Dims, Site, Value, broadcast_dims
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.views import permute_by

_EACH = (frozenset({0}), frozenset({1}))


def linear(engine: Engine, op: Op) -> Value:
    """`x @ weight.T + bias`, as the plan has it: a product, which may be moved, and an addition."""
    given = {**dict(zip(("input", "weight", "bias"), op.args, strict=False)), **op.kwargs}
    weight = as_value(engine, given["weight"])
    made = matmul(engine, Op("matmul", torch.matmul, [given["input"], permute_by(engine, weight, (1, 0))]))
    return _plus(engine, made, given.get("bias"))


def addmm(engine: Engine, op: Op) -> Value:
    """`addmm`, `baddbmm`: `beta * bias + alpha * (x @ weight)`."""
    given = {**dict(zip(("input", "mat1", "mat2"), op.args, strict=False)), **op.kwargs}
    pair = [given.get(name, given.get(other)) for name, other in (("mat1", "batch1"), ("mat2", "batch2"))]
    made = _times(engine, matmul(engine, Op("matmul", torch.matmul, pair)), given.get("alpha", 1))
    return _plus(engine, made, _times(engine, as_value(engine, given["input"]), given.get("beta", 1)))


def _times(engine: Engine, value: Value, factor: float) -> Value:
    return value if factor == 1 else elementwise(engine, Op("mul", torch.mul, [value, factor]))


def _plus(engine: Engine, value: Value, bias: Any) -> Value:
    if bias is None:
        return value
    return elementwise(engine, Op("add", with_bias, [value, as_value(engine, bias)]))


def with_bias(made: Any, bias: Any) -> Any:
    """A product, or a convolution, with its bias, in the dtype of the product: where autocast has rounded that, torch's
    `linear` and its like round the bias too."""
    return made + bias.type_as(made)


def matmul(engine: Engine, op: Op) -> Value:
    """`matmul`, `mm`, `bmm`: batch dims broadcast. Of `rmatmul` the second operand comes first."""
    left, right = (as_value(engine, item) for item in (op.args[1::-1] if op.name == "rmatmul" else op.args[:2]))
    if op.name == "vdot" and left.dtype.is_complex:  # of conjugates
        return replicated(engine, op)  # type: ignore[no-any-return]
    row, column = left.rank > 1, right.rank > 1
    batch = torch.broadcast_shapes(left.shape[: max(0, left.rank - 2)], right.shape[: max(0, right.rank - 2)])
    sizes = {f"b{dim}": size for dim, size in enumerate(batch)}
    sizes["k"] = left.shape[-1]
    if row:
        sizes["m"] = left.shape[-2]
    if column:
        sizes["n"] = right.shape[-1]
    ends: tuple[Dims, Dims] = ((("m",),) if row else (), (("n",),) if column else ())
    dims = [
        (*broadcast_dims(left.shape[: max(0, left.rank - 2)], batch), *ends[0], ("k",)),
        (*broadcast_dims(right.shape[: max(0, right.rank - 2)], batch), ("k",), *ends[1]),
    ]
    result = (*((f"b{dim}",) for dim in range(len(batch))), *ends[0], *ends[1])
    shape = tuple(sizes[factors[0]] for factors in result)
    key = Key(product(engine.graph.signatures, [left.key.signature, right.key.signature]), shape)
    call = Call(
        [left, right], dims, [result], [shape], [key], sizes,
        lambda locals_, _: torch.matmul(*locals_), linear=_EACH,
    )  # fmt: skip
    return engine.run(call)[0]


def einsum(engine: Engine, op: Op) -> Value:
    """A sum of products, as its equation says. A letter twice in one operand, dims of size 1 under a letter of another
    size, and operands by lists of numbers are for every process to do whole."""
    values = op.args[1] if len(op.args) == 2 and isinstance(op.args[1], (tuple, list)) else op.args[1:]
    if not isinstance(op.args[0], str):
        return replicated(engine, op)  # type: ignore[no-any-return]
    operands = [as_value(engine, item) for item in values]
    equation = explicit(op.args[0].replace(" ", ""), [value.rank for value in operands])
    left, right = equation.split("->")
    dims = [tuple((letter,) for letter in side) for side in left.split(",")]
    sizes: dict[str, int] = {}
    for value, side in zip(operands, dims, strict=True):
        for factors, size in zip(side, value.shape, strict=True):
            if len(set(side)) < len(side) or sizes.setdefault(factors[0], size) != size:
                return replicated(engine, op)  # type: ignore[no-any-return]
    shape = tuple(sizes[letter] for letter in right)
    key = Key(product(engine.graph.signatures, [value.key.signature for value in operands]), shape)
    call = Call(
        operands, dims, [tuple((letter,) for letter in right)], [shape], [key], sizes,
        lambda locals_, _: torch.einsum(equation, *locals_),
        linear=tuple(frozenset({place}) for place in range(len(operands))),
    )  # fmt: skip
    return engine.run(call)[0]


def tensordot(engine: Engine, op: Op) -> Value:
    """A product that sums over pairs of dims, or over so many last and first ones, as an einsum."""
    given = {"dims": 2, **dict(zip(("a", "b", "dims"), op.args, strict=False)), **op.kwargs}
    operands = [as_value(engine, given[name]) for name in ("a", "b")]
    dims: Any = op.args[2:] if len(op.args) > 3 else given["dims"]
    ranks = [value.rank for value in operands]
    if isinstance(dims, int):
        dims = (range(ranks[0] - dims, ranks[0]), range(dims))
    sides = [side if hasattr(side, "__iter__") else (side,) for side in dims]
    summed = [[int(dim) % rank for dim in side] for side, rank in zip(sides, ranks, strict=True)]
    left, right = list(string.ascii_lowercase[: ranks[0]]), list(string.ascii_uppercase[: ranks[1]])
    for one, other in zip(*summed, strict=True):
        right[other] = left[one]
    kept = [
        letter
        for letters, gone in zip((left, right), summed, strict=True)
        for dim, letter in enumerate(letters)
        if dim not in gone
    ]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(kept)}"
    return einsum(engine, Op("einsum", torch.einsum, [equation, *operands]))


_OF_LOOKUPS = ("max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_OF_ATEN = ("scale_grad_by_freq", "sparse")
"""What follows the padding in `functional.embedding` and in ATen's operator."""


def explicit(equation: str, ranks: Sequence[int]) -> str:
    """An equation of `einsum` with a result and without ellipses, for operands of `ranks`."""
    left, arrow, right = equation.partition("->")
    sides = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = [
        rank - len(side.replace("...", "")) if "..." in side else 0 for side, rank in zip(sides, ranks, strict=True)
    ]
    batch = "".join(spare[: max(hidden, default=0)])
    sides = [side.replace("...", batch[len(batch) - size :]) for side, size in zip(sides, hidden, strict=True)]
    if not arrow:
        once = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        right = "..." + "".join(once)
    return f"{','.join(sides)}->{right.replace('...', batch)}"


def _bounded(table: Any, index: Any, *, largest: float, order: float) -> Any:
    """A table whose rows that are looked up have at most a norm; gradients pass as if they had been so before."""
    rows = table.detach()
    norms = rows.norm(order, -1, keepdim=True)
    looked_up = torch.zeros(len(rows), dtype=torch.bool, device=rows.device).index_fill(0, index.flatten(), True)
    scaled = torch.where(looked_up.unsqueeze(-1) & (norms > largest), rows * (largest / (norms + 1e-7)), rows)
    return table + (scaled - rows)


def embedding(engine: Engine, op: Op) -> Value:
    """Rows of a table; of a table split by rows every process adds those that it has. No gradient comes back to the row
    `padding_idx`; what a lookup changes in a table (`max_norm`), and gradients by frequency, every process does whole.
    """
    is_aten = not isinstance(op.func, FunctionType)
    given = {**dict(zip(_OF_ATEN if is_aten else _OF_LOOKUPS, op.args[3:], strict=False)), **op.kwargs}
    if given.get("scale_grad_by_freq"):
        return replicated(engine, op)  # type: ignore[no-any-return]
    first, second = (as_value(engine, item) for item in op.args[:2])
    table, index = (second, first) if first.dtype in (torch.int32, torch.int64) else (first, second)
    if given.get("max_norm") is not None:
        bound = functools.partial(_bounded, largest=float(given["max_norm"]), order=float(given.get("norm_type", 2.0)))
        engine.write(table, replicated(engine, Op("embedding_renorm", bound, [table, index])))
    padding = op.kwargs.get("padding_idx", op.args[2] if len(op.args) > 2 else None)
    if padding is not None and padding < 0:  # from the end; in ATen, which has no other way to say it, none
        padding = None if is_aten else padding + table.shape[0]
    rows = tuple((f"i{dim}",) for dim in range(index.rank))
    sizes = {f"i{dim}": size for dim, size in enumerate(index.shape)} | {"v": table.shape[0], "d": table.shape[1]}
    shape = (*index.shape, table.shape[1])
    key = Key(lookup(engine.graph.signatures, [table.key.signature, index.key.signature]), shape)

    def run(locals_: list[Any], site: Site) -> Any:
        local, places = locals_
        ways = site.ways("v")
        if ways == 1:
            return functional.embedding(places, local, padding)
        first_row = site.number("v") * (table.shape[0] // ways)
        inside = (places >= first_row) & (places < first_row + table.shape[0] // ways)
        kept = padding is not None and first_row <= padding < first_row + table.shape[0] // ways
        own = padding - first_row if kept else None
        found = functional.embedding(torch.where(inside, places - first_row, 0), local, own)
        return found.masked_fill(inside.logical_not().unsqueeze(-1), 0)

    call = Call(
        [table, index], [(("v",), ("d",)), rows], [(*rows, ("d",))], [shape], [key], sizes, run,
        ordered=frozenset({"v"}), linear=(frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]
