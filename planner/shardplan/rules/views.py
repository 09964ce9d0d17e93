"""Operators that only rearrange elements: reshape, transpose, split, concatenate, repeat, slice and pad."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def reshape(signature: Signature) -> Row:
    """`Reshape` and its kin, by the shapes alone: the factors that both have in common.

    Both shapes are walked from the left. Where one dim divides the other it is a factor of it; where neither does,
    their common divisor is a factor of both and what is left of the two is whole. Dims of size 1 have no factor.
    """
    old, new, sizes = match_factors(signature.shape(), signature.result().shape)
    return Row(f"{old}{signature.rest} -> {new}", cost="view", linear=((0,),), sizes=sizes)


@dataclass
class _Side:
    """One of two shapes that are walked together: its dims so far, in factors, and what is left of the current dim."""

    shape: tuple[int, ...]
    dims: list[list[str]]
    left: int = 1

    def advance(self) -> None:
        """Go on to the next dim larger than 1, when the current one is used up."""
        while self.left == 1 and len(self.dims) < len(self.shape):
            self.left = self.shape[len(self.dims)]
            self.dims.append([])

    def take(self, name: str, size: int) -> None:
        """The next factor of the current dim."""
        self.dims[-1].append(name)
        self.left //= size


def match_factors(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[str, str, dict[str, int]]:
    """The dims of two shapes with equally many elements as text over common factors, and the sizes of the factors.

    Raises `ValueError` for shapes of different numbers of elements, of which one would be walked for ever."""
    if math.prod(before) != math.prod(after):
        raise ValueError(f"{math.prod(before)} elements cannot become {math.prod(after)}")
    left, right = _Side(before, []), _Side(after, [])
    sizes: dict[str, int] = {}
    if math.prod(before) == 0:
        return " ".join("_" * len(before)), " ".join("_" * len(after)), sizes
    while True:
        left.advance()
        right.advance()
        if left.left == right.left == 1:
            return _text(left.dims), _text(right.dims), sizes
        common = math.gcd(left.left, right.left)
        if common > 1:
            name = _new(sizes, common)
            left.take(name, common)
            right.take(name, common)
        if left.left > 1 and right.left > 1:
            _pass_over(left, right, sizes)


def _pass_over(left: _Side, right: _Side, sizes: dict[str, int]) -> None:
    """Take what has nothing in common as whole, up to where both shapes have covered equally many elements."""
    covered = [1, 1]
    while covered[0] != covered[1] or covered[0] == 1:
        which = 0 if covered[0] <= covered[1] else 1
        side = (left, right)[which]
        side.advance()
        covered[which] *= side.left
        side.take(f"!{_new(sizes, side.left)}", side.left)


def _new(sizes: dict[str, int], size: int) -> str:
    name = _letter(len(sizes))
    sizes[name] = size
    return name


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else f"f{index}"


def _text(dims: list[list[str]]) -> str:
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
    return Row(f"{names}{signature.rest} -> {' '.join(made)}", cost="memory", linear=((0,),), sizes=sizes)


def split(signature: Signature) -> Row:
    """`Split`: its dim is the concatenation of the parts."""
    axis, rank = signature.axis(0), signature.rank()
    names = letters("x", rank)
    parts = letters("part", len(signature.results))
    whole = "|".join(parts) if len(parts) > 1 else parts[0]
    operands = " ".join([*names[:axis], whole, *names[axis + 1 :]]) + signature.rest
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
    return Row(f"{' '.join(before)}{signature.rest} -> {' '.join(made)}", cost="view", linear=((0,),), sizes=sizes)


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
    name = "pads" if signature.version >= 2 else "paddings"
    pads = signature.constant(1) if signature.version >= 11 else signature.integers(name)
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
    return Row(f"{names}{signature.rest} -> {names}", cost="memory", linear=((0,),) if adds_zeros else ())


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


def centre(signature: Signature) -> Row:
    """`CenterCropPad`: dims that keep their size are untouched."""
    both = zip(signature.shape(), signature.result().shape, strict=True)
    dims = " ".join(f"x{dim}" if before == after else "_" for dim, (before, after) in enumerate(both))
    return Row(f"{dims}, _ -> {dims}", cost="memory", linear=((0,),))


TABLE: tuple[Entry, ...] = (
    by("Reshape Flatten Squeeze Unsqueeze", reshape),
    by("Transpose", transpose),
    row("Expand", "x*, _ -> x*", linear=((0,),)),
    by("Tile", tile),
    by("Split", split),
    by("Concat", concat),
    by("Slice", slice_, reads=(1, 3, 4)),
    by("Pad", pad, reads=(1, 2, 3)),
    by("CenterCropPad", centre),
    by("DepthToSpace", depth_to_space),
    by("SpaceToDepth", space_to_depth),
    row("Trilu", "b* @y @x, _* -> b* y x", linear=((0,),)),
)
