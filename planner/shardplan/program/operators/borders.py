"""Convolution and pooling over a space that is split: devices exchange the borders that their windows reach into."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from shardplan.model.attributes import integers
from shardplan.program.machine.talk import Ask, Coordinates, Operands, Running
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.types import Array, Local, Site

_Extending = Generator[Ask, Array | None, tuple[Array, tuple[bool, bool]]]


def borders(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """Every device gets the rows around its shard, one space dim after the other (so corners come along); only the
    devices at the ends pad."""
    data = operands[0]
    assert data is not None
    space = data.ndim - 2
    strides, reach = windows_of(site, space)
    pads = pads_of(site, strides, reach)
    for place in range(space):
        axes = space_axes(site, place + 2)
        if not axes:
            continue
        number, last = site.mesh.number(axes, coordinates), site.mesh.ways(axes) - 1
        before, after = pads[place], reach[place] - strides[place] - pads[place]
        data, got = yield from _extend(data, place + 2, axes, before, after)
        pads[place] = 0 if got[0] else before
        pads[place + space] = 0 if got[1] or after <= 0 else after
        assert got == (before > 0 and number > 0, after > 0 and number < last)
    if site.kind == "MaxPool":
        data, pads = _padded(data, pads), [0] * len(pads)
    attributes = {**local.attributes, "pads": tuple(pads)}
    attributes.pop("auto_pad", None)
    return evaluate(site.operator, attributes, [data, *operands[1:]])


def _extend(data: Array, dim: int, axes: tuple[int, ...], before: int, after: int) -> _Extending:
    """`data` with `before` rows of the device before and `after` rows of the one behind; a negative `after` cuts rows
    off.

    Also whether there was a device before, and one behind.
    """
    size = data.shape[dim]
    pieces = [data]
    got = [False, False]
    if before > 0:
        rows = yield Ask("shift", data.take(range(size - before, size), axis=dim), axes, offset=1)
        if rows is not None:
            pieces.insert(0, rows)
            got[0] = True
    if after > 0:
        rows = yield Ask("shift", data.take(range(after), axis=dim), axes, offset=-1)
        if rows is not None:
            pieces.append(rows)
            got[1] = True
    joined = np.concatenate(pieces, axis=dim)
    if after < 0:
        joined = joined.take(range(joined.shape[dim] + after), axis=dim)
    return joined, (got[0], got[1])


def _padded(data: Array, pads: list[int]) -> Array:
    """`data` among lowest values, which never are a maximum: the evaluator mixes up paddings that are not symmetric."""
    space = data.ndim - 2
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    around = [(0, 0), (0, 0), *zip(pads[:space], pads[space:], strict=True)]
    return np.pad(data, around, constant_values=lowest)


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
