"""Operators that look up by position, where the dim that positions count is split: indices become local ones.

The nodes do what `shardplan.program.operators.kernels` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardplan.export.onnx.kernel import Writer, axis_of, cast, number_as, operator_node
from shardplan.layout.placement import S
from shardplan.program.steps import Graph
from shardplan.program.types import Local, Site


def gather(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Gather` from a part of the table: what lies elsewhere is zero here, so the sum over devices is the result."""
    dim = axis_of(site, len(site.operand(0)))
    place, inside = _local_index(graph, site, reads[1], dim)
    index = site.local_operand(1)
    behind = len(site.operand(0)) - dim - 1
    mask = graph.reshape(inside, [*[1] * dim, *index, *[1] * behind])
    _masked(graph, site, local, [reads[0], place], mask, makes[0])


def gather_elements(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`GatherElements` from a part of the table, as `gather`."""
    place, inside = _local_index(graph, site, reads[1], axis_of(site, len(site.operand(0))))
    _masked(graph, site, local, [reads[0], place], inside, makes[0])


def _masked(graph: Graph, site: Site, local: Local, reads: Sequence[str], mask: str, to: str) -> None:
    found = graph.name(f"{to}/found")
    operator_node(graph, site, local.attributes, reads, [found])
    graph.op("Where", mask, found, graph.constant(0, graph.dtype(to)), to=to)


def index_axes(site: Site, place: int) -> tuple[int, ...]:
    """Mesh axes that cut dim `place` of the table."""
    return tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.operands[0] == S(place))


def _local_index(graph: Graph, site: Site, index: str, dim: int) -> tuple[str, str]:
    """Indices into what the device holds of the table's dim (0 for others), and which of them it holds."""
    dtype = graph.dtype(index)
    length, size = site.local_operand(0)[dim], site.operand(0)[dim]
    zero = graph.constant(0, dtype)
    negative = graph.op("Less", index, zero)
    whole = graph.op("Where", negative, graph.op("Add", index, graph.constant(size, dtype)), index)
    here = graph.op("Sub", whole, first_of_part(graph, index_axes(site, dim), length, dtype))
    inside = within(graph, here, length, dtype)
    return graph.op("Where", inside, here, zero), inside


def first_of_part(graph: Graph, axes: tuple[int, ...], length: int, dtype: str) -> str:
    """Where the device's part of a dim begins, when all parts are `length` long."""
    return graph.op("Mul", number_as(graph, axes, dtype), graph.constant(length, dtype))


def within(graph: Graph, place: str, length: int, dtype: str) -> str:
    """Whether 0 <= place < length."""
    above = graph.op("Not", graph.op("Less", place, graph.constant(0, dtype)))
    return graph.op("And", above, graph.op("Less", place, graph.constant(length, dtype)))


def triangle(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Trilu` of a part of the matrix: its rows and columns begin at an offset."""
    held = site.local_operand(0)
    rank = len(held)
    rows, columns = (
        graph.op(
            "Add", graph.constant(np.arange(held[dim])), first_of_part(graph, index_axes(site, dim), held[dim], "int64")
        )
        for dim in (rank - 2, rank - 1)
    )
    distance = graph.op("Sub", columns, graph.reshape(rows, [held[-2], 1]))
    shift = reads[1] if len(reads) > 1 and reads[1] else graph.constant(0)
    beyond = "Less" if local.attributes.get("upper", 1) else "Greater"
    dropped = graph.op(beyond, distance, shift)
    graph.op("Where", dropped, graph.constant(0, graph.dtype(makes[0])), reads[0], to=makes[0])


def one_hot(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`OneHot` of the classes that the device holds."""
    del local
    made = site.local_result()
    dim = axis_of(site, len(made), default=-1)
    axes = tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.results[0].dim == dim)
    shape = [1] * len(made)
    shape[dim] = made[dim]
    classes = graph.constant(np.arange(made[dim]).reshape(shape))
    classes = graph.op("Add", classes, first_of_part(graph, axes, made[dim], "int64"))
    index = reads[0] if graph.dtype(reads[0]) == "int64" else cast(graph, reads[0], "int64")
    size = graph.constant(site.result()[dim])
    whole = graph.op("Where", graph.op("Less", index, graph.constant(0)), graph.op("Add", index, size), index)
    wanted = graph.reshape(whole, [*made[:dim], 1, *made[dim + 1 :]])
    off, on = (graph.op("Gather", reads[2], graph.constant(place), axis=0) for place in (0, 1))
    graph.op("Where", graph.op("Equal", wanted, classes), on, off, to=makes[0])


WRITERS: Mapping[str, Writer] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "OneHot": one_hot,
    "Trilu": triangle,
}
