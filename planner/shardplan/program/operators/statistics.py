"""Kernels of operators that need numbers from all devices of a group: normalisations and merged reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from shardplan.model.attributes import integer, integers, number
from shardplan.program.localise import refuse
from shardplan.program.machine.talk import Asking, Coordinates, Kernel, Operands, Running, all_reduce
from shardplan.program.reference.evaluate import evaluate
from shardplan.program.types import Array, Local, Site

FAR = np.iinfo(np.int64).max


def softmax(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Softmax`, `LogSoftmax`: the maximum and the sum of exponentials of a row come from all its devices."""
    del local, coordinates
    data = _first(operands)
    axes = _row_dims(site)
    top = yield from all_reduce(data.max(axis=axes, keepdims=True), site.communicates, "max")
    shifted = data - np.where(np.isfinite(top), top, 0)
    total = yield from all_reduce(np.exp(shifted).sum(axis=axes, keepdims=True), site.communicates)
    return [shifted - np.log(total) if site.kind == "LogSoftmax" else np.exp(shifted) / total]


def _row_dims(site: Site) -> tuple[int, ...]:
    """The dims of a softmax's row: one, before opset 13 the axis and all after it."""
    rank = len(site.operand(0))
    if site.operator.version >= 13:
        return (_axis(site, -1) % rank,)
    return tuple(range(_axis(site, 1) % rank, rank))


def _axis(site: Site, default: int) -> int:
    return integer(site.operator.attributes, "axis", default)


def _first(operands: Operands) -> Array:
    data = operands[0]
    assert data is not None
    return data


def _moments(site: Site, data: Array, dims: tuple[int, ...], *, centre: bool = True) -> Asking:
    """Mean (0 if not centred) and mean square distance from it over local dims and devices, stacked."""
    ways = site.mesh.ways(site.communicates)
    mean = np.zeros_like(data.mean(axis=dims, keepdims=True))
    if centre:
        mean = (yield from all_reduce(data.mean(axis=dims, keepdims=True), site.communicates)) / ways
    square = np.square(data - mean).mean(axis=dims, keepdims=True)
    return np.stack([mean, (yield from all_reduce(square, site.communicates)) / ways])


def layer_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`LayerNormalization`, `RMSNormalization`."""
    del coordinates
    data = _first(operands)
    dims = tuple(range(_axis(site, -1) % data.ndim, data.ndim))
    centre = site.kind == "LayerNormalization"
    mean, square = yield from _moments(site, data, dims, centre=centre)
    inverse = 1 / np.sqrt(square + number(local.attributes, "epsilon", 1e-5))
    made = _affine((data - mean) * inverse, operands, ())
    return [made, mean, inverse][: len(site.operator.outputs)]


def skip_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`SkipLayerNormalization` and its kin: of the sum with the residual, which is a result as well."""
    del coordinates
    is_rms = "Simplified" in site.kind
    data, residual, scale, *rest = [*operands, None, None][:5]
    assert data is not None
    assert residual is not None
    shift, bias = (None, rest[0]) if is_rms else (rest[0], rest[1])
    total = data + residual if bias is None else data + residual + bias
    mean, square = yield from _moments(site, total, (total.ndim - 1,), centre=not is_rms)
    inverse = 1 / np.sqrt(square + number(local.attributes, "epsilon", 1e-12))
    made = _affine((total - mean) * inverse, [None, scale, shift], ())
    return [made, mean, inverse, total][: len(site.operator.outputs)]


def channel_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`InstanceNormalization`, `GroupNormalization`: statistics of one channel, or of one group of them."""
    del coordinates
    data = _first(operands)
    groups = integer(local.attributes, "num_groups", data.shape[1])
    grouped = data.reshape(data.shape[0], groups, -1)
    mean, square = yield from _moments(site, grouped, (2,))
    made = ((grouped - mean) / np.sqrt(square + number(local.attributes, "epsilon", 1e-5))).reshape(data.shape)
    per_group = operands[1] is not None and operands[1].shape[0] != data.shape[1]
    repeat = data.shape[1] // groups if per_group else 1
    scales = [None if array is None else np.repeat(array, repeat) for array in operands[1:]]
    return [_affine(made, [None, *scales], (slice(None), *[None] * (data.ndim - 2)))]


def _affine(data: Array, operands: Operands, expand: tuple[slice | None, ...]) -> Array:
    """Scaled by operand 1 and moved by operand 2, where they are there."""
    scale, bias = [*operands[1:3], None, None][:2]
    if scale is not None:
        data = data * scale[expand]
    return data if bias is None else data + bias[expand]


def batch_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`BatchNormalization` in training: statistics of the whole batch, and running averages of them."""
    del coordinates
    data = _first(operands)
    old_mean, old_square = operands[3], operands[4]
    assert old_mean is not None
    assert old_square is not None
    dims = (0, *range(2, data.ndim))
    mean, square = yield from _moments(site, data, dims)
    made = (data - mean) / np.sqrt(square + number(local.attributes, "epsilon", 1e-5))
    keep = number(local.attributes, "momentum", 0.9)
    averages = [old * keep + new.reshape(-1) * (1 - keep) for old, new in ((old_mean, mean), (old_square, square))]
    made = _affine(made, operands, (slice(None), *[None] * (data.ndim - 2)))
    return [made, *averages, mean.reshape(-1), square.reshape(-1)][: len(site.operator.outputs)]


