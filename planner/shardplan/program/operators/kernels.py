"""Which kernel runs at an operator, and the simple ones: the plain operator, lookups in a part of a table, whole
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardplan.layout.placement import S
from shardplan.model.attributes import integer
from shardplan.program.collectives import part
from shardplan.program.localise import refuse
from shardplan.program.machine.talk import Coordinates, Kernel, Operands, Running
from shardplan.program.operators.attention import attention
from shardplan.program.operators.borders import borders
from shardplan.program.operators.composed import by_body
from shardplan.program.operators.losses import likelihood
from shardplan.program.operators.recurrent import recurrent
from shardplan.program.operators.statistics import KERNELS as STATISTICS
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.reference.experts import experts
from shardplan.program.reference.random import DRAWING, draws, results
from shardplan.program.types import Array, Local, Site
from shardplan.rules.body import has_body


def kernel_for(site: Site) -> Kernel:
    """What runs at `site`. Raises `ShardplanError` where that cannot be simulated."""
    if site.kind in DRAWING or site.kind == "Dropout":
        return part_of_draw
    if site.kind in {"Shape", "Size"}:
        return whole_shape
    if not site.communicates:
        return plain
    if site.kind in KERNELS:
        return KERNELS[site.kind]
    if has_body(site.kind, site.operator.version):
        return by_body(kernel_for)
    raise refuse(site, "this split needs communication inside the operator, which is not simulated for this kind")


def plain(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """The operator on what the device holds; of a mean every device has its share."""
    del coordinates
    results = evaluate(site.operator, local.attributes, operands)
    if local.shares > 1:
        results = [
            made / local.shares if layout and any(p.kind == "P" for p in layout.placements) else made
            for made, layout in zip(results, site.result_layouts, strict=True)
        ]
    return results
    yield  # a generator that asks nothing


def part_of_draw(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """Random operators: the part of what is drawn for the whole result that belongs to what the device holds."""
    layout = site.result_layouts[0]
    assert layout is not None
    if not draws(site.operator, operands):
        return evaluate(site.operator, local.attributes, operands)
    return results(site.operator, operands, site.result(), lambda whole: part(whole, layout, site.mesh, coordinates))
    yield


def whole_shape(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Shape`, `Size`: of the whole tensor, which every device knows."""
    del operands, coordinates
    return evaluate(site.operator, local.attributes, [np.zeros(site.operand(0), np.bool_)])
    yield


def some_experts(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`MoE`, `QMoE`: what the experts that the device holds add to the result."""
    held = operands[2]
    assert held is not None
    first = site.mesh.number(site.axes("e"), coordinates) * len(held)
    return experts(site.operator, local.attributes, operands, first)
    yield


def _index_axes(site: Site, place: int) -> tuple[int, ...]:
    """Mesh axes that cut dim `place` of the table of a lookup by index."""
    return tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.operands[0] == S(place))


def gather(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Gather` from a part of the table: what lies elsewhere is zero here, so the sum over devices is the result."""
    table, index = _both(operands)
    dim = _axis(site, len(site.operand(0)))
    index, inside = _local_index(site, index, dim, table.shape[dim], coordinates)
    found = evaluate(site.operator, local.attributes, [table, index])[0]
    shape = (*[1] * dim, *inside.shape, *[1] * (found.ndim - inside.ndim - dim))
    return [np.where(inside.reshape(shape), found, np.zeros((), found.dtype))]
    yield


def gather_elements(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`GatherElements` from a part of the table, as `gather`."""
    table, index = _both(operands)
    dim = _axis(site, len(site.operand(0)))
    index, inside = _local_index(site, index, dim, table.shape[dim], coordinates)
    found = evaluate(site.operator, local.attributes, [table, index])[0]
    return [np.where(inside, found, np.zeros((), found.dtype))]
    yield


def _both(operands: Operands) -> tuple[Array, Array]:
    first, second = operands[:2]
    assert first is not None
    assert second is not None
    return first, second


def _local_index(site: Site, index: Array, dim: int, length: int, coordinates: Coordinates) -> tuple[Array, Array]:
    """Indices into what the device holds of the table's dim, and which of them it holds at all."""
    size = site.operand(0)[dim]
    first = site.mesh.number(_index_axes(site, dim), coordinates) * length
    here = np.where(index < 0, index + size, index) - first
    inside = (here >= 0) & (here < length)
    return np.where(inside, here, 0), inside


def triangle(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Trilu` of a part of the matrix: its rows and columns begin at an offset."""
    data, shift = operands[0], operands[1] if len(operands) > 1 else None
    assert data is not None
    diagonal = 0 if shift is None else int(shift)
    rows, columns = (
        np.arange(data.shape[dim]) + site.mesh.number(_index_axes(site, dim), coordinates) * data.shape[dim]
        for dim in (data.ndim - 2, data.ndim - 1)
    )
    distance = columns[None, :] - rows[:, None]
    kept = distance >= diagonal if local.attributes.get("upper", 1) else distance <= diagonal
    return [np.where(kept, data, np.zeros((), data.dtype))]
    yield


def one_hot(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`OneHot` of the classes that the device holds."""
    del local
    index, _ = _both(operands)
    levels = operands[2]
    assert levels is not None
    rank = len(site.result())
    dim = _axis(site, rank, default=-1)
    length, size = site.local_result()[dim], site.result()[dim]
    axes = tuple(axis for axis in site.communicates if (o := site.options[axis]) and o.results[0].dim == dim)
    shape = [1] * rank
    shape[dim] = length
    classes = (np.arange(length) + site.mesh.number(axes, coordinates) * length).reshape(shape)
    wanted = np.expand_dims(np.where(index < 0, index + size, index), dim)
    return [np.where(wanted == classes, levels[1], levels[0]).astype(levels.dtype)]
    yield


def _axis(site: Site, rank: int, default: int = 0) -> int:
    axis = integer(site.operator.attributes, "axis", default)
    return axis % rank


KERNELS: Mapping[str, Kernel] = {
    **STATISTICS,
    "Attention": attention,
    **dict.fromkeys(("com.microsoft.MoE", "com.microsoft.QMoE"), some_experts),
    "Gather": gather,
    "GatherElements": gather_elements,
    "OneHot": one_hot,
    "Trilu": triangle,
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), likelihood),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"), borders),
    **dict.fromkeys(("LSTM", "RNN", "GRU"), recurrent),
}
