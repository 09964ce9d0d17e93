"""Sharding propagation: the split of an operation from the layouts of its operands.

Each mesh axis splits one factor, or nothing. The planner goes from a split to the layouts around an operator; here the
layouts are given and the split follows. Where operands disagree, the largest one decides and the others are moved;
under a plan they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R, S
from shardplan.torch.propagation.values import Call, Dims, Pieces


@dataclass(frozen=True, slots=True)
class FactorSplit:
    """A factor that an axis splits; `segments`: each segment of its dim on its own."""

    factor: str
    segments: tuple[int, ...] = ()


Choice = FactorSplit | str
"""What one axis does: a factor split, or `-` (nothing), `~` (nothing, with partial gradients), `+0,2` (passes partial
sums of these operands)."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """The layouts of operands and results; `splits`: factor -> the axes that split it, major first."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    splits: Mapping[str, tuple[int, ...]]


def propagate(call: Call, mesh: Mesh) -> Sharding:
    """The split of `call` that follows from its operands."""
    chosen = [_choose(call, axis) for axis in range(len(mesh))]
    layouts = [*(value.layout for value in call.operands), *([call.guide] if call.guide else [])]
    order = next((layout.order for layout in layouts if layout.order != tuple(range(len(mesh)))), None)
    while True:
        sharding = _layouts(call, chosen, order, mesh)
        bad = _illegal(call, sharding, mesh) or not _is_even(call, chosen, mesh)
        splitting = [axis for axis, choice in enumerate(chosen) if isinstance(choice, FactorSplit)]
        if not bad or not splitting:
            return sharding
        chosen[splitting[-1]] = "-"


def _layouts(call: Call, chosen: Sequence[Choice], order: tuple[int, ...] | None, mesh: Mesh) -> Sharding:
    operands = [
        _layout([_operand(call, position, choice) for choice in chosen], order, grad=value.grad)
        for position, value in enumerate(call.operands)
    ]
    grads = any(value.grad for value in call.operands) and not call.integer
    results = [
        _layout([_result(call, position, choice) for choice in chosen], order, grad=grads)
        for position in range(len(call.results))
    ]
    splits: dict[str, tuple[int, ...]] = {}
    for axis in order or range(len(mesh)):
        choice = chosen[axis]
        if isinstance(choice, FactorSplit):
            splits[choice.factor] = (*splits.get(choice.factor, ()), axis)
    return Sharding(tuple(operands), tuple(results), splits)


def _layout(placements: Sequence[Placement], order: tuple[int, ...] | None, *, grad: bool) -> Layout:
    return Layout.of(*(p if grad else p.forward for p in placements), order=order)


def _illegal(call: Call, sharding: Sharding, mesh: Mesh) -> bool:
    shapes = [*(value.shape for value in call.operands), *call.shapes]
    layouts = (*sharding.operands, *sharding.results)
    return any(not is_legal(layout, mesh, shape) for layout, shape in zip(layouts, shapes, strict=True))


def _is_even(call: Call, chosen: Sequence[Choice], mesh: Mesh) -> bool:
    """Whether all parts of every factor, and of its segments, have equally many indices."""
    splits = [choice for choice in chosen if isinstance(choice, FactorSplit)]
    for split in splits:
        every = [axis for axis, other in enumerate(chosen) if getattr(other, "factor", None) == split.factor]
        alike = [axis for axis in every if chosen[axis] == split]
        if call.sizes[split.factor] % mesh.ways(every) or any(size % mesh.ways(alike) for size in split.segments):
            return False
    return True


def _choose(call: Call, axis: int) -> Choice:
    splits: dict[FactorSplit, int] = {}
    for position, value in enumerate(call.operands):
        placement = value.layout.placements[axis]
        split = _factor_split(call, position, placement) if placement.is_shard else None
        if split is not None and split.factor in call.ordered:
            split = FactorSplit(split.factor)
        if split is not None and split.factor not in call.whole:
            splits[split] = max(splits.get(split, 0), math.prod(value.shape))
    if splits:
        return max(splits, key=lambda split: splits[split])
    choice = _unsplit(call, axis)
    return choice if choice.startswith("+") else _guided(call, axis) or choice


def _guided(call: Call, axis: int) -> FactorSplit | None:
    """The split of a factor that only the result has, as the plan says, along an axis that splits no operand."""
    placement = call.guide.placements[axis] if call.guide else None
    if placement is None or not placement.is_shard:
        return None
    factors = call.results[0][placement.dim]
    known = {factor for dims in call.dims for group in dims for factor in group}
    return FactorSplit(factors[0], placement.segments) if len(factors) == 1 and factors[0] not in known else None


