"""A rule: what one mesh axis may do to one operator, stated over the operator's factors.

`Rule.options` lists the ways in which *one* mesh axis can split the operator. The three ways that split nothing, and
passing partial values through, are not listed: they follow from `linear` (see `shardplan.graph.strategies`).
A strategy is one option per mesh axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardplan.layout.placement import Placement

Cost = Literal["view", "pointwise", "gemm", "conv", "attention", "memory", "free"]
"""How time is charged: `view` and `free` cost nothing; `pointwise` may fuse with its neighbours; `gemm`, `conv` and
`attention` use the matrix units (`Gemm` sizes give the efficiency); `memory` is bytes in and out, never fused."""


@dataclass(frozen=True, slots=True)
class InnerCollective:
    """A collective that happens inside the operator when an option is used (softmax statistics, halos).

    `payload_bytes`: payload of one device (as `Collective.share` defines it) if this axis alone split the operator;
    other axes that split it divide the payload further. `phase`: in which pass it runs."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]
    payload_bytes: int
    phase: Literal["forward", "backward"] = "forward"


@dataclass(frozen=True, slots=True)
class Option:
    """One mesh axis splits one factor.

    `factor`: its name; `size`: what the number of shards must divide (all axes that split the same factor, taken
    together); `operands`, `results`: the placement that the axis then gives each operand and result. An operand that
    does not contain the factor is `R/P`; a result that does not is `P`; the addend of a partial sum (a bias) is `P`.
    Absent optional operands have the placement `R`. `works`: False when every device still does the whole work.
    """

    factor: str
    size: int
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    inner: tuple[InnerCollective, ...] = ()
    works: bool = True


@dataclass(frozen=True, slots=True)
class Gemm:
    """Sizes of the matrix product inside an operator and which factors make them up: m rows, n columns, k summed."""

    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """How an operator may be split, what it costs, and what its backward needs.

    `equation`: the text it was made from, for people. `sizes`: factor name -> size.
    `linear`: sets of operand positions; the operator is linear in each set taken jointly, so partial sums in these
    operands pass through to all results (`((0,), (1,))` for a product, `((0, 1),)` for an addition).
    `saved_operands`, `saved_results`: positions of what backward reads again.
    `flops`: forward floating-point operations of the whole operator. `backward_flops`: those of backward when every
    float operand needs its gradient (2x for a matrix product).
    `temporary_bytes`: workspace beyond operands and results, whole operator (softmax scores of decomposed attention
    are results; a fused attention has none).
    `fallback`: no rule is known: the operator is replicated and the user is told.
    """

    equation: str
    options: tuple[Option, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    linear: tuple[tuple[int, ...], ...] = ()
    saved_operands: tuple[int, ...] = ()
    saved_results: tuple[int, ...] = ()
    cost: Cost = "memory"
    flops: float = 0.0
    backward_flops: float = 0.0
    gemm: Gemm | None = None
    temporary_bytes: int = 0
    fallback: bool = False
