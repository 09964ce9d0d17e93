"""Rows of the operator tables, and how a row and a signature become a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardplan.layout.placement import RP, P, Placement, R, S
from shardplan.rules.equation import Equation, Pattern, Shapes, bind, parse, spread
from shardplan.rules.signature import Signature
from shardplan.rules.types import Cost, Gemm, InnerCollective, Join, Option, Rule, Slot

MOST_SEGMENTS = 512
STATISTIC_BYTES = 4
"""Statistics are summed in single precision."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operator: its equation and at most a few facts.

    `linear`: sets of operand positions, jointly linear each. `saves`: what backward reads, operands `"0 1"`, results
    `"r0"`. `work`: operations per element of the largest operand or result, for `pointwise` and `memory`; `flops` and
    `backward_flops` (default: twice `flops` for products, else once) override it. `sizes`: factors that the shapes
    leave open. `limits`: what the number of shards must divide, where that is not the factor's size; a `^` factor
    without a limit is whole. `statistics`: values per row that `~` factors all-reduce in forward and in backward.
    `inner`: collectives of other factors. `gemm`: which factors are rows, columns, sum and batch of the matrix product,
    found from the equation if it has two operands. `segmented`: offer segmented shards of minor factors (else only
    where neighbours follow). `idle`: factors whose split leaves every device all the work. `triangular`: as in `Rule`.
    `extra`: options that no equation tells.
    """

    equation: str
    cost: Cost = "pointwise"
    linear: tuple[tuple[int, ...], ...] = ()
    saves: str = ""
    work: float = 1.0
    flops: float | None = None
    backward_flops: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    statistics: tuple[int, int] = (1, 1)
    inner: Mapping[str, tuple[InnerCollective, ...]] = field(default_factory=dict)
    gemm: Gemm | None = None
    temporary_bytes: int = 0
    segmented: bool = False
    idle: tuple[str, ...] = ()
    triangular: tuple[str, ...] = ()
    extra: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, or a function of the signature that gives one (None: this form of the operator is replicated), for the
    operators `kinds` from opset version `since` on; `reads`: operands whose constant values the function looks at;
    `why`: for people, where nothing can be split."""

    kinds: tuple[str, ...]
    row: Row | Callable[[Signature], Row | None] | None
    since: int = 1
    reads: tuple[int, ...] = ()
    why: str = ""


def row(kinds: str, equation: str, **facts: object) -> Entry:
    """The table line of the operators named in `kinds`; `facts` are those of `Row` and `Entry`."""
    since, why = facts.pop("since", 1), facts.pop("why", "")
    return Entry(tuple(kinds.split()), Row(equation, **facts), since, why=why)  # type: ignore[arg-type]


def by(kinds: str, function: Callable[[Signature], Row | None], *, since: int = 1, reads: Sequence[int] = ()) -> Entry:
    """The table line of operators whose equation depends on their attributes."""
    return Entry(tuple(kinds.split()), function, since, tuple(reads))


def replicated(kinds: str, why: str) -> Entry:
    """The table line of operators whose result depends on data in a way that no split follows."""
    return Entry(tuple(kinds.split()), None, why=why)


Places = Sequence[Mapping[str, Placement]]
"""For each operand and result: factor -> the shard that splitting the factor makes of it."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A row that has met the shapes of a signature."""

    line: Row
    signature: Signature
    equation: Equation
    sizes: Mapping[str, int]
    places: Places


