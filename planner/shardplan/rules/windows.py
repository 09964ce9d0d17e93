"""What convolution and pooling share: windows that slide over space, and the borders they need from neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.rules.equation import letters
from shardplan.rules.signature import Signature
from shardplan.rules.types import InnerCollective


@dataclass(frozen=True, slots=True)
class Window:
    """One space dim: `size` in, `made` out, and what a window of `reach` elements moved by `stride` does to it."""

    factor: str
    size: int
    made: int
    reach: int
    stride: int

    @property
    def halo(self) -> int:
        """Rows that a device needs from its neighbours, both together."""
        return max(0, self.reach - self.stride)

    @property
    def limit(self) -> int:
        """What the number of shards must divide: each shard is whole strides and at least as long as the halo.

        1 (never split) where input and output do not correspond, stride by stride."""
        if self.size != self.made * self.stride:
            return 1
        shortest = max(1, -(-self.halo // self.stride))
        return max((self.made // rows for rows in range(shortest, self.made + 1) if self.made % rows == 0), default=1)


def windows(signature: Signature, kernel: Sequence[int]) -> list[Window]:
    """The windows of an operator with attributes `strides` and `dilations` over operand 0 [N, C, space ...]."""
    space, made = signature.shape()[2:], signature.result().shape[2:]
    strides = signature.integers("strides") or (1,) * len(space)
    dilations = signature.integers("dilations") or (1,) * len(space)
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    names = letters("y", len(space))
    return [Window(*fields) for fields in zip(names, space, made, reach, strides, strict=True)]


def limits(found: Sequence[Window]) -> dict[str, int]:
    """Option sizes of the space factors that may be split."""
    return {window.factor: window.limit for window in found if window.limit > 1}


def halos(signature: Signature, found: Sequence[Window]) -> dict[str, tuple[InnerCollective, ...]]:
    """The exchange of borders: each device receives `halo` rows in forward and returns their gradients in backward."""
    data = signature.operand(0)
    exchanges: dict[str, tuple[InnerCollective, ...]] = {}
    for window in found:
        payload = math.ceil(data.elements // max(1, window.size) * window.halo * data.item_bytes)
        if payload:
            both = (InnerCollective("permute", payload), InnerCollective("permute", payload, "backward"))
            exchanges[window.factor] = both
    return exchanges


def text(found: Sequence[Window], mark: str = "^") -> str:
    """The space dims in an equation."""
    return " ".join(f"{mark}{window.factor}" for window in found)
