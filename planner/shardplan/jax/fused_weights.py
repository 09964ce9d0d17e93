"""Leaves of a pytree that are parts of a fused checkpoint weight, such as the q, k or v of one packed tensor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement, S
from shardplan.layout.text import to_text


@dataclass(frozen=True, slots=True)
class Part:
    """Entries `start` to `stop` of dim `dim` of the checkpoint's tensor `name`, its dims permuted by `perm` if given
    (leaf dim i is checkpoint dim perm[i]). For `names=` of `shardplan.jax.shardings`, `load` and `constrain_tree`."""

    name: str
    start: int
    stop: int
    dim: int = 0
    perm: tuple[int, ...] = ()

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Dims of the part of a tensor whose dims are `whole`, in the checkpoint's order."""
        return tuple(self.stop - self.start if dim == self.dim else size for dim, size in enumerate(whole))

    def layout(self, layout: Layout, mesh: Mesh) -> Layout:
        """The layout of the part, where the tensor has `layout` (checkpoint dims): a shard of this segment alone.

        Raises `ShardplanError` (`split-part`) where the plan splits the dim at other places.
        """
        placements = tuple(self._placement(placement) for placement in layout.placements)
        if None in placements:
            raise ShardplanError(self._split(layout, mesh))
        return Layout.of(*(placement for placement in placements if placement is not None), order=layout.order)

    def _placement(self, placement: Placement) -> Placement | None:
        if not placement.is_shard or placement.dim != self.dim:
            return placement
        stops = list(accumulate(placement.segments))
        starts = [stop - size for stop, size in zip(stops, placement.segments, strict=True)]
        return S(self.dim) if (self.start, self.stop) in zip(starts, stops, strict=True) else None

    def _split(self, layout: Layout, mesh: Mesh) -> Diagnostic:
        summary = (
            f"entries {self.start} to {self.stop} of dim {self.dim} of '{self.name}' are to be an array of their own, "
            f"but the plan shards the tensor as {to_text(layout, mesh)}"
        )
        return error("split-part", summary, hint="take the tensor as one array, or pieces that are its segments")

    def check(self, whole: tuple[int, ...]) -> list[Diagnostic]:
        """The faults of this part for a tensor whose dims are `whole`."""
        fits = 0 <= self.dim < len(whole) and 0 <= self.start < self.stop <= whole[self.dim]
        if fits and (not self.perm or sorted(self.perm) == list(range(len(whole)))):
            return []
        permuted = f", dims {list(self.perm)}," if self.perm else ""
        what = f"entries {self.start} to {self.stop} of dim {self.dim}{permuted} are no part of '{self.name}'"
        return [error("wrong-part", f"{what} of shape {list(whole)}")]
