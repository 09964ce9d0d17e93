"""Nodes that cut local tensors into the equal pieces of a collective, and join them again.

`Cut` says how the dims of a local tensor fall into pieces: by plain shards into contiguous parts, by segmented shards
into a part of each segment. `spread` moves them to one leading dim; a collective then works on that dim only, whatever
the layouts are, and `join` puts them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.mesh import Mesh
from shardplan.program.nodes import Graph


@dataclass(frozen=True, slots=True)
class DimCut:
    """One dim of `size`, cut by `axes` (major first) into equal pieces. `order`: where the entries of all pieces, one
    piece after the other, lie in the dim; empty where the pieces are contiguous."""

    dim: int
    size: int
    axes: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a local tensor of shape `large` falls into pieces of shape `small` along the axes of its dims."""

    large: tuple[int, ...]
    small: tuple[int, ...]
    dims: tuple[DimCut, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes that cut, in mesh order."""
        return tuple(sorted(axis for cut in self.dims for axis in cut.axes))

    @property
    def plain(self) -> DimCut | None:
        """The one dim that is cut, if it is one and its pieces are contiguous."""
        return self.dims[0] if len(self.dims) == 1 and not self.dims[0].order else None


def cut_between(mesh: Mesh, shape: Sequence[int], whole: Layout, cut: Layout) -> Cut:
    """How the local tensor of layout `whole` falls into those of `cut`, in which some lists of axes are longer.

    `shape`: of the whole tensor. Only what `cut` appends to the lists of `whole` counts; lists that are shorter in it
    are left alone.
    """
    before, after = whole.dims(), cut.dims()
    large = local_shape(whole, mesh, shape)
    small = list(large)
    added: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for (dim, segments), axes in after.items():
        had = before.get((dim, segments), ())
        if axes[: len(had)] == had and len(axes) > len(had):
            added.setdefault(dim, []).append((segments, axes[len(had) :]))
    dims = []
    for dim, gains in sorted(added.items()):
        ordered = sorted(gains, key=lambda gain: bool(gain[0]))  # plain shards of a dim come before segmented ones
        order = _order(mesh, large[dim], _local_segments(mesh, whole, dim), ordered)
        axes = tuple(axis for _, more in ordered for axis in more)
        contiguous = order == list(range(large[dim]))
        dims.append(DimCut(dim, large[dim], axes, () if contiguous else tuple(order)))
        small[dim] //= mesh.ways(axes)
    return Cut(large, tuple(small), tuple(dims))


def _local_segments(mesh: Mesh, layout: Layout, dim: int) -> dict[tuple[int, ...], list[int]]:
    """For every way in which the dim can be segmented further: lengths of the segments a device holds of it."""
    found = {}
    held = {segments: axes for (where, segments), axes in layout.dims().items() if where == dim}
    plain = mesh.ways(held.get((), ()))
    for segments, axes in held.items():
        if segments:
            ways = mesh.ways(axes)
            found[segments] = [size // ways for size in segments[: len(segments) // plain]]
    found[()] = [plain]
    return found


def _order(
    mesh: Mesh,
    size: int,
    local: dict[tuple[int, ...], list[int]],
    gains: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> list[int]:
    """The places of a dim's entries, one piece after the other; a segmented gain comes last and cuts every piece."""
    pieces = [np.arange(size)]
    already = local[()][0]
    for segments, axes in gains:
        ways = mesh.ways(axes)
        if not segments:
            pieces = [part for piece in pieces for part in np.split(piece, ways)]
            already *= ways
            continue
        lengths = local.get(segments) or list(segments)
        lengths = lengths[: len(segments) // already]
        ends = np.cumsum(lengths)[:-1]
        pieces = [
            np.concatenate([np.split(part, ways)[number] for part in np.split(piece, ends)])
            for piece in pieces
            for number in range(ways)
        ]
    return [int(place) for piece in pieces for place in piece]


def spread(graph: Graph, value: str, cut: Cut) -> str:
    """`[large]` -> `[pieces, *small]`: all pieces, in the order of the mesh's axes."""
    mesh = graph.mesh
    shape: list[int] = []
    places: dict[int, int] = {}
    rest = []
    by_dim = {entry.dim: entry for entry in cut.dims}
    for dim, size in enumerate(cut.large):
        entry = by_dim.get(dim)
        if entry is not None:
            if entry.order:
                value = graph.take(value, entry.order, dim)
            for axis in entry.axes:
                places[axis] = len(shape)
                shape.append(mesh.shape[axis])
        rest.append(len(shape))
        shape.append(size if entry is None else cut.small[dim])
    opened = graph.reshape(value, shape)
    turned = graph.transpose(opened, [*(places[axis] for axis in cut.axes), *rest])
    return graph.reshape(turned, [mesh.ways(cut.axes), *cut.small])


def join(graph: Graph, value: str, cut: Cut, to: str = "") -> str:
    """`[pieces, *small]` -> `[large]`, what `spread` undoes."""
    mesh = graph.mesh
    lead = list(cut.axes)
    opened = graph.reshape(value, [*(mesh.shape[axis] for axis in lead), *cut.small])
    by_dim = {entry.dim: entry for entry in cut.dims}
    perm: list[int] = []
    for dim in range(len(cut.large)):
        if dim in by_dim:
            perm += [lead.index(axis) for axis in by_dim[dim].axes]
        perm.append(len(lead) + dim)
    turned = graph.transpose(opened, perm)
    ordered = [entry for entry in cut.dims if entry.order]
    made = graph.reshape(turned, cut.large, to="" if ordered else to)
    for place, entry in enumerate(ordered):
        back = np.argsort(entry.order)
        last = to if place == len(ordered) - 1 else ""
        made = graph.op("Gather", made, graph.constant(back), axis=entry.dim, to=last)
    return made


def pick(graph: Graph, value: str, cut: Cut, to: str = "") -> str:
    """`[large]` -> `[small]`: this device's own piece."""
    shape = list(cut.large)
    for place, entry in enumerate(cut.dims):
        last = to if place == len(cut.dims) - 1 else ""
        ways, number = graph.mesh.ways(entry.axes), graph.number(entry.axes)
        if entry.order:
            table = np.array(entry.order).reshape(ways, -1)
            mine = graph.op("Gather", graph.constant(table), number, axis=0)
            value = graph.op("Gather", value, mine, axis=entry.dim, to=last)
        else:
            opened = graph.reshape(value, [*shape[: entry.dim], ways, cut.small[entry.dim], *shape[entry.dim + 1 :]])
            value = graph.op("Gather", opened, number, axis=entry.dim, to=last)
        shape[entry.dim] = cut.small[entry.dim]
    return value