def lp_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`LpNormalization`: each line by its norm."""
    del coordinates
    data = _first(operands)
    power = integer(local.attributes, "p", 2)
    dim = _axis(site, -1) % data.ndim
    total = yield from all_reduce((np.abs(data) ** power).sum(axis=dim, keepdims=True), site.communicates)
    norm = total ** (1 / power)
    return [np.where(norm == 0, 0, data / np.where(norm == 0, 1, norm))]


def mean_variance(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`MeanVarianceNormalization`: no scale, and 1e-9 beside the deviation."""
    del coordinates
    data = _first(operands)
    axes = integers(local.attributes, "axes", (0, 2, 3))
    mean, square = yield from _moments(site, data, tuple(int(axis) % data.ndim for axis in axes))
    return [(data - mean) / (np.sqrt(square) + 1e-9)]


def _merged(before: Callable[[Array], Array], after: Callable[[Array], Array]) -> Kernel:
    """A reduction that is a sum between two functions: `before` undoes what the operator does after its own sum."""

    def merged(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
        del coordinates
        partial = before(evaluate(site.operator, local.attributes, operands)[0])
        total = yield from all_reduce(partial, site.communicates)
        return [after(total)]

    return merged


def log_sum_exp(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`ReduceLogSumExp`: merged relative to the largest part."""
    del coordinates
    part = evaluate(site.operator, local.attributes, operands)[0]
    top = yield from all_reduce(part, site.communicates, "max")
    total = yield from all_reduce(np.exp(part - top), site.communicates)
    return [top + np.log(total)]


def global_norm(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`GlobalLpPool`: sums of powers before the root."""
    del coordinates
    power = number(local.attributes, "p", 2)
    part = evaluate(site.operator, local.attributes, operands)[0]
    return [(yield from all_reduce(part**power, site.communicates)) ** (1 / power)]


def extremum_at(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`ArgMax`, `ArgMin`: the best value of all devices, then the first (or last) device that has it."""
    data = _first(operands)
    dim = _axis(site, 0) % data.ndim
    is_max = site.kind == "ArgMax"
    index = evaluate(site.operator, {**local.attributes, "keepdims": 1}, operands)[0]
    value = np.take_along_axis(data, index, dim)
    best = yield from all_reduce(value, site.communicates, "max" if is_max else "min")
    place = index + site.mesh.number(site.communicates, coordinates) * data.shape[dim]
    last = bool(local.attributes.get("select_last_index", 0))
    place = np.where(value == best, place, -1 if last else FAR)
    found = yield from all_reduce(place, site.communicates, "max" if last else "min")
    return [found if local.attributes.get("keepdims", 1) else found.squeeze(dim)]


def hardmax(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`Hardmax`: one at the first largest element of a row, wherever that lies."""
    del local
    data = _first(operands)
    dims = _row_dims(site)
    if len(dims) > 1:
        raise refuse(site, "its row is more than one dim")
    place = data.argmax(axis=dims[0], keepdims=True)
    value = np.take_along_axis(data, place, dims[0])
    best = yield from all_reduce(value, site.communicates, "max")
    offset = site.mesh.number(site.communicates, coordinates) * data.shape[dims[0]]
    first = yield from all_reduce(np.where(value == best, place + offset, FAR), site.communicates, "min")
    shape = [1] * data.ndim
    shape[dims[0]] = -1
    index = np.arange(offset, offset + data.shape[dims[0]]).reshape(shape)
    return [(index == first).astype(data.dtype)]


def quantize(site: Site, local: Local, operands: Operands, coordinates: Coordinates) -> Running:
    """`DynamicQuantizeLinear`: the range is that of all devices, added to what each one rounds."""
    del coordinates
    data = _first(operands)
    low = yield from all_reduce(data.min(keepdims=True).reshape(1), site.communicates, "min")
    high = yield from all_reduce(data.max(keepdims=True).reshape(1), site.communicates, "max")
    made, *scales = evaluate(site.operator, local.attributes, [np.concatenate([data.reshape(-1), low, high])])
    return [made[:-2].reshape(data.shape), *scales]


KERNELS: Mapping[str, Kernel] = {
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "Hardmax": hardmax,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "com.microsoft.SkipLayerNormalization": skip_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip_norm,
    "InstanceNormalization": channel_norm,
    "GroupNormalization": channel_norm,
    "BatchNormalization": batch_norm,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance,
    "ReduceL2": _merged(np.square, np.sqrt),
    "ReduceLogSum": _merged(np.exp, np.log),
    "ReduceLogSumExp": log_sum_exp,
    "GlobalLpPool": global_norm,
    "ArgMax": extremum_at,
    "ArgMin": extremum_at,
    "DynamicQuantizeLinear": quantize,
}
