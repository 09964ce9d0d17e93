"""Operators with statistics over a whole group: softmax, normalisations, merged reductions.

Numbers that are summed over devices have single precision at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardplan.model.attributes import integer, integers, number
from shardplan.program.localise import refuse
from shardplan.program.nodes import Graph
from shardplan.program.operators.common import (
    FAR,
    Describe,
    axis_of,
    finish,
    finite,
    first_of_part,
    in_type,
    operator_node,
    positions,
    widened,
    working_type,
)
from shardplan.program.types import Local, Site


def row_dims(site: Site) -> tuple[int, ...]:
    """The dims of a softmax's row: one, before opset 13 the axis and all after it."""
    rank = len(site.operand(0))
    if site.operator.version >= 13:
        return (axis_of(site, rank, -1),)
    return tuple(range(axis_of(site, rank, 1), rank))


def softmax(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Softmax`, `LogSoftmax`: the maximum and the sum of exponentials of a row come from all its devices."""
    del local
    data, wide = widened(graph, reads[0])
    dims = row_dims(site)
    top = graph.all_reduce(graph.reduce("ReduceMax", data, dims), site.communicates, "max")
    shifted = graph.op("Sub", data, finite(graph, top, wide))
    powers = graph.op("Exp", shifted)
    total = graph.all_reduce(graph.reduce("ReduceSum", powers, dims), site.communicates)
    made = (
        graph.op("Sub", shifted, graph.op("Log", total))
        if site.kind == "LogSoftmax"
        else graph.op("Div", powers, total)
    )
    finish(graph, made, makes[0], wide)


def hardmax(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`Hardmax`: one at the first largest element of a row, wherever that lies."""
    del local
    (dim, *others) = row_dims(site)
    if others:
        raise refuse(site, "its row is more than one dim")
    held = site.local_operand(0)
    place, best = _extremum(graph, site, reads[0], dim, is_max=True)
    first = graph.all_reduce(graph.op("Where", best, place, graph.constant(FAR)), site.communicates, "min")
    shape = [-1 if place == dim else 1 for place in range(len(held))]
    same = graph.op("Equal", positions(graph, site.communicates, held[dim], shape), first)
    graph.cast(same, graph.dtype(makes[0]), makes[0])


def _extremum(graph: Graph, site: Site, data: str, dim: int, *, is_max: bool, last: bool = False) -> tuple[str, str]:
    """Place of the device's own extremum in the whole dim, and whether it is that of all devices."""
    kind = "Max" if is_max else "Min"
    more: dict[str, Any] = {"select_last_index": 1} if last else {}
    index = graph.op(f"Arg{kind}", data, axis=dim, keepdims=1, **more)
    value = graph.reduce(f"Reduce{kind}", data, [dim])
    best = graph.all_reduce(value, site.communicates, kind.lower())
    begin = first_of_part(graph, site.communicates, site.local_operand(0)[dim])
    beaten = graph.op("Less" if is_max else "Greater", value, best)
    return graph.op("Add", index, begin), graph.op("Not", beaten)


def extremum_at(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`ArgMax`, `ArgMin`: the best value of all devices, then the first (or last) device that has it."""
    dim = axis_of(site, len(site.operand(0)))
    last = bool(local.attributes.get("select_last_index", 0))
    place, best = _extremum(graph, site, reads[0], dim, is_max=site.kind == "ArgMax", last=last)
    candidate = graph.op("Where", best, place, graph.constant(-1 if last else FAR))
    found = graph.all_reduce(candidate, site.communicates, "max" if last else "min")
    graph.reshape(found, site.local_result(), to=makes[0])


@dataclass(frozen=True, slots=True)
class _Moments:
    """`data` without its mean, the mean (`""` if it was not taken off), and the mean of squares, kept as dims of 1."""

    data: str
    mean: str
    square: str


def _moments(graph: Graph, site: Site, data: str, dims: Sequence[int], wide: str, *, centre: bool = True) -> _Moments:
    """Over local dims and devices. `data` is of type `wide`."""
    ways = graph.constant(site.mesh.ways(site.communicates), wide)

    def mean_of(value: str) -> str:
        local_mean = graph.reduce("ReduceMean", value, dims)
        return graph.op("Div", graph.all_reduce(local_mean, site.communicates), ways)

    mean = mean_of(data) if centre else ""
    centred = graph.op("Sub", data, mean) if centre else data
    return _Moments(centred, mean, mean_of(graph.op("Mul", centred, centred)))


def _inverse(graph: Graph, square: str, epsilon: float, wide: str) -> str:
    shifted = graph.op("Add", square, graph.constant(epsilon, wide))
    return graph.op("Div", graph.constant(1, wide), graph.op("Sqrt", shifted))


def _epsilon(local: Local, default: float) -> float:
    return number(local.attributes, "epsilon", default)


def _affine(graph: Graph, data: str, operands: Sequence[str], wide: str, to: str, shape: Sequence[int] = ()) -> None:
    """Scaled by the first operand and moved by the second, where they are there; both take `shape` if that is given."""
    scale, bias = [*operands, "", ""][:2]
    data = in_type(graph, data, wide, graph.dtype(to))
    for kind, operand in (("Mul", scale), ("Add", bias)):
        if operand:
            data = graph.op(kind, data, graph.reshape(operand, shape) if shape else operand)
    graph.op("Identity", data, to=to)


def layer_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`LayerNormalization`, `RMSNormalization`, `SimplifiedLayerNormalization`."""
    data, wide = widened(graph, reads[0])
    rank, centre = len(site.operand(0)), site.kind == "LayerNormalization"
    dims = range(axis_of(site, rank, -1), rank)
    found = _moments(graph, site, data, dims, wide, centre=centre)
    inverse = _inverse(graph, found.square, _epsilon(local, 1e-5), wide)
    _affine(graph, graph.op("Mul", found.data, inverse), reads[1:3], wide, makes[0])
    _also(graph, [found.mean, inverse] if centre else [inverse], makes[1:], wide)


def _also(graph: Graph, values: Sequence[str], makes: Sequence[str], wide: str) -> None:
    """Further results, as far as they are wanted."""
    for value, name in zip(values, makes, strict=False):
        finish(graph, value, name, wide)


def skip_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`SkipLayerNormalization` and its kin: of the sum with the residual, which is a result as well."""
    is_rms = "Simplified" in site.kind
    data, residual, scale, *rest = [*reads, "", ""][:5]
    shift, bias = ("", rest[0]) if is_rms else (rest[0], rest[1])
    total = graph.op("Add", data, residual)
    total = graph.op("Add", total, bias) if bias else total
    dtype = graph.dtype(makes[0])
    wide = working_type(dtype)
    dims = [len(site.operand(0)) - 1]
    found = _moments(graph, site, in_type(graph, total, dtype, wide), dims, wide, centre=not is_rms)
    inverse = _inverse(graph, found.square, _epsilon(local, 1e-12), wide)
    _affine(graph, graph.op("Mul", found.data, inverse), [scale, shift], wide, makes[0])
    _also(graph, [found.mean, inverse], makes[1:3], wide)
    if len(makes) > 3 and makes[3]:
        graph.op("Identity", total, to=makes[3])


def channel_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`InstanceNormalization`, `GroupNormalization`: statistics of one channel, or of one group of them."""
    data, wide = widened(graph, reads[0])
    held = site.local_operand(0)
    groups = integer(local.attributes, "num_groups", held[1])
    found = _moments(graph, site, graph.reshape(data, [held[0], groups, -1]), [2], wide)
    inverse = _inverse(graph, found.square, _epsilon(local, 1e-5), wide)
    made = graph.reshape(graph.op("Mul", found.data, inverse), held)
    scales = [_per_channel(graph, site, reads[place], held[1]) for place in (1, 2)]
    _affine(graph, made, scales, wide, makes[0], [held[1], *[1] * (len(held) - 2)])


def _per_channel(graph: Graph, site: Site, value: str, channels: int) -> str:
    """A scale with one entry per channel, where it has one per group."""
    count = site.local_operand(1)[0]
    if count == channels:
        return value
    repeated = graph.op("Expand", graph.reshape(value, [count, 1]), graph.constant([count, channels // count]))
    return graph.reshape(repeated, [channels])


def group_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`GroupNorm`, `SkipGroupNorm` of ONNX Runtime: channels last unless said, of the sum with the residual and a bias
    per channel, which is a result as well; with the activation SiLU if asked."""
    held, dtype = site.local_operand(0), graph.dtype(makes[0])
    is_last, groups = bool(local.attributes.get("channels_last", 1)), integer(local.attributes, "groups")
    channels = [1, 1, held[3]] if is_last else [held[1], 1, 1]
    total = reads[0]
    for residual in filter(None, reads[3:]):
        is_whole = len(graph.described[residual].shape) == len(held)
        batch = [held[0]] if len(graph.described[residual].shape) == 2 else []
        total = graph.op("Add", total, residual if is_whole else graph.reshape(residual, [*batch, *channels]))
    wide = working_type(dtype)
    shape = [held[0], held[1] * held[2], groups, held[3] // groups] if is_last else [held[0], groups, -1]
    grouped = graph.reshape(in_type(graph, total, graph.dtype(reads[0]), wide), shape)
    found = _moments(graph, site, grouped, [1, 3] if is_last else [2], wide)
    made = graph.op("Mul", found.data, _inverse(graph, found.square, _epsilon(local, 1e-5), wide))
    scale, shift = (in_type(graph, graph.reshape(name, channels), graph.dtype(name), wide) for name in reads[1:3])
    made = graph.op("Add", graph.op("Mul", graph.reshape(made, held), scale), shift)
    if local.attributes.get("activation", 0):
        made = graph.op("Mul", made, graph.op("Sigmoid", made))
    finish(graph, made, makes[0], wide)
    _also(graph, [total], makes[1:], dtype)


def batch_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`BatchNormalization` in training: statistics of the whole batch, and running averages of them."""
    data, wide = widened(graph, reads[0])
    held = site.local_operand(0)
    found = _moments(graph, site, data, [0, *range(2, len(held))], wide)
    inverse = _inverse(graph, found.square, _epsilon(local, 1e-5), wide)
    channels = [held[1], *[1] * (len(held) - 2)]
    _affine(graph, graph.op("Mul", found.data, inverse), reads[1:3], wide, makes[0], channels)
    keep = number(local.attributes, "momentum", 0.9)
    for old, new, name in zip(reads[3:5], (found.mean, found.square), makes[1:3], strict=False):
        if name:
            dtype = graph.dtype(name)
            fresh = in_type(graph, graph.reshape(new, [held[1]]), wide, dtype)
            kept = graph.op("Mul", old, graph.constant(keep, dtype))
            graph.op("Add", kept, graph.op("Mul", fresh, graph.constant(1 - keep, dtype)), to=name)
    _also(graph, [graph.reshape(value, [held[1]]) for value in (found.mean, found.square)], makes[3:5], wide)


def lp_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`LpNormalization`: each line by its norm; lines of zeros stay."""
    data, wide = widened(graph, reads[0])
    power = integer(local.attributes, "p", 2)
    dim = axis_of(site, len(site.operand(0)), -1)
    powers = graph.op("Abs", data) if power == 1 else graph.op("Mul", data, data)
    total = graph.all_reduce(graph.reduce("ReduceSum", powers, [dim]), site.communicates)
    norm = total if power == 1 else graph.op("Sqrt", total)
    positive = graph.op("Greater", norm, graph.constant(0, wide))
    finish(graph, graph.op("Div", data, graph.op("Where", positive, norm, graph.constant(1, wide))), makes[0], wide)


def mean_variance(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`MeanVarianceNormalization`: no scale, and 1e-9 beside the deviation."""
    data, wide = widened(graph, reads[0])
    axes = integers(local.attributes, "axes", (0, 2, 3))
    rank = len(site.operand(0))
    found = _moments(graph, site, data, sorted(int(axis) % rank for axis in axes), wide)
    deviation = graph.op("Add", graph.op("Sqrt", found.square), graph.constant(1e-9, wide))
    finish(graph, graph.op("Div", found.data, deviation), makes[0], wide)


def _merged(before: Callable[[Graph, str], str], after: Callable[[Graph, str], str]) -> Describe:
    """A reduction that is a sum between two functions: `before` undoes what the operator does after its own sum."""

    def merged(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
        part, wide = _part(graph, site, local, reads, makes)
        total = graph.all_reduce(before(graph, part), site.communicates)
        finish(graph, after(graph, total), makes[0], wide)

    return merged


def _part(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> tuple[str, str]:
    """What the operator makes of the device's shard, in the working type, and that type."""
    name = graph.name(f"{makes[0]}/part")
    operator_node(graph, site, local.attributes, reads, [name])
    wide = working_type(graph.dtype(makes[0]))
    return in_type(graph, name, graph.dtype(makes[0]), wide), wide


def log_sum_exp(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`ReduceLogSumExp`: merged relative to the largest part."""
    part, wide = _part(graph, site, local, reads, makes)
    top = finite(graph, graph.all_reduce(part, site.communicates, "max"), wide)
    total = graph.all_reduce(graph.op("Exp", graph.op("Sub", part, top)), site.communicates)
    finish(graph, graph.op("Add", top, graph.op("Log", total)), makes[0], wide)


def global_norm(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`GlobalLpPool`: sums of powers before the root."""
    power = number(local.attributes, "p", 2)  # a float in opset 1
    part, wide = _part(graph, site, local, reads, makes)
    total = graph.all_reduce(graph.op("Pow", part, graph.constant(power, wide)), site.communicates)
    finish(graph, graph.op("Pow", total, graph.constant(1 / power, wide)), makes[0], wide)


def quantize(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """`DynamicQuantizeLinear`: the range is that of all devices, added to what each one rounds."""
    del local
    held = site.local_operand(0)
    flat = graph.reshape(reads[0], [-1])
    ends = [
        graph.all_reduce(graph.reduce(f"Reduce{kind}", flat, [0]), site.communicates, kind.lower())
        for kind in ("Min", "Max")
    ]
    joined = graph.op("Concat", flat, *ends, axis=0)
    made = graph.name(f"{makes[0]}/joined")
    operator_node(graph, site, {}, [joined], [made, *makes[1:]])
    kept = graph.op("Slice", made, graph.constant([0]), graph.constant([-2]))
    graph.reshape(kept, held, to=makes[0])


def _square(graph: Graph, value: str) -> str:
    return graph.op("Mul", value, value)


STATISTICS: Mapping[str, Describe] = {
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "Hardmax": hardmax,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "SimplifiedLayerNormalization": layer_norm,
    "com.microsoft.SimplifiedLayerNormalization": layer_norm,
    "com.microsoft.SkipLayerNormalization": skip_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip_norm,
    "com.microsoft.GroupNorm": group_norm,
    "com.microsoft.SkipGroupNorm": group_norm,
    "InstanceNormalization": channel_norm,
    "GroupNormalization": channel_norm,
    "BatchNormalization": batch_norm,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance,
    "ReduceL2": _merged(_square, lambda graph, value: graph.op("Sqrt", value)),
    "ReduceLogSum": _merged(lambda graph, value: graph.op("Exp", value), lambda graph, value: graph.op("Log", value)),
    "ReduceLogSumExp": log_sum_exp,
    "GlobalLpPool": global_norm,
    "ArgMax": extremum_at,
    "ArgMin": extremum_at,
    "DynamicQuantizeLinear": quantize,
}