def make_rule(line: Row, signature: Signature) -> Rule:
    """The rule that a row gives for the shapes of a signature. `EquationError` where they do not fit."""
    shapes = [None if tensor is None else tensor.shape for tensor in (*signature.operands, *signature.results)]
    count = len(signature.operands)
    ranks = [None if shape is None else len(shape) for shape in shapes]
    equation = spread(parse(line.equation), ranks[:count], ranks[count:])
    sizes = bind(equation, shapes, line.sizes)
    bound = _Bound(line, signature, equation, sizes, _places(equation, shapes, sizes))
    joins, joined = _joins(equation, shapes, sizes, count)
    factors = dict.fromkeys(factor for place in bound.places for factor in place)
    options = [_option(bound, factor) for factor in factors if factor not in joined and _may_split(bound, factor)]
    plain = [option for option in options if line.segmented or not option.is_segmented]
    saved_operands, saved_results = _saved(line, signature)
    flops, backward_flops = _flops(line, signature, sizes)
    return Rule(
        line.equation,
        (*plain, *line.extra),
        sizes,
        linear=_linear(line, signature),
        saved_operands=saved_operands,
        saved_results=saved_results,
        cost=line.cost,
        flops=flops,
        backward_flops=backward_flops,
        gemm=_sized_gemm(line.gemm or _gemm(equation), sizes) if line.gemm or line.cost == "gemm" else None,
        temporary_bytes=line.temporary_bytes,
        triangular=line.triangular,
        latent=tuple(option for option in options if not line.segmented and option.is_segmented),
        joins=joins,
    )


def _places(equation: Equation, shapes: Shapes, sizes: Mapping[str, int]) -> Places:
    places: list[dict[str, Placement]] = []
    for pattern, shape in zip((*equation.operands, *equation.results), shapes, strict=True):
        place: dict[str, Placement] = {}
        for dim, size in enumerate(shape or ()):
            if size != 1 and not pattern.dims[dim].joined:
                for factor, placement in _compound(pattern.dims[dim].factors, dim, size, sizes):
                    place[factor] = R if factor in place else placement  # a diagonal cannot be split either
        places.append(place)
    return places


