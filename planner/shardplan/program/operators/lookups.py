"""Lookups by position in a sharded dim: indices become local ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardplan.program.nodes import Graph
from shardplan.program.operators.common import (
    Describe,
    axis_of,
    first_of_part,
    in_type,
    index_axes,
    operator_node,
    positions,
    within,
)
from shardplan.program.types import Local, Site


def gather(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Gather`, `GatherBlockQuantized` from a part of the table: what lies elsewhere is zero here, so the sum over
    devices is the result."""
    dim = axis_of(site, len(site.operand(0)))
    place, inside = _local_index(graph, site, reads[1], dim)
    behind = len(site.operand(0)) - dim - 1
    mask = graph.reshape(inside, [*[1] * dim, *site.local_operand(1), *[1] * behind])
    _masked(graph, site, local, [reads[0], place, *reads[2:]], mask, makes[0])


def gather_elements(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`GatherElements` from a part of the table, as `gather`."""
    place, inside = _local_index(graph, site, reads[1], axis_of(site, len(site.operand(0))))
    _masked(graph, site, local, [reads[0], place], inside, makes[0])


def _masked(graph: Graph, site: Site, local: Local, reads: Sequence[str], mask: str, to: str) -> None:
    found = graph.name(f"{to}/found")
    operator_node(graph, site, local.attributes, reads, [found])
    graph.op("Where", mask, found, graph.constant(0, graph.dtype(to)), to=to)


def _local_index(graph: Graph, site: Site, index: str, dim: int) -> tuple[str, str]:
    """Indices into what the device holds of the table's dim (0 for others), and which of them it holds."""
    dtype, length = graph.dtype(index), site.local_operand(0)[dim]
    whole = _from_the_front(graph, index, site.operand(0)[dim], dtype)
    here = graph.op("Sub", whole, first_of_part(graph, index_axes(site, dim), length, dtype))
    inside = within(graph, here, length, dtype)
    return graph.op("Where", inside, here, graph.constant(0, dtype)), inside


def _from_the_front(graph: Graph, index: str, size: int, dtype: str) -> str:
    """Indices into a dim of `size`, of which negative ones count from its end."""
    negative = graph.op("Less", index, graph.constant(0, dtype))
    return graph.op("Where", negative, graph.op("Add", index, graph.constant(size, dtype)), index)


def triangle(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Trilu` of a part of the matrix: its rows and columns begin at an offset."""
    held = site.local_operand(0)
    rows, columns = (
        positions(graph, index_axes(site, dim), held[dim], shape)
        for dim, shape in ((len(held) - 2, (-1, 1)), (len(held) - 1, (-1,)))
    )
    shift = reads[1] if len(reads) > 1 and reads[1] else graph.constant(0)
    beyond = "Less" if local.attributes.get("upper", 1) else "Greater"
    dropped = graph.op(beyond, graph.op("Sub", columns, rows), shift)
    graph.op("Where", dropped, graph.constant(0, graph.dtype(makes[0])), reads[0], to=makes[0])


def one_hot(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`OneHot` of the classes that the device holds."""
    del local
    made = site.local_result()
    dim = axis_of(site, len(made), default=-1)
    axes = tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.results[0].dim == dim)
    classes = positions(graph, axes, made[dim], [-1 if place == dim else 1 for place in range(len(made))])
    index = in_type(graph, reads[0], graph.dtype(reads[0]), "int64")
    whole = _from_the_front(graph, index, site.result()[dim], "int64")
    wanted = graph.reshape(whole, [*made[:dim], 1, *made[dim + 1 :]])
    off, on = (graph.op("Gather", reads[2], graph.constant(place), axis=0) for place in (0, 1))
    graph.op("Where", graph.op("Equal", wanted, classes), on, off, to=makes[0])


LOOKUPS: Mapping[str, Describe] = {
    **dict.fromkeys(("Gather", "com.microsoft.GatherBlockQuantized"), gather),
    "GatherElements": gather_elements,
    "OneHot": one_hot,
    "Trilu": triangle,
}
