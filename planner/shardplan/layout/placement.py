"""Placements: what one mesh axis does to one tensor.

In training every tensor has a forward value and a gradient, and a placement is the dual pair of both:

| text       | forward   | gradient  | in the field                                                        |
|------------|-----------|-----------|---------------------------------------------------------------------|
| `S(0)`     | shard     | shard     | data, sequence and expert parallelism, ZeRO-3, column and row weights |
| `R`        | replicate | replicate | a replicated activation; a weight whose gradient has been reduced   |
| `R/P`      | replicate | partial   | input of a column-parallel layer; a weight used under data parallelism |
| `P`        | partial   | replicate | output of a row-parallel layer                                      |

Without gradients (inference, integer tensors) `R/P` and `R` are the same thing and only `S`, `R` and `P` are used.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

Kind = Literal["S", "R", "R/P", "P"]


@dataclass(frozen=True, slots=True)
class Placement:
    """`S(dim)`, `R`, `R/P` or `P`; make one with `S`, `R`, `RP`, `P` below.

    `segments`: sizes of the pieces of which a fused dim is the concatenation; every device then holds its slice of
    each piece (`S(1;768,768,768)` for a packed q, k, v). Empty for an ordinary shard.
    `reduction`: how partial values combine (`sum`, `max`, `min`, `prod`).
    """

    kind: Kind
    dim: int = -1
    segments: tuple[int, ...] = ()
    reduction: str = "sum"

    @property
    def is_shard(self) -> bool:
        return self.kind == "S"

    @property
    def forward(self) -> Placement:
        """Placement of the forward value alone: `R/P` becomes `R`."""
        return R if self.kind == "R/P" else self

    @property
    def gradient(self) -> Placement:
        """Placement of the gradient alone: `R/P` becomes `P`, `P` becomes `R`."""
        if self.kind == "R/P":
            return Placement("P")
        return R if self.kind == "P" else self

    def __repr__(self) -> str:
        """What makes it: `S(0)`, `S(1, (768, 768))`, `R`, `RP`, `P()`."""
        if self.kind == "S":
            return f"S({self.dim}, {self.segments})" if self.segments else f"S({self.dim})"
        if self.kind == "P":
            return "P()" if self.reduction == "sum" else f"P({self.reduction!r})"
        return "R" if self.kind == "R" else "RP"

    def __str__(self) -> str:
        if self.kind == "S":
            runs = [(size, len(list(run))) for size, run in itertools.groupby(self.segments)]
            pieces = ",".join(f"{count}x{size}" if count > 1 else str(size) for size, count in runs)
            return f"S({self.dim};{pieces})" if pieces else f"S({self.dim})"
        return self.kind if self.reduction == "sum" else f"{self.kind}({self.reduction})"


R = Placement("R")
RP = Placement("R/P")


def S(dim: int, segments: tuple[int, ...] = ()) -> Placement:
    """Shard dim `dim`; with `segments`, every segment of it is sharded on its own."""
    return Placement("S", dim, segments)


def P(reduction: str = "sum") -> Placement:
    """Partial values that are still to be combined by `reduction`."""
    return Placement("P", reduction=reduction)
