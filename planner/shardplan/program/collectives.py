"""Collectives in numpy, on all devices of a mesh in one process.

A *mesh value* is the list of local arrays in rank order. Every collective reads only what devices of the same group
hold, as on a real cluster: what a group does not have, its members cannot get, so a wrong group is an error here. `run`
carries out what a plan lists, by the elements that layouts give each device; `run_node` a node of a graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import tile
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R

Array = NDArray[Any]
Indices = NDArray[np.int64]
Combine = Callable[[Array, Array], Array]
COMBINE: dict[str, Combine] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def part(array: Array, layout: Layout, mesh: Mesh, coordinates: Sequence[int]) -> Array:
    """The part of `array` on the device at `coordinates` in a plain layout; all of it along partial axes."""
    for dim, pieces in enumerate(tile(layout, mesh, array.shape, tuple(coordinates))):
        if pieces != ((0, array.shape[dim]),):
            chosen = np.concatenate([np.arange(start, stop) for start, stop in pieces])
            array = array.take(chosen, axis=dim)
    return array


def unshard(locals_: Sequence[Array], layout: Layout, mesh: Mesh, rtol: float = 0.0, atol: float = 0.0) -> Array:
    """The whole array of a mesh value in the forward half of `layout`.

    `ValueError` if devices that should hold copies differ by more than the tolerances, or a local shape is wrong.
    """
    plain = layout.forward
    shape = global_shape(locals_[0].shape, plain, mesh)
    axes = _partial_axes(plain)
    parts: dict[int, Array] = {}
    filled: dict[int, NDArray[np.bool_]] = {}
    for rank, (place, held) in enumerate(zip(mesh.coordinates(), _indices(plain, mesh, shape), strict=True)):
        local = locals_[rank]
        if local.shape != held.shape:
            raise ValueError(f"device {rank} holds shape {local.shape}, its layout says {held.shape}")
        number = mesh.number(axes, place)
        part = parts.setdefault(number, np.zeros(shape, local.dtype)).reshape(-1)
        seen = filled.setdefault(number, np.zeros(shape, np.bool_)).reshape(-1)
        same = (part[held] == local) | ~seen[held]
        if not np.all(same) and not np.all(same | np.isclose(part[held], local, rtol=rtol, atol=atol, equal_nan=True)):
            raise ValueError(f"device {rank} holds other values than the devices it should be a copy of")
        part[held] = local
        seen[held] = True
    return functools.reduce(COMBINE[_reduction(plain)], (parts[number] for number in sorted(parts)))


def global_shape(local: Sequence[int], layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """Shape of the whole tensor of which every device holds `local`."""
    shape = list(local)
    for (dim, _), axes in layout.dims().items():
        shape[dim] *= mesh.ways(axes)
    return tuple(shape)


def run(
    locals_: Sequence[Array],
    source: Layout,
    collective: Collective,
    target: Layout,
    mesh: Mesh,
    *,
    received: list[int] | None = None,
) -> list[Array]:
    """The mesh value after one collective that leads from plain layout `source` to plain layout `target`.

    `received`: bytes that each device has got from others, added up here (an all-reduce as reduce-scatter and
    all-gather). `ValueError` if some device would need what no device of its group holds.
    """
    shape = global_shape(locals_[0].shape, source, mesh)
    exchange = _Exchange(locals_, mesh, collective.axes, _indices(source, mesh, shape), _indices(target, mesh, shape))
    match collective.kind:
        case "slice":
            return [exchange.gather([rank], rank) for rank in range(mesh.size)]
        case "mask":
            return _mask(exchange, source)
        case "all_gather" | "all_to_all":
            result = exchange.in_groups(exchange.gather)
            moved = [exchange.foreign_bytes(rank) for rank in range(mesh.size)] if received is not None else []
        case "reduce_scatter" | "all_reduce":
            combine = COMBINE[_reduction(source)]
            result = exchange.in_groups(lambda members, rank: exchange.reduce(members, rank, combine))
            rounds = 2 if collective.kind == "all_reduce" else 1
            ways = mesh.ways(collective.axes)
            moved = [rounds * local.nbytes * (ways - 1) // ways for local in locals_]
        case "permute":
            senders = _senders(exchange, source, target)
            result = [locals_[sender].copy() for sender in senders]
            moved = [local.nbytes * (senders[rank] != rank) for rank, local in enumerate(result)]
    if received is not None:
        received[:] = [before + more for before, more in zip(received, moved, strict=True)]
    return result


def run_node(kind: str, arrays: Sequence[Array], settings: Mapping[str, Any]) -> list[Array]:
    """The result of every rank of one collective node; `arrays`: the operand of each rank.

    `settings`: the node's attributes, as docs/export.md describes them.
    """
    if kind == "Permute":
        senders = {target: source for source, target in _pairs(settings)}
        return [
            arrays[senders[rank]] if rank in senders else np.zeros_like(arrays[rank]) for rank in range(len(arrays))
        ]
    results = list(arrays)
    for group in np.array(settings["groups"]).reshape(-1, settings["group_size"]).tolist():
        made = _NODES[kind]([arrays[rank] for rank in group], settings)
        for rank, array in zip(group, made, strict=True):
            results[rank] = array
    return results


def node_bytes(kind: str, arrays: Sequence[Array], settings: Mapping[str, Any]) -> tuple[str, int]:
    """Bytes that all devices receive in a collective, and the kind under which they are counted (an all-reduce is a
    reduce-scatter and an all-gather)."""
    if kind == "Permute":
        return "permute", sum(arrays[source].nbytes for source, target in _pairs(settings) if source != target)
    foreign = sum(array.nbytes for array in arrays) * (settings["group_size"] - 1)
    name, rounds = _COUNTED[kind]
    return name, foreign if kind == "AllGather" else rounds * foreign // settings["group_size"]


def _pairs(settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    flat = settings["source_target_pairs"]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _combined(arrays: Sequence[Array], settings: Mapping[str, Any]) -> Array:
    return functools.reduce(COMBINE[settings["reduction"]], arrays)


def _exchanged(arrays: Sequence[Array], settings: Mapping[str, Any]) -> list[Array]:
    pieces = [np.split(array, len(arrays), axis=settings["split_dim"]) for array in arrays]
    return [np.concatenate(came, axis=settings["concat_dim"]) for came in zip(*pieces, strict=True)]


_NODES: Mapping[str, Callable[[Sequence[Array], Mapping[str, Any]], list[Array]]] = {
    "AllReduce": lambda arrays, settings: [_combined(arrays, settings)] * len(arrays),
    "AllGather": lambda arrays, settings: [np.concatenate(arrays, axis=settings["dim"])] * len(arrays),
    "ReduceScatter": lambda arrays, settings: np.split(_combined(arrays, settings), len(arrays), axis=settings["dim"]),
    "AllToAll": _exchanged,
}
"""For each collective, the results of a group's members from their operands, in the order of the group."""
NODE_KINDS = (*_NODES, "Permute")
_COUNTED = {
    "AllReduce": ("all_reduce", 2),
    "AllGather": ("all_gather", 1),
    "ReduceScatter": ("reduce_scatter", 1),
    "AllToAll": ("all_to_all", 1),
}


