"""Operators that only rearrange: reshape, transpose, split, join, repeat, cut and pad."""

from __future__ import annotations

import math

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def reshape(signature: Signature) -> Row:
    """`Reshape` and its kin, by the shapes alone: the factors that both have in common.

    Both shapes are walked from the left. Where one dim divides the other it is a factor of it; where neither does,
    their common divisor is a factor of both and what is left of the two is whole. Dims of size 1 have no factor.
    """
    before, after = signature.shape(), signature.result().shape
    dims = match_factors(before, after)
    rest = ", _*" * (len(signature.operands) - 1)
    return Row(f"{_text(dims[0])}{rest} -> {_text(dims[1])}", cost="view", linear=((0,),), sizes=dims[2])


Dims = list[list[str]]


def match_factors(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Dims, Dims, dict[str, int]]:
    """Factors of every dim of two shapes with equally many elements, major first, and the sizes of the factors."""
    left: Dims = [[] for _ in before]
    right: Dims = [[] for _ in after]
    sizes: dict[str, int] = {}
    if math.prod(before) == 0:
        return left, right, sizes
    i = j = 0
    x = y = 1
    while True:
        while x == 1 and i < len(before):
            x, i = before[i], i + 1
        while y == 1 and j < len(after):
            y, j = after[j], j + 1
        if x == 1 and y == 1:
            return left, right, sizes
        common = math.gcd(x, y)
        if common > 1:
            name = _letter(len(sizes))
            sizes[name] = common
            left[i - 1].append(name)
            right[j - 1].append(name)
        if common in {x, y}:
            x, y = x // common, y // common
            continue
        i, j = _skip(before, after, i, j, (x // common, y // common), (left, right), sizes)
        x = y = 1


def _skip(
    before: tuple[int, ...], after: tuple[int, ...], i: int, j: int, rest: tuple[int, int], dims: tuple[Dims, Dims],
    sizes: dict[str, int],
) -> tuple[int, int]:  # fmt: skip
    """Pass over dims that have nothing in common, up to where both shapes have covered equally many elements."""
    x, y = rest
    _whole(dims[0][i - 1], x, sizes)
    _whole(dims[1][j - 1], y, sizes)
    while x != y:
        if x < y:
            _whole(dims[0][i], before[i], sizes)
            x, i = x * before[i], i + 1
        else:
            _whole(dims[1][j], after[j], sizes)
            y, j = y * after[j], j + 1
    return i, j


def _whole(dim: list[str], size: int, sizes: dict[str, int]) -> None:
    if size > 1:
        name = _letter(len(sizes))
        sizes[name] = size
        dim.append(f"!{name}")


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else f"f{index}"


def _text(dims: Dims) -> str:
    words = ("_" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})" for names in dims)
    return " ".join(words)


def transpose(signature: Signature) -> Row:
    """`Transpose`: a free change of names; kernels read strided operands."""
    rank = signature.rank()
    names = letters("x", rank)
    order = signature.integers("perm") or tuple(reversed(range(rank)))
    return Row(f"{' '.join(names)} -> {' '.join(names[dim] for dim in order)}", cost="view", linear=((0,),))


def tile(signature: Signature) -> Row:
    """`Tile`: a repeated dim is copies of the whole, `(copies x)`."""
    sizes: dict[str, int] = {}
    made = []
    for dim, (before, after) in enumerate(zip(signature.shape(), signature.result().shape, strict=True)):
        sizes[f"copies{dim}"] = after // max(1, before)
        made.append(f"x{dim}" if before == after else f"(copies{dim} x{dim})")
    names = " ".join(f"x{dim}" for dim in range(signature.rank()))
    return Row(f"{names}, _* -> {' '.join(made)}", cost="memory", linear=((0,),), sizes=sizes)


def split(signature: Signature) -> Row:
    """`Split`: its dim is the concatenation of the parts."""
    axis, rank = signature.axis(0), signature.rank()
    names = letters("x", rank)
    parts = letters("part", len(signature.results))
    whole = "|".join(parts) if len(parts) > 1 else parts[0]
    operands = " ".join([*names[:axis], whole, *names[axis + 1 :]]) + ", _*" * (len(signature.operands) - 1)
    results = ", ".join(" ".join([*names[:axis], part, *names[axis + 1 :]]) for part in parts)
    return Row(f"{operands} -> {results}", cost="view", linear=((0,),))


def concat(signature: Signature) -> Row:
    """`Concat`: its dim is the concatenation of the operands'."""
    axis, rank = signature.axis(0, rank=signature.result().rank), signature.result().rank
    names = letters("x", rank)
    parts = letters("part", len(signature.operands))
    whole = "|".join(parts) if len(parts) > 1 else parts[0]
    operands = ", ".join(" ".join([*names[:axis], part, *names[axis + 1 :]]) for part in parts)
    result = " ".join([*names[:axis], whole, *names[axis + 1 :]])
    return Row(f"{operands} -> {result}", cost="memory", linear=(tuple(range(len(parts))),))


def slice_(signature: Signature) -> Row | None:
    """`Slice`: a dim that stays whole splits; of a cut dim the piece is a part of a concatenation.

    With steps, `(x step)` splits by x. Where the bounds depend on data, only dims that are not cut split.
    """
    cuts = _cuts(signature)
    if cuts is None:
        return None
    before, made = [], []
    sizes: dict[str, int] = {}
    for dim, (size, left) in enumerate(zip(signature.shape(), signature.result().shape, strict=True)):
        name = f"x{dim}"
        text = _cut(name, size, left, cuts.get(dim, ()), sizes)
        before.append(text)
        made.append("_" if text == "_" else name)
    rest = ", _*" * (len(signature.operands) - 1)
    return Row(f"{' '.join(before)}{rest} -> {' '.join(made)}", cost="view", linear=((0,),), sizes=sizes)


Cut = tuple[int, int] | tuple[()] | None
"""First index and step; empty where nothing is cut, None when it depends on data."""


def _cut(name: str, size: int, left: int, cut: Cut, sizes: dict[str, int]) -> str:
    """The text of a dim of `size` of which `left` elements remain."""
    if not cut:
        return "_" if cut is None else name
    first, step = cut
    if step == 1 and left == size:
        return name
    if step == 1 and left:
        around = {f"before{name}": first, name: left, f"after{name}": size - first - left}
        sizes.update(around)
        return "|".join(part for part, length in around.items() if length)
    if step > 1 and left * step == size and first < step:
        sizes[f"step{name}"] = step
        return f"({name} !step{name})"
    return "_"


def _cuts(signature: Signature) -> dict[int, Cut] | None:
    """What happens to each dim that is named by the axes; None when the axes depend on data."""
    rank, shape = signature.rank(), signature.shape()
    if signature.version < 10:
        starts = signature.integers("starts")
        axes = signature.integers("axes") or tuple(range(len(starts or ())))
        steps: tuple[int, ...] | None = (1,) * len(axes)
    else:
        starts = signature.constant(1)
        count = signature.shape(1)[0]
        given = signature.constant(3) if signature.has(3) else tuple(range(count))
        steps = signature.constant(4) if signature.has(4) else (1,) * count
        if given is None:
            return None
        axes = given
    cuts: dict[int, Cut] = {}
    for position, axis in enumerate(axes):
        dim = axis % rank
        if starts is None or steps is None:
            cuts[dim] = None
            continue
        start = starts[position] + (shape[dim] if starts[position] < 0 else 0)
        cuts[dim] = (min(max(start, 0), shape[dim]), steps[position])
    return cuts


def pad(signature: Signature) -> Row | None:
    """`Pad`: dims that get nothing split; zeros keep partial sums."""
    rank = signature.rank()
    pads = signature.constant(1) if signature.version >= 11 else signature.integers("pads")
    axes = tuple(range(rank))
    if signature.has(3):
        given = signature.constant(3)
        if given is None:
            return None
        axes = tuple(axis % rank for axis in given)
    padded = set(axes) if pads is None else {axis for i, axis in enumerate(axes) if pads[i] or pads[i + len(axes)]}
    names = " ".join("_" if dim in padded else f"x{dim}" for dim in range(rank))
    value = signature.numbers(2) if signature.has(2) else (signature.number("value"),)
    adds_zeros = signature.text("mode", "constant") == "constant" and value is not None and not any(value)
    rest = ", _*" * (len(signature.operands) - 1)
    return Row(f"{names}{rest} -> {names}", cost="memory", linear=((0,),) if adds_zeros else ())


def depth_to_space(signature: Signature) -> Row:
    """`DepthToSpace`: blocks are the major (DCR) or the minor (CRD) part of the channels."""
    block = signature.integer("blocksize")
    channels = "(!p !q c)" if signature.text("mode", "DCR") == "DCR" else "(c !p !q)"
    return Row(f"n {channels} y x -> n c (y !p) (x !q)", cost="memory", linear=((0,),), sizes={"p": block, "q": block})


def space_to_depth(signature: Signature) -> Row:
    """`SpaceToDepth`: the inverse, blocks major."""
    block = signature.integer("blocksize")
    channels = "(!p !q c)" if signature.text("mode", "DCR") == "DCR" else "(c !p !q)"
    return Row(f"n c (y !p) (x !q) -> n {channels} y x", cost="memory", linear=((0,),), sizes={"p": block, "q": block})


TABLE: tuple[Entry, ...] = (
    by("Reshape Flatten Squeeze Unsqueeze", reshape),
    by("Transpose", transpose),
    row("Expand", "x*, _ -> x*", linear=((0,),)),
    by("Tile", tile),
    by("Split", split),
    by("Concat", concat),
    by("Slice", slice_, reads=(1, 3, 4)),
    by("Pad", pad, reads=(1, 2, 3)),
    by("DepthToSpace", depth_to_space),
    by("SpaceToDepth", space_to_depth),
    row("Trilu", "b* !y !x, _* -> b* y x", linear=((0,),)),
)
