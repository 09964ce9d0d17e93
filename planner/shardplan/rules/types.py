"""The rule of an operator: what one mesh axis may do to it, in terms of the operator's factors.

`Rule.options` lists the ways in which *one* mesh axis can split the operator. The three ways that split nothing, and
passing partial values through, are not listed: they follow from `linear` (see `shardplan.graph.strategies`). A strategy
is one option per mesh axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardplan.layout.placement import Placement

Cost = Literal["view", "pointwise", "gemm", "conv", "attention", "memory", "free"]
"""How time is charged: `view` and `free` cost nothing; `pointwise` may fuse with its neighbours; `gemm`, `conv` and
`attention` use the matrix units (`Gemm` sizes give the efficiency); `memory` is bytes in and out, never fused."""


@dataclass(frozen=True, slots=True)
class InnerCollective:
    """A collective that happens inside the operator when an option is used (softmax statistics, halos).

    `payload_bytes`: payload of one device (as `Collective.share` defines it) if this axis alone split the operator;
    other axes that split it divide the payload further. `phase`: in which pass it runs. `count`: how often it is
    issued, each time with this payload (once per time step of a recurrent operator)."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]
    payload_bytes: int
    phase: Literal["forward", "backward"] = "forward"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Option:
    """One mesh axis splits one factor.

    `factor`: its name; `size`: what the number of shards must divide (all axes that split the same factor, taken
    together); `operands`, `results`: the placement that the axis then gives each operand and result. An operand that
    does not contain the factor is `R/P`; a result that does not is `P`; the addend of a partial sum (a bias) is `P`.
    Absent optional operands have the placement `R`. `works`: False when every device still does the whole work.
    `variant`: the segments, as text, when this is the segmented form of a factor (`3x768`). Two axes may split one
    factor in its plain and in a segmented form only when the plain shards are whole segments; never in two
    segmented forms.
    `ordered`: the position along the dim means something to the operator (halo, index space), so each shard must be
    contiguous. `averaged`: partial results are means over the factor; a local mean counts 1/shards of it.
    """

    factor: str
    size: int
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    inner: tuple[InnerCollective, ...] = ()
    works: bool = True
    variant: str = ""
    ordered: bool = False
    averaged: bool = False

    @property
    def label(self) -> str:
        """`n`, or `n;3x768` for a segmented form."""
        return f"{self.factor};{self.variant}" if self.variant else self.factor

    @property
    def is_segmented(self) -> bool:
        """Whether it shards some operand or result by segments."""
        return any(placement.segments for placement in (*self.operands, *self.results))


class Slot(NamedTuple):
    """One dim of one operand (or result) of an operator."""

    is_result: bool
    position: int
    dim: int


@dataclass(frozen=True, slots=True)
class Join:
    """The dim `whole` is the concatenation of the dims `parts` of the given sizes (None: a part that goes nowhere).

    Split, Concat and Slice have one. Splitting it gives every device its slice of each part; the option is offered
    where the neighbours can follow (see `shardplan.rules.segments`).
    """

    factor: str
    whole: Slot
    parts: tuple[Slot | None, ...]
    sizes: tuple[int, ...]
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Gemm:
    """Sizes of the matrix product inside an operator and which factors make them up: m rows, n columns, k summed;
    `repeats`: turns with the same weights, one after another. Their gradients are one product, which sums over all."""

    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()


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
    `triangular`: factors along which the work grows evenly from nothing, so that of n equal runs the last has 2 - 1/n
    times its share (causal attention, by queries or by keys).
    `fallback`: no rule is known: the operator is replicated and the user is told.
    `latent`, `joins`: options that need a segmented shard; `shardplan.rules.segments` turns those into options that
    lead somewhere in a given model.
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
    triangular: tuple[str, ...] = ()
    fallback: bool = False
    latent: tuple[Option, ...] = ()
    joins: tuple[Join, ...] = ()

    def saved_when(self, takes_gradient: Sequence[bool]) -> tuple[int, ...]:
        """The operands to save for backward when only some operands take a gradient.

        Where the operator is linear in operand i alone, the gradient of i needs the *other* operands; so i itself is
        saved only if another operand takes a gradient (`x * 0.5` saves nothing)."""
        alone = {group[0] for group in self.linear if len(group) == 1}
        others = [any(takes_gradient[:i]) or any(takes_gradient[i + 1 :]) for i in range(len(takes_gradient))]
        return tuple(i for i in self.saved_operands if others[i] or (i not in alone and takes_gradient[i]))
