"""Gradient accumulation: state of one optimizer step that outlives its microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from shardplan.torch.collectives.routes import Route

Gathered = TypeVar("Gathered", Tensor, list[Tensor])


class GradientAccumulator:
    """Gradients of weights summed over microbatches and reduced with the last one; updated weights gathered for the
    first microbatch and kept until the last. `is_first`, `is_last`: position of the microbatch that runs forward."""

    def __init__(self) -> None:
        self.is_first = self.is_last = True
        self._sums: dict[int, Tensor] = {}
        self._weights: dict[int, Any] = {}

    def begin_microbatch(self, number: int, count: int) -> None:
        """Microbatch `number` of `count` runs forward."""
        self.is_first, self.is_last = number == 0, number == count - 1

    def once_per_step(self, route: Route, gather: Callable[[], Gathered]) -> Gathered:
        """The result of `gather` for an updated weight (or for a bucket, whose first route is `route`): called for the
        first microbatch, freed with the last."""
        found = self._weights.pop(id(route), None)
        made = gather() if found is None or self.is_first else found
        if not self.is_last:
            self._weights[id(route)] = made
        return made

    def accumulate(self, route: Route, gradient: Tensor | None, *, is_last: bool) -> Tensor | None:
        """The sum over microbatches for the last of them; None before, or if no microbatch had a gradient."""
        before = self._sums.pop(id(route), None)
        total = before if gradient is None else gradient if before is None else before + gradient
        if is_last or total is None:
            return total
        self._sums[id(route)] = total
        return None

    def reset(self) -> None:
        """Drops all state: a step begins."""
        self._sums.clear()
        self._weights.clear()
