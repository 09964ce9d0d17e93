"""Sliding windows of convolution and pooling, and the halos that they need from neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.rules.equation import letters
from shardplan.rules.signature import Signature
from shardplan.rules.types import InnerCollective


@dataclass(frozen=True, slots=True)
class Window:
    """One space dim: `size` in, `made` out, and what a window of `reach` elements moved by `stride` does to it;
    the first window begins `before` elements ahead of the data."""

    factor: str
    size: int
    made: int
    reach: int
    stride: int
    before: int

    @property
    def halo(self) -> tuple[int, int]:
        """Rows that a device needs from the neighbours before and after it."""
        return max(0, self.before), max(0, self.reach - self.stride - self.before)

    @property
    def limit(self) -> int:
        """What the number of shards must divide: a shard is whole strides, and no shorter than what a neighbour needs.

        1 (never split) where input and output do not correspond, stride by stride."""
        if self.size != self.made * self.stride:
            return 1
        shortest = max(1, -(-max(self.halo) // self.stride))
        small = [rows for rows in range(1, math.isqrt(self.made) + 1) if self.made % rows == 0]
        divisors = (*small, *(self.made // rows for rows in reversed(small)))
        return next((self.made // rows for rows in divisors if rows >= shortest), 1)


def windows(signature: Signature, kernel: Sequence[int]) -> list[Window]:
    """The windows of an operator with the attributes of a convolution over operand 0 [N, C, space ...]."""
    space, made = signature.shape()[2:], signature.result().shape[2:]
    strides = signature.integers("strides") or (1,) * len(space)
    dilations = signature.integers("dilations") or (1,) * len(space)
    pads = signature.integers("pads") or (0,) * 2 * len(space)
    mode = signature.text("auto_pad", "NOTSET")
    found = []
    for dim, factor in enumerate(letters("y", len(space))):
        reach = (kernel[dim] - 1) * dilations[dim] + 1
        before = pads[dim]
        if mode != "NOTSET":
            padded = max(0, (made[dim] - 1) * strides[dim] + reach - space[dim])
            before = {"SAME_UPPER": padded // 2, "SAME_LOWER": padded - padded // 2}.get(mode, 0)
        found.append(Window(factor, space[dim], made[dim], reach, strides[dim], before))
    return found


def limits(found: Sequence[Window]) -> dict[str, int]:
    """Option sizes of the space factors that may be split."""
    return {window.factor: window.limit for window in found if window.limit > 1}


def halos(signature: Signature, found: Sequence[Window]) -> dict[str, tuple[InnerCollective, ...]]:
    """The exchange of borders: each device receives rows in forward and returns their gradients in backward."""
    data = signature.operand(0)
    exchanges: dict[str, tuple[InnerCollective, ...]] = {}
    for window in found:
        payload = math.ceil(data.elements // max(1, window.size) * sum(window.halo) * data.item_bytes)
        if payload:
            both = (InnerCollective("permute", payload), InnerCollective("permute", payload, "backward"))
            exchanges[window.factor] = both
    return exchanges


def text(found: Sequence[Window], mark: str = "^") -> str:
    """The space dims in an equation."""
    return " ".join(f"{mark}{window.factor}" for window in found)