_MOST_REMEMBERED = 1 << 15
"""Elements, on all devices together, up to which the numbers of a layout's elements are kept: 256 KiB each."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One collective under way: which elements (by number in the whole tensor) each rank has and wants."""

    locals: Sequence[Array]
    mesh: Mesh
    axes: tuple[int, ...]
    held: Sequence[Indices]
    wanted: Sequence[Indices]

    def in_groups(self, act: Callable[[Sequence[int], int], Array]) -> list[Array]:
        """`act(members of its group, rank)` for every rank."""
        result = {rank: act(members, rank) for members in self.mesh.groups(self.axes) for rank in members}
        return [result[rank] for rank in range(self.mesh.size)]

    def gather(self, members: Sequence[int], rank: int) -> Array:
        """The part that `rank` wants, from those of `members`."""
        if len(members) == 1 and np.array_equal(self.held[members[0]], self.wanted[rank]):
            return self.locals[members[0]].copy()
        pool = np.concatenate([self.locals[member].reshape(-1) for member in members])
        known = np.concatenate([self.held[member].reshape(-1) for member in members])
        order = np.argsort(known, kind="stable")
        wanted = self.wanted[rank]
        places = np.searchsorted(known, wanted, sorter=order)
        found = order[np.minimum(places, known.size - 1)]
        if not np.array_equal(known[found], wanted):
            raise ValueError(f"device {rank} wants elements that no device of its group {tuple(members)} holds")
        return pool[found]

    def reduce(self, members: Sequence[int], rank: int, combine: Combine) -> Array:
        """The part that `rank` wants of the members' combined values; every member must hold all of it."""
        return functools.reduce(combine, (self.gather([member], rank) for member in members))

    def foreign_bytes(self, rank: int) -> int:
        """Bytes that `rank` wants and does not have."""
        held, wanted = self.held[rank], self.wanted[rank]
        here = np.zeros(1 + max(held.max(initial=0), wanted.max(initial=0)), np.bool_)
        here[held] = True
        return int(wanted.size - np.count_nonzero(here[wanted])) * self.locals[rank].itemsize


