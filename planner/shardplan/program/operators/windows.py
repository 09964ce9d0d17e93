"""Halo exchange: convolution and pooling over sharded spatial dims, with rows of the neighbours.

One space dim after the other, so corners come along. It is the same on all devices: those at the ends, whose neighbours
are not there, get rows of what the operator would pad with, so that nothing is left to pad along a dim that is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardplan.model.attributes import integers
from shardplan.program.nodes import Graph, ordered_groups
from shardplan.program.operators.common import operator_node
from shardplan.program.types import Local, Site


def windows(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Conv` and its kin, `MaxPool`, `AveragePool`, `LpPool`."""
    space = len(site.operand(0)) - 2
    strides, reach = windows_of(site, space)
    pads = pads_of(site, strides, reach)
    data, held = reads[0], list(site.local_operand(0))
    counts = site.kind == "AveragePool" and not local.attributes.get("count_include_pad", 0)
    there = graph.constant(np.ones((1, 1, *held[2:])), graph.dtype(makes[0])) if counts else ""
    halo = _Halo(graph, site, reads)
    for place in range(space):
        axes = space_axes(site, place + 2)
        if axes:
            rows = (pads[place], reach[place] - strides[place] - pads[place])
            data = halo.extended(data, place + 2, axes, rows, held[place + 2])
            if counts:
                there = halo.extended_mask(there, place + 2, axes, rows, held)
            held[place + 2] += max(rows[0], 0) + rows[1]
            pads[place] = pads[place + space] = 0
    attributes = {**local.attributes, "pads": tuple(pads)}
    attributes.pop("auto_pad", None)
    if not counts:
        operator_node(graph, site, attributes, [data, *reads[1:]], makes)
        return
    attributes["count_include_pad"] = 1
    total, share = graph.name(f"{makes[0]}/total"), graph.name(f"{makes[0]}/share")
    operator_node(graph, site, attributes, [data], [total])
    operator_node(graph, site, attributes, [there], [share])
    graph.op("Div", total, share, to=makes[0])


class _Halo:
    """Rows before and behind a device's part; at the ends of a dim, rows of `fill`."""

    def __init__(self, graph: Graph, site: Site, reads: Sequence[str]) -> None:
        self.graph, self.site = graph, site
        self.dtype = graph.dtype(reads[0])
        self.fill = self._fill(reads)

    def _fill(self, reads: Sequence[str]) -> str:
        """What padding consists of; `""` for zeros, which devices without a neighbour get anyway."""
        kind = self.site.kind
        if kind == "MaxPool":
            lowest = -np.inf if "float" in self.dtype or self.dtype == "double" else np.iinfo(self.dtype).min
            return self.graph.constant(lowest, self.dtype)
        position = {"ConvInteger": 2, "QLinearConv": 2}.get(kind, len(reads))
        return reads[position] if position < len(reads) else ""

    def extended(self, data: str, dim: int, axes: tuple[int, ...], rows: tuple[int, int], size: int) -> str:
        """`data` with `rows[0]` rows of the device before and `rows[1]` of the one behind; a negative number of rows
        behind are cut off."""
        before, behind = rows
        parts = [data]
        if before > 0:
            parts.insert(0, self._neighbours(data, range(size - before, size), dim, axes, 1))
        if behind > 0:
            parts.append(self._neighbours(data, range(behind), dim, axes, -1))
        return self._joined(parts, dim, size + max(before, 0), behind)

    def extended_mask(
        self, mask: str, dim: int, axes: tuple[int, ...], rows: tuple[int, int], held: Sequence[int]
    ) -> str:
        """What `extended` makes of ones: zeros where there is padding. Nobody has to be asked for it."""
        parts = [mask]
        for place, offset in ((0, 1), (1, -1)):
            if rows[place] > 0:
                shape = [1, 1, *held[2:]]
                shape[dim] = rows[place]
                known = self.graph.cast(self._has_neighbour(axes, offset), self.dtype)
                ones = self.graph.constant(np.ones(shape), self.dtype)
                parts.insert(0 if offset > 0 else len(parts), self.graph.op("Mul", ones, known))
        return self._joined(parts, dim, held[dim] + max(rows[0], 0), rows[1])

    def _joined(self, parts: Sequence[str], dim: int, size: int, behind: int) -> str:
        joined = self.graph.op("Concat", *parts, axis=dim) if len(parts) > 1 else parts[0]
        return self.graph.take(joined, range(size + behind), dim) if behind < 0 else joined

    def _neighbours(self, data: str, rows: range, dim: int, axes: tuple[int, ...], offset: int) -> str:
        taken = self.graph.take(data, rows, dim)
        pairs = [
            (group[number], group[number + offset])
            for group in ordered_groups(self.site.mesh, axes)
            for number in range(len(group))
            if 0 <= number + offset < len(group)
        ]
        came = self.graph.permute(taken, pairs, axes)
        if not self.fill:
            return came
        return self.graph.op("Where", self._has_neighbour(axes, offset), came, self.fill)

    def _has_neighbour(self, axes: tuple[int, ...], offset: int) -> str:
        number = self.graph.number(axes)
        if offset > 0:
            return self.graph.op("Greater", number, self.graph.constant(0))
        return self.graph.op("Less", number, self.graph.constant(self.site.mesh.ways(axes) - 1))


def space_axes(site: Site, dim: int) -> tuple[int, ...]:
    """Mesh axes that split a space dim of the data."""
    return tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.operands[0].dim == dim)


def windows_of(site: Site, space: int) -> tuple[list[int], list[int]]:
    """Strides, and how many elements a window spans, per space dim."""
    attributes = site.operator.attributes
    strides = [*integers(attributes, "strides")] or [1] * space
    dilations = [*integers(attributes, "dilations")] or [1] * space
    weight = 3 if site.kind == "QLinearConv" else 1
    kernel = [*integers(attributes, "kernel_shape")] or list(site.operand(weight)[2:])
    return strides, [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]


def pads_of(site: Site, strides: list[int], reach: list[int]) -> list[int]:
    """Padding before each space dim, then behind each, worked out where the operator leaves it to us."""
    space = len(strides)
    attributes = site.operator.attributes
    how = attributes.get("auto_pad", "NOTSET")
    if how in {"NOTSET", ""}:
        return [*integers(attributes, "pads")] or [0] * 2 * space
    if how == "VALID":
        return [0] * 2 * space
    totals = []
    for size, stride, span in zip(site.operand(0)[2:], strides, reach, strict=True):
        totals.append(max(0, (math.ceil(size / stride) - 1) * stride + span - size))
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if how == "SAME_UPPER" else [*large, *small]