def _unsplit(call: Call, axis: int) -> str:
    placements = [value.layout.placements[axis] for value in call.operands]
    partial = frozenset(position for position, p in enumerate(placements) if p.kind == "P" and p.reduction == "sum")
    if partial and all(p.kind != "S" for p in placements):
        for group in call.linear:
            if partial <= group:
                return "+" + ",".join(map(str, sorted(group)))
    kinds = {p.kind for p, value in zip(placements, call.operands, strict=True) if value.grad}
    return "~" if kinds == {"R/P"} else "-"


def _operand(call: Call, position: int, choice: Choice) -> Placement:
    if isinstance(choice, FactorSplit):
        return _placement(call, call.dims[position], position, choice, is_result=False) or RP
    if choice.startswith("+"):
        return P() if str(position) in choice[1:].split(",") else RP
    return RP if choice == "~" else R


def _result(call: Call, position: int, choice: Choice) -> Placement:
    if isinstance(choice, FactorSplit):
        return _placement(call, call.results[position], position, choice, is_result=True) or P(call.reduction)
    if choice.startswith("+"):
        return P()
    return RP if choice == "~" else R


def _factor_split(call: Call, position: int, placement: Placement) -> FactorSplit | None:
    """The factor that a shard of an operand splits; None if it falls between factors."""
    factors = call.dims[position][placement.dim]
    if call.pieces and call.pieces.factor in factors:
        return _piece_split(call.pieces, placement)
    real = [factor for factor in factors if call.sizes[factor] > 1]
    if len(real) <= 1:
        return FactorSplit(real[0], placement.segments) if real else None
    if not placement.segments:
        return FactorSplit(real[0])
    found = [split for factor in real if (split := _of_segments(call, real, factor, placement.segments))]
    return min(found, key=lambda split: len(split.segments), default=None)


def _of_segments(call: Call, factors: Sequence[str], factor: str, segments: tuple[int, ...]) -> FactorSplit | None:
    """The split of one of the factors of a dim that cuts the dim's segments each on its own: they repeat for every
    index of the factors before it, and are as many times as wide as the factors behind it."""
    place = factors.index(factor)
    before = math.prod(call.sizes[each] for each in factors[:place])
    after = math.prod(call.sizes[each] for each in factors[place + 1 :])
    pattern = segments[: len(segments) // before]
    fits = pattern * before == segments and sum(pattern) == call.sizes[factor] * after
    if not fits or (len(pattern) > 1 and any(size % after for size in pattern)):
        return None
    return FactorSplit(factor, tuple(size // after for size in pattern) if len(pattern) > 1 else ())


def _piece_split(pieces: Pieces, placement: Placement) -> FactorSplit | None:
    """Pieces keep a shard that splits each of them on its own."""
    if pieces.joins:
        return FactorSplit(pieces.factor) if not placement.segments else None
    ends, bounds = _ends(placement.segments), _ends(pieces.sizes)
    return FactorSplit(pieces.factor, placement.segments) if set(bounds) <= set(ends) else None


def _ends(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[: place + 1]) for place in range(len(sizes))]


def _placement(call: Call, dims: Dims, position: int, split: FactorSplit, *, is_result: bool) -> Placement | None:
    """The shard of an operand or result that splits `split`; None if it does not have the factor."""
    for dim, factors in enumerate(dims):
        if split.factor not in factors:
            continue
        pieces = call.pieces
        if pieces and pieces.factor == split.factor:
            return _piece_placement(pieces, dim, position, split, is_result=is_result)
        place = factors.index(split.factor)
        before = math.prod(call.sizes[f] for f in factors[:place])
        after = math.prod(call.sizes[f] for f in factors[place + 1 :])
        sizes = tuple(size * after for size in split.segments) or (call.sizes[split.factor] * after,)
        return S(dim, sizes * before if len(sizes) * before > 1 else ())
    return None


def _piece_placement(pieces: Pieces, dim: int, position: int, split: FactorSplit, *, is_result: bool) -> Placement:
    if pieces.joins:
        return S(dim, pieces.sizes) if is_result and len(pieces.sizes) > 1 else S(dim)
    if not is_result:
        return S(dim, split.segments)
    piece = pieces.taken[position]
    start, stop = sum(pieces.sizes[:piece]), sum(pieces.sizes[: piece + 1])
    ends = _ends(split.segments)
    inside = tuple(size for size, end in zip(split.segments, ends, strict=True) if start < end <= stop)
    return S(dim, inside if len(inside) > 1 else ())
