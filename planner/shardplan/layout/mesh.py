"""The device mesh: named axes with sizes; devices are numbered row-major, the last axis fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

AXIS_NAME: Final = r"[^\W\d][\w-]*"
"""Pattern of the names that an axis can have: what layouts (`S(0)@gpu`) and `--mesh gpu=4` separate by is in none."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the mesh."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ordered axes, outermost first. `Mesh.of(machine=4, gpu=4)` has 16 devices."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise ValueError(f"mesh axis names must differ, found {names}")
        for axis in self.axes:
            if axis.size < 1:
                raise ValueError(f"mesh axis '{axis.name}' has size {axis.size}; a size is at least 1")

    @classmethod
    def of(cls, **sizes: int) -> Mesh:
        return cls(tuple(Axis(name, size) for name, size in sizes.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def real_axes(self) -> tuple[int, ...]:
        """The axes with more than one device."""
        return tuple(axis for axis, size in enumerate(self.shape) if size > 1)

    @property
    def argument(self) -> str:
        """As `--mesh` takes it: machine=4,gpu=4."""
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.axes)

    def __str__(self) -> str:
        return " x ".join(f"{axis.name}={axis.size}" for axis in self.axes)

    def index(self, name: str) -> int:
        """Position of the axis called `name`; `ValueError` lists the names there are."""
        if name not in self.names:
            raise ValueError(f"axis '{name}' is not in the mesh; its axes are {', '.join(self.names)}")
        return self.names.index(name)

    def ways(self, axes: Sequence[int]) -> int:
        """How many pieces the given axes cut something into."""
        return math.prod(self.axes[axis].size for axis in axes)

    def number(self, axes: Sequence[int], coordinates: Sequence[int]) -> int:
        """Row-major number of a device's coordinates along `axes`, major first: which of their `ways` it has."""
        found = 0
        for axis in axes:
            found = found * self.axes[axis].size + coordinates[axis]
        return found

    def groups(self, axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Ranks that differ only in their coordinates along `axes`, one tuple per group, ascending."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(self.coordinates()):
            found.setdefault(tuple(c for axis, c in enumerate(place) if axis not in axes), []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Coordinates of every device in rank order."""
        return itertools.product(*(range(size) for size in self.shape))
