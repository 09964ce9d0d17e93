"""The collectives of a move as nodes: local rearrangements around one collective of equal pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape, tile
from shardplan.layout.lower import Step
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import Placement, R, S
from shardplan.model.types import Tensor
from shardplan.program import collectives
from shardplan.program.cuts import Cut, cut_between, join, pick, spread
from shardplan.program.nodes import Array, Graph


def emit_steps(graph: Graph, value: str, tensor: Tensor, source: Layout, steps: Sequence[Step], to: str) -> None:
    """Write all `steps` that lead from plain layout `source`; the value after the last is called `to`."""
    layout = source
    for place, step in enumerate(steps):
        made = to if place == len(steps) - 1 else graph.name(f"{to}/step{place + 1}")
        _Emission(graph, tensor, layout, step.target, step.collective).write(value, made)
        graph.describe(made, tensor.dtype, local_shape(step.target, graph.mesh, tensor.shape))
        value, layout = made, step.target


class _Emission:
    """One collective that leads from `source` to `target`."""

    def __init__(self, graph: Graph, tensor: Tensor, source: Layout, target: Layout, collective: Collective) -> None:
        self.graph, self.mesh, self.tensor = graph, graph.mesh, tensor
        self.source, self.target, self.axes = source, target, collective.axes
        self.kind = collective.kind

    def write(self, value: str, to: str) -> None:
        """Append the nodes; the result is called `to`."""
        getattr(self, f"_{self.kind}")(value, to)

    def _cut(self, whole: Layout, cut: Layout) -> Cut:
        return cut_between(self.mesh, self.tensor.shape, whole, cut)

    @property
    def _reduction(self) -> str:
        return next((p.reduction for p in self.source.placements if p.kind == "P"), "sum")

    def _slice(self, value: str, to: str) -> None:
        pick(self.graph, value, self._cut(self.source, self.target), to)

    def _all_reduce(self, value: str, to: str) -> None:
        self.graph.collective("AllReduce", value, self.axes, to, reduction=self._reduction)

    def _reduce_scatter(self, value: str, to: str) -> None:
        cut = self._cut(self.source, self.target)
        how = {"reduction": self._reduction}
        if cut.plain:
            self.graph.collective("ReduceScatter", value, cut.plain.axes, to, dim=cut.plain.dim, **how)
            return
        opened = spread(self.graph, value, cut)
        mine = self.graph.collective("ReduceScatter", opened, cut.axes, dim=0, **how)
        self.graph.reshape(mine, cut.small, to)

    def _all_gather(self, value: str, to: str) -> None:
        cut = self._cut(self.target, self.source)
        if cut.plain:
            self.graph.collective("AllGather", value, cut.plain.axes, to, dim=cut.plain.dim)
            return
        single = self.graph.reshape(value, [1, *cut.small])
        join(self.graph, self.graph.collective("AllGather", single, cut.axes, dim=0), cut, to)

    def _all_to_all(self, value: str, to: str) -> None:
        before, after = {p.dim for p in self._changing(self.source)}, {p.dim for p in self._changing(self.target)}
        if before & after:
            self._resegment(value, to)
            return
        gained, lost = self._exchanged()
        if gained.plain and lost.plain and gained.plain.axes == lost.plain.axes:
            dims = {"split_dim": gained.plain.dim, "concat_dim": lost.plain.dim}
            self.graph.collective("AllToAll", value, gained.plain.axes, to, **dims)
            return
        opened = spread(self.graph, value, gained)
        met = self.graph.collective("AllToAll", opened, gained.axes, split_dim=0, concat_dim=0)
        join(self.graph, met, lost, to)

    def _changing(self, layout: Layout) -> list[Placement]:
        return [layout.placements[axis] for axis in self.axes]

    def _exchanged(self) -> tuple[Cut, Cut]:
        """What is cut off before the exchange, and what is joined after it."""
        gained = self._cut(self.source, self.target)
        return gained, Cut(self._local(self.target), gained.small, self._cut(self.target, self.source).dims)

    def _local(self, layout: Layout) -> tuple[int, ...]:
        return local_shape(layout, self.mesh, self.tensor.shape)

    def _resegment(self, value: str, to: str) -> None:
        """An all-to-all in which one dim changes between plain and segmented shards: pieces differ in size from pair to
        pair, so each is filled up to the longest, and tables say for each device what it sends and what it wants.
        """
        dims = {placement.dim for layout in (self.source, self.target) for placement in self._changing(layout)}
        if len(dims) > 1:
            self._by_gathering(value, to)
            return
        (dim,) = dims
        send, receive = _exchange_tables(self.mesh, self.tensor.shape[dim], dim, self.source, self.target, self.axes)
        number = self.graph.number(tuple(range(len(self.mesh))))
        ready = self._by_table(value, send, number, dim)
        met = self.graph.collective("AllToAll", ready, self.axes, split_dim=dim, concat_dim=dim)
        self._by_table(met, receive, number, dim, to)

    def _by_table(self, value: str, table: Array, number: str, dim: int, to: str = "") -> str:
        mine = self.graph.op("Gather", self.graph.constant(table), number, axis=0)
        return self.graph.op("Gather", value, mine, axis=dim, to=to)

    def _by_gathering(self, value: str, to: str) -> None:
        """Several dims, one of them between plain and segmented: gather what is lost, then keep what is gained."""
        between = _without(self.source, self.axes)
        gathered = self.graph.name(f"{to}/gathered")
        _Emission(self.graph, self.tensor, self.source, between, Collective("all_gather", self.axes, _NOTHING)).write(
            value, gathered
        )
        pick(self.graph, gathered, self._cut(between, self.target), to)

    def _permute(self, value: str, to: str) -> None:
        pairs = permutation(self.mesh, self.tensor.shape, self.source, self.target, self.axes)
        self.graph.permute(value, pairs, self.axes, to)

    def _mask(self, value: str, to: str) -> None:
        """What this device holds, at its place among zeros; of several that hold the same, the first gives it."""
        graph = self.graph
        copies = [axis for axis in self.axes if self.source.placements[axis] == R]
        cut = self._cut(_without(self.source, self.axes), self.source)
        zero = graph.constant(0, self.tensor.dtype)
        here = ""
        if copies:
            here = graph.op("Equal", graph.number(copies), graph.constant(0))
        if not cut.dims:
            graph.op("Where", here, value, zero, to=to)
            return
        count = self.mesh.ways(cut.axes)
        places = graph.constant(np.arange(count).reshape(count, *[1] * len(cut.small)))
        mine = graph.op("Equal", places, graph.number(cut.axes))
        mine = graph.op("And", mine, here) if here else mine
        join(graph, graph.op("Where", mine, value, zero), cut, to)


_NOTHING = Fraction(0)


def _without(layout: Layout, axes: Sequence[int]) -> Layout:
    """`layout` with its shards along `axes` undone; they are the last of their lists."""
    kept = tuple(R if axis in axes and p.is_shard else p for axis, p in enumerate(layout.placements))
    return Layout.of(*kept, order=layout.order)


def permutation(
    mesh: Mesh, shape: Sequence[int], source: Layout, target: Layout, axes: tuple[int, ...]
) -> list[tuple[int, int]]:
    """(source rank, target rank) of every device for a permute from one layout to another.

    Found on the smallest tensor that the layouts cut into as many tiles: sizes do not matter.
    """
    small_shape, small_source, small_target = _smallest(mesh, shape, source, target)
    local = local_shape(small_source, mesh, small_shape)
    held = [np.full(local, rank) for rank in range(mesh.size)]
    collective = Collective("permute", axes, _NOTHING)
    got = collectives.run(held, small_source, collective, small_target, mesh)
    return [(int(array.reshape(-1)[0]), rank) for rank, array in enumerate(got)]


def _smallest(
    mesh: Mesh, shape: Sequence[int], source: Layout, target: Layout
) -> tuple[tuple[int, ...], Layout, Layout]:
    """The smallest shape that both layouts, with segments shortened to match, cut as they cut `shape`."""
    ways = [1] * len(shape)
    for layout in (source, target):
        for dim in range(len(shape)):
            axes = [axis for axis, p in enumerate(layout.placements) if p.is_shard and p.dim == dim]
            ways[dim] = math.lcm(ways[dim], mesh.ways(axes))
    small = list(ways)
    for placement in (*source.placements, *target.placements):
        if placement.segments:
            small[placement.dim] = ways[placement.dim] * len(placement.segments)

    def shortened(layout: Layout) -> Layout:
        made = [S(p.dim, (ways[p.dim],) * len(p.segments)) if p.segments else p for p in layout.placements]
        return Layout.of(*made, order=layout.order)

    return tuple(small), shortened(source), shortened(target)


def _exchange_tables(
    mesh: Mesh, size: int, dim: int, source: Layout, target: Layout, axes: Sequence[int]
) -> tuple[Array, Array]:
    """For every rank: the places of what it sends, filled up to the longest piece, and the places of what it wants."""
    groups = mesh.groups(axes)
    places = tuple(mesh.coordinates())
    held, wanted = ([_entries(mesh, size, dim, layout, place) for place in places] for layout in (source, target))
    longest = max(len(np.intersect1d(held[one], wanted[other])) for group in groups for one in group for other in group)
    members = {rank: group for group in groups for rank in group}
    send = np.zeros((mesh.size, len(groups[0]) * longest), np.int64)
    receive = np.zeros((mesh.size, len(wanted[0])), np.int64)
    for rank, group in members.items():
        for number, other in enumerate(group):
            sent = np.flatnonzero(np.isin(held[rank], wanted[other]))
            send[rank, number * longest : number * longest + len(sent)] = sent
            came = held[other][np.isin(held[other], wanted[rank])]
            at = np.flatnonzero(np.isin(wanted[rank], came))
            receive[rank, at] = number * longest + np.searchsorted(came, wanted[rank][at])
    return send, receive


def _entries(mesh: Mesh, size: int, dim: int, layout: Layout, place: tuple[int, ...]) -> Array:
    """The entries of one dim that a device holds, in its order."""
    only = Layout.of(
        *(S(0, p.segments) if p.is_shard and p.dim == dim else R for p in layout.placements), order=layout.order
    )
    (runs,) = tile(only, mesh, (size,), place)
    return np.concatenate([np.arange(start, stop) for start, stop in runs])