def _compound(factors: tuple[str, ...], dim: int, size: int, sizes: Mapping[str, int]) -> list[tuple[str, Placement]]:
    """The shard that each factor of one dim makes: the first one larger than 1 plainly, later ones by segments.

    `R` for a factor that would need too many segments: it is there, and nothing may split it.
    """
    shards, outer = [], 1
    for factor in factors:
        if sizes[factor] > 1:
            segments = () if outer == 1 else (size // outer,) * min(outer, MOST_SEGMENTS + 1)
            shards.append((factor, S(dim, segments) if len(segments) <= MOST_SEGMENTS else R))
        outer *= sizes[factor]
    return shards


def _joins(
    equation: Equation, shapes: Shapes, sizes: Mapping[str, int], count: int
) -> tuple[tuple[Join, ...], frozenset[str]]:
    """The concatenated dims, and the factors that are parts of one."""
    slots: dict[str, Slot] = {}
    wholes: list[tuple[Slot, tuple[str, ...]]] = []
    for index, pattern in enumerate((*equation.operands, *equation.results)):
        if shapes[index] is None:
            continue
        is_result = index >= count
        for dim, part in enumerate(pattern.dims):
            slot = Slot(is_result, index - count if is_result else index, dim)
            if part.joined:
                wholes.append((slot, part.factors))
            elif len(part.factors) == 1:
                slots[part.factors[0]] = slot
    joins = []
    for whole, parts in wholes:
        kept = [part for part in parts if sizes[part]]
        name = "|".join(kept if len(kept) <= 4 else (kept[0], "…", kept[-1]))
        joins.append(Join(name, whole, tuple(slots.get(part) for part in kept), tuple(sizes[part] for part in kept)))
    return tuple(joins), frozenset(part for _, parts in wholes for part in parts)


def _may_split(bound: _Bound, factor: str) -> bool:
    mark, limits = bound.equation.marks.get(factor), bound.line.limits
    if mark == "!" or (mark == "^" and factor not in limits):
        return False
    is_diagonal = any(place.get(factor) == R for place in bound.places)
    return not is_diagonal and limits.get(factor, bound.sizes[factor]) > 1


def _option(bound: _Bound, factor: str) -> Option:
    line, signature, equation = bound.line, bound.signature, bound.equation
    mark, how = equation.marks.get(factor, ""), equation.reductions.get(factor, "sum")
    combined = R if mark == "~" or how == "merge" else P("sum" if how == "mean" else how)
    count = len(signature.operands)
    results = tuple(
        R if made is None else place.get(factor) or (RP if pattern.prefix == "=" else combined)
        for made, place, pattern in zip(signature.results, bound.places[count:], equation.results, strict=True)
    )
    is_partial = any(placement.kind == "P" for placement in results)
    operands = tuple(
        R if operand is None else place.get(factor) or (P() if pattern.prefix == "+" and is_partial else RP)
        for operand, place, pattern in zip(signature.operands, bound.places[:count], equation.operands, strict=True)
    )
    return Option(
        factor,
        line.limits.get(factor, bound.sizes[factor]),
        operands,
        results,
        line.inner.get(factor) or (_statistics(bound) if mark == "~" else ()),
        works=factor not in line.idle,
        ordered=mark in {"^", "@"},
        averaged=how == "mean",
    )


def _statistics(bound: _Bound) -> tuple[InnerCollective, ...]:
    """All-reduces of `line.statistics` values for each row, a row being what the `~` factors of operand 0 run over."""
    shared = math.prod(bound.sizes[factor] for factor, mark in bound.equation.marks.items() if mark == "~")
    rows = bound.signature.operand(0).elements // max(1, shared)
    forward, backward = (count * rows * STATISTIC_BYTES for count in bound.line.statistics)
    both = (InnerCollective("all_reduce", forward), InnerCollective("all_reduce", backward, "backward"))
    return tuple(collective for collective in both if collective.payload_bytes)


def _makes_floats(signature: Signature) -> bool:
    return all(made.is_float for made in signature.results if made is not None)


def _linear(line: Row, signature: Signature) -> tuple[tuple[int, ...], ...]:
    """The linear sets, without absent operands, and only for floats: partial sums of integers lead nowhere."""
    if not _makes_floats(signature):
        return ()
    groups = (tuple(i for i in group if signature.has(i) and signature.operand(i).is_float) for group in line.linear)
    return tuple(group for group in groups if group)


def _saved(line: Row, signature: Signature) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of operands and results that backward reads; none if nothing differentiable is made."""
    if not any(made is not None and made.is_float for made in signature.results):
        return (), ()
    words = line.saves.split()
    operands = tuple(int(word) for word in words if word[0] != "r" and signature.has(int(word)))
    return operands, tuple(int(word[1:]) for word in words if word[0] == "r" and signature.made(int(word[1:])))


def _flops(line: Row, signature: Signature, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Forward and backward operations of the whole operator."""
    if line.cost in {"view", "free"}:
        return 0.0, 0.0
    is_product = line.cost in {"gemm", "conv", "attention"}
    forward = line.flops
    if forward is None and is_product:
        forward = 2.0 * math.prod(sizes.values())
    elif forward is None:
        tensors = (*signature.operands, *signature.results)
        forward = line.work * max((tensor.elements for tensor in tensors if tensor is not None), default=0)
    assert forward is not None
    if line.backward_flops is not None:
        return forward, line.backward_flops
    return forward, (2.0 * forward if is_product else forward) if _makes_floats(signature) else 0.0


def _gemm(equation: Equation) -> Gemm:
    """Roles of the factors of a product of two operands: by where they occur."""
    left, right = (_factors(pattern) for pattern in equation.operands[:2])
    made = _factors(equation.results[0])
    return Gemm(
        m=tuple(factor for factor in left if factor in made and factor not in right),
        n=tuple(factor for factor in right if factor in made and factor not in left),
        k=tuple(factor for factor in left if factor not in made),
        batch=tuple(factor for factor in left if factor in made and factor in right),
    )


def _sized_gemm(gemm: Gemm, sizes: Mapping[str, int]) -> Gemm:
    """Without the factors of absent operands."""
    roles = (gemm.m, gemm.n, gemm.k, gemm.batch, gemm.repeats)
    return Gemm(*(tuple(factor for factor in role if factor in sizes) for role in roles))


def _factors(pattern: Pattern) -> list[str]:
    return [factor for dim in pattern.dims for factor in dim.factors]
