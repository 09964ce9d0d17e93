"""A layout: one placement for each mesh axis.

Several axes may shard one dim; `order` then says which is major. It lists the mesh axes such that, among the axes that
shard the same dim in the same way, the earlier one is major. The normal form is the mesh order wherever nothing else
is needed, so equal layouts are equal values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from shardplan.layout.placement import Placement, R


@dataclass(frozen=True, slots=True)
class Layout:
    """Placements in mesh-axis order; `Layout.of(S(0), R)`. Immutable, hashable, in normal form."""

    placements: tuple[Placement, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, *placements: Placement, order: Iterable[int] | None = None) -> Layout:
        """The layout with these placements; `order` (a permutation of the axes) is brought to normal form."""
        axes = range(len(placements))
        wanted = tuple(axes) if order is None else tuple(order)
        if sorted(wanted) != list(axes):
            raise ValueError(f"order {wanted} is not a permutation of the {len(placements)} mesh axes")
        if wanted == tuple(axes):
            return cls(placements, wanted)
        normal = list(axes)
        for placement in dict.fromkeys(p for p in placements if p.is_shard):
            slots = [axis for axis in axes if placements[axis] == placement]
            for slot, axis in zip(slots, (a for a in wanted if placements[a] == placement), strict=True):
                normal[slot] = axis
        return cls(placements, tuple(normal))

    @classmethod
    def replicated(cls, axes: int) -> Layout:
        return cls.of(*[R] * axes)

    def axes_of(self, placement: Placement) -> tuple[int, ...]:
        """Axes with exactly this placement, major first."""
        return tuple(axis for axis in self.order if self.placements[axis] == placement)

    def dims(self) -> dict[tuple[int, tuple[int, ...]], tuple[int, ...]]:
        """(dim, segments) -> the axes that shard it so, major first."""
        shards = sorted({p for p in self.placements if p.is_shard}, key=lambda p: (p.dim, p.segments))
        return {(p.dim, p.segments): self.axes_of(p) for p in shards}

    def on_finer(self, groups: Sequence[Sequence[int]], idle: Container[int] = ()) -> Layout:
        """The same layout on a mesh that has the axes `groups[i]` in place of axis i, major first; `idle`: axes of one
        device, which replicate."""
        placements = [
            (axis, R if axis in idle else placed)
            for placed, group in zip(self.placements, groups, strict=True)
            for axis in group
        ]
        order = [axis for coarse in self.order for axis in groups[coarse]]
        return Layout.of(*(placed for _, placed in sorted(placements, key=lambda one: one[0])), order=order)

    @property
    def forward(self) -> Layout:
        return self._with(tuple([p.forward for p in self.placements]))

    @property
    def gradient(self) -> Layout:
        return self._with(tuple([p.gradient for p in self.placements]))

    def _with(self, placements: tuple[Placement, ...]) -> Layout:
        return self if placements == self.placements else Layout.of(*placements, order=self.order)

    def __len__(self) -> int:
        return len(self.placements)

    def __repr__(self) -> str:
        """The expression that makes it: `Layout.of(S(0), RP)`."""
        order = [] if self.order == tuple(range(len(self))) else [f"order={self.order}"]
        return f"Layout.of({', '.join([*map(repr, self.placements), *order])})"