def _mask(exchange: _Exchange, source: Layout) -> list[Array]:
    """Each device puts its part among zeros; of several with the same part, the first along their axes does."""
    copies = [axis for axis in exchange.axes if source.placements[axis] == R]
    result = []
    for rank, place in enumerate(exchange.mesh.coordinates()):
        local = np.zeros(exchange.wanted[rank].shape, exchange.locals[rank].dtype)
        if not any(place[axis] for axis in copies):
            mine = np.isin(exchange.wanted[rank], exchange.held[rank], assume_unique=True)
            local[mine] = exchange.locals[rank].reshape(-1)
        result.append(local)
    return result


def _senders(exchange: _Exchange, source: Layout, target: Layout) -> list[int]:
    """For every rank, the one device of its group whose whole local tensor it gets; each device sends once."""
    places = tuple(exchange.mesh.coordinates())
    result = list(range(exchange.mesh.size))
    before = [axis for axis in _partial_axes(source) if axis in exchange.axes]
    after = [axis for axis in _partial_axes(target) if axis in exchange.axes]
    for members in exchange.mesh.groups(exchange.axes):
        offers: dict[tuple[bytes, int], list[int]] = {}
        for rank in members:
            key = (exchange.held[rank].tobytes(), exchange.mesh.number(before, places[rank]))
            offers.setdefault(key, []).append(rank)
        for rank in members:
            key = (exchange.wanted[rank].tobytes(), exchange.mesh.number(after, places[rank]))
            if not offers.get(key):
                raise ValueError(f"device {rank} wants a tensor that no device of its group {members} can send")
            result[rank] = offers[key].pop(0)
    return result


def _indices(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[Indices, ...]:
    """For every rank, the numbers of its elements in the flattened whole tensor, in its local shape."""
    small = math.prod(shape) * mesh.size <= _MOST_REMEMBERED
    return _remembered(layout, mesh, shape) if small else _numbered(layout, mesh, shape)


@functools.lru_cache(maxsize=1024)
def _remembered(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[Indices, ...]:
    return _numbered(layout, mesh, shape)


def _numbered(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[Indices, ...]:
    whole = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    result = []
    for place in mesh.coordinates():
        pieces = tile(layout, mesh, shape, place)
        kept = [np.concatenate([np.arange(start, stop) for start, stop in dim]) for dim in pieces]
        result.append(whole[np.ix_(*kept)] if kept else whole)
    return tuple(result)


def _partial_axes(layout: Layout) -> tuple[int, ...]:
    return tuple(axis for axis, placement in enumerate(layout.placements) if placement.kind == "P")


def _reduction(layout: Layout) -> str:
    """How the layout's partial values combine; `sum` where there are none."""
    return next((placement.reduction for placement in layout.placements if placement.kind == "P"), "sum")
