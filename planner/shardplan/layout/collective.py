"""One collective of a move, as pure data: no seconds, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

CollectiveKind = Literal["slice", "mask", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
FREE: frozenset[CollectiveKind] = frozenset({"slice", "mask"})


@dataclass(frozen=True, slots=True)
class Collective:
    """A single collective over the devices that differ only in `axes`.

    `share`: the payload as a fraction of the whole tensor, so that payload bytes = share * tensor bytes. The payload is
    `all_gather`: the gathered output of one device; `reduce_scatter`, `all_reduce`: the input of one device;
    `all_to_all`: the send buffer of one device; `permute`: what one device sends. `slice` (keep a part of what is
    there) and `mask` (R or S to P: zeros elsewhere) move nothing and have share 0.
    """

    kind: CollectiveKind
    axes: tuple[int, ...]
    share: Fraction

    @property
    def is_free(self) -> bool:
        return self.kind in FREE
