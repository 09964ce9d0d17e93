"""What a device runs where that is not the plain operator on its shards.

`LOCAL` adapts shape operands and head counts; `TOGETHER` carries out options that communicate inside the operator
(statistics, borders) or look up only what a device holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rule_cases import Case

from shardplan.layout.placement import Placement
from shardplan.rules.types import Option


def local_shape(shape: tuple[int, ...], placement: Placement, ways: int) -> tuple[int, ...]:
    return tuple(s // ways if placement.kind == "S" and placement.dim == dim else s for dim, s in enumerate(shape))


@dataclass
class Device:
    """What one device runs: operands and attributes, which `LOCAL` adapts to the shards."""

    case: Case
    option: Option
    ways: int
    rank: int
    operands: list
    attributes: dict
    whole: list[np.ndarray]

    def local(self, result: int = 0) -> tuple[int, ...]:
        return local_shape(self.whole[result].shape, self.option.results[result], self.ways)

    def is_split(self, is_result: bool, position: int, dim: int) -> bool:
        placement = (self.option.results if is_result else self.option.operands)[position]
        return placement.kind == "S" and placement.dim == dim

    def run(self) -> list[np.ndarray]:
        return self.case.run(self.operands, self.attributes)


def nothing(device: Device) -> None:
    """Most operators run as they are on their shards."""


def reshape(device: Device) -> None:
    device.operands[1] = np.array(device.local(), dtype=np.int64)


def split(device: Device) -> None:
    if len(device.operands) > 1:
        axis = device.attributes.get("axis", 0)
        sizes = [device.local(i)[axis] for i in range(device.case.outputs)]
        device.operands[1] = np.array(sizes, dtype=np.int64)


def slice_(device: Device) -> None:
    """Bounds of a cut dim lie at 1/ways of the distance, since every part of it is cut alike; steps stay."""
    starts, ends = (np.array(device.operands[i]) for i in (1, 2))
    for i, axis in enumerate(device.operands[3] if len(device.operands) > 3 else range(len(starts))):
        size = device.case.operands[0].shape[axis]
        if device.is_split(False, 0, axis % device.case.operands[0].ndim):
            step = device.operands[4][i] if len(device.operands) > 4 else 1
            start, stop = (bound + size if bound < 0 else min(bound, size) for bound in (starts[i], ends[i]))
            starts[i], ends[i] = (start, stop) if step > 1 else (start // device.ways, stop // device.ways)
    device.operands[1], device.operands[2] = starts, ends


def tile(device: Device) -> None:
    repeats = np.array(device.operands[1])
    placement = device.option.results[0]
    if placement.kind == "S" and device.option.operands[0].kind != "S":
        repeats[placement.dim] //= device.ways
    device.operands[1] = repeats


def heads(*names: str):
    def localise(device: Device) -> None:
        if device.option.factor in {"h", "g"} and device.case.operands[0].ndim == 3:
            for name in names:
                if name in device.attributes and not (name == "kv_num_heads" and device.option.factor == "g"):
                    device.attributes[name] //= device.ways

    return localise


def counts(factor: str, *names: str):
    def localise(device: Device) -> None:
        if device.option.factor == factor:
            device.attributes |= {
                name: device.attributes[name] // device.ways for name in names if name in device.attributes
            }
        if device.option.factor == "g" and "kv_num_heads" in names:
            device.attributes["num_heads"] //= device.ways

    return localise


def resize(device: Device) -> None:
    if len(device.operands) > 3 and device.operands[3] is not None:
        device.operands[3] = np.array(device.local(), dtype=np.int64)


def experts(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device works on the experts it holds; the oracle is told which is its first."""
    for device in devices:
        device.attributes["first"] = device.rank * device.operands[2].shape[0]
    return [device.run() for device in devices]


LOCAL = {
    "com.microsoft.GroupQueryAttention": counts("h", "num_heads", "kv_num_heads"),
    "com.microsoft.MultiHeadAttention": counts("h", "num_heads"),
    "com.microsoft.Attention": counts("h", "num_heads"),
    "com.microsoft.RotaryEmbedding": counts("h", "num_heads"),
    "Reshape": reshape, "Expand": reshape, "Split": split, "Slice": slice_, "Tile": tile, "Resize": resize,
    "Attention": heads("q_num_heads", "kv_num_heads"), "RotaryEmbedding": heads("num_heads"),
    "LinearAttention": heads("q_num_heads", "kv_num_heads"), "GroupNormalization": counts("g", "num_groups"),
    "Conv": counts("g", "group"), "ConvTranspose": counts("g", "group"),
}  # fmt: skip


def all_reduce(values: list[np.ndarray], combining=np.add) -> np.ndarray:
    return combining.reduce(values)


def split_dims(device: Device) -> int:
    return device.option.operands[0].dim


def softmax(devices: list[Device]) -> list[list[np.ndarray]]:
    first = devices[0]
    rank = first.case.operands[0].ndim
    axis = first.attributes.get("axis", -1 if first.case.opset >= 13 else 1) % rank
    axes = (axis,) if first.case.opset >= 13 else tuple(range(axis, rank))
    data = [device.operands[0] for device in devices]
    top = all_reduce([x.max(axis=axes, keepdims=True) for x in data], np.maximum)
    total = all_reduce([np.exp(x - top).sum(axis=axes, keepdims=True) for x in data])
    if first.case.kind == "LogSoftmax":
        return [[x - top - np.log(total)] for x in data]
    return [[np.exp(x - top) / total] for x in data]


def normalise(axes_of, *, centre: bool = True):
    """Normalisation over dims of which one is split: mean and mean square are all-reduced."""

    def together(devices: list[Device]) -> list[list[np.ndarray]]:
        first = devices[0]
        axes, view = axes_of(first)
        epsilon = first.attributes.get("epsilon", 1e-5)
        data = [view(device.operands[0]) for device in devices]
        mean = all_reduce([x.mean(axis=axes, keepdims=True) for x in data]) / len(data) * centre
        square = all_reduce([((x - mean) ** 2).mean(axis=axes, keepdims=True) for x in data]) / len(data)
        made = []
        for x, device in zip(data, devices, strict=True):
            y = ((x - mean) / np.sqrt(square + epsilon)).reshape(device.operands[0].shape)
            scale, bias = ([*device.operands[1:3], None])[:2]
            channels = (slice(None), *[None] * (y.ndim - 2)) if first.case.kind in PER_CHANNEL else ()
            y = y * scale[channels] + (0 if bias is None else bias[channels])
            extra = [mean, 1 / np.sqrt(square + epsilon)] if first.case.kind == "LayerNormalization" else []
            made.append([y.astype(np.float32), *extra][: first.case.outputs])
        return made

    return together


PER_CHANNEL = {"InstanceNormalization", "GroupNormalization"}


def from_axis(device: Device):
    rank = device.case.operands[0].ndim
    return tuple(range(device.attributes.get("axis", -1) % rank, rank)), lambda x: x


def over_space(device: Device):
    return tuple(range(2, device.case.operands[0].ndim)), lambda x: x


def over_groups(device: Device):
    count = device.attributes["num_groups"]
    return (2,), lambda x: x.reshape(x.shape[0], count, -1)


def batch_norm(devices: list[Device]) -> list[list[np.ndarray]]:
    """Training form: statistics of the whole batch, and running averages."""
    axes = (0, *range(2, devices[0].operands[0].ndim))
    data = [device.operands[0] for device in devices]
    mean = all_reduce([x.mean(axis=axes) for x in data]) / len(data)
    shape = (-1, *[1] * (data[0].ndim - 2))
    square = all_reduce([((x - mean.reshape(shape)) ** 2).mean(axis=axes) for x in data]) / len(data)
    made = []
    for x, device in zip(data, devices, strict=True):
        _, scale, bias, old_mean, old_square = device.operands
        keep = device.attributes.get("momentum", 0.9)
        y = (x - mean.reshape(shape)) / np.sqrt(square.reshape(shape) + 1e-5) * scale.reshape(shape)
        made.append(
            [y + bias.reshape(shape), old_mean * keep + mean * (1 - keep), old_square * keep + square * (1 - keep)]
        )
    return made


def merged_reduction(devices: list[Device]) -> list[list[np.ndarray]]:
    kind = devices[0].case.kind
    before = {"ReduceL2": np.square, "ReduceLogSum": np.asarray, "ReduceLogSumExp": np.exp}[kind]
    after = {"ReduceL2": np.sqrt, "ReduceLogSum": np.log, "ReduceLogSumExp": np.log}[kind]
    inverse = {"ReduceL2": np.square, "ReduceLogSum": np.exp, "ReduceLogSumExp": np.exp}[kind]
    del before
    made = after(all_reduce([inverse(device.run()[0]) for device in devices]))
    return [[made]] * len(devices)


def arg_max(devices: list[Device]) -> list[list[np.ndarray]]:
    """The best pair of value and index."""
    first = devices[0]
    axis = first.attributes.get("axis", 0)
    best = np.argmax if first.case.kind == "ArgMax" else np.argmin
    length = first.operands[0].shape[axis]
    index = [best(d.operands[0], axis=axis) + d.rank * length for d in devices]
    whole = np.concatenate([d.operands[0] for d in devices], axis=axis)
    values = np.stack([np.take_along_axis(whole, np.expand_dims(i, axis), axis).squeeze(axis) for i in index])
    found = np.take_along_axis(np.stack(index), best(values, axis=0)[None], 0)[0]
    if first.attributes.get("keepdims", 1):
        found = np.expand_dims(found, axis)
    return [[found]] * len(devices)


def attention(devices: list[Device]) -> list[list[np.ndarray]]:
    """Keys split: every device attends to its keys, results are weighted by the sums of exponentials."""
    first = devices[0]
    is_packed = first.operands[0].ndim == 3
    q_heads = first.attributes["q_num_heads"] if is_packed else first.operands[0].shape[1]
    logits, partial = [], []
    for device in devices:
        q, k, v = device.operands[:3]
        if is_packed:
            counts = q_heads, *[first.attributes["kv_num_heads"]] * 2
            q, k, v = (x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2) for x, n in zip((q, k, v), counts, strict=True))
        k, v = (np.repeat(x, q_heads // x.shape[1], axis=1) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if len(device.operands) > 3:
            scores = np.where(device.operands[3], scores, -1e30)
        logits.append(scores)
        partial.append(v)
    top = all_reduce([s.max(axis=-1, keepdims=True) for s in logits], np.maximum)
    total = all_reduce([np.exp(s - top).sum(axis=-1, keepdims=True) for s in logits])
    made = all_reduce([np.exp(s - top) @ v for s, v in zip(logits, partial, strict=True)]) / total
    if is_packed:
        made = made.swapaxes(1, 2).reshape(*first.operands[0].shape[:2], -1)
    return [[made.astype(np.float32)]] * len(devices)


def masked(lookup):
    """A lookup in the part of the table that a device holds; zero where the index lies elsewhere."""

    def together(devices: list[Device]) -> list[list[np.ndarray]]:
        made = []
        for device in devices:
            axis = device.attributes.get("axis", 0)
            length = device.operands[0].shape[axis]
            size = device.case.operands[0].shape[axis]
            index = (
                np.where(device.operands[1] < 0, device.operands[1] + size, device.operands[1]) - device.rank * length
            )
            inside = (index >= 0) & (index < length)
            device.operands[1] = np.where(inside, index, 0)
            found = device.run()[0]
            made.append([np.where(lookup(inside, found, axis), found, 0).astype(found.dtype)])
        return made

    return together


def inside_gather(inside, found, axis):
    shape = (*[1] * axis, *inside.shape, *[1] * (found.ndim - inside.ndim - axis))
    return inside.reshape(shape)


def one_hot(devices: list[Device]) -> list[list[np.ndarray]]:
    made = []
    for device in devices:
        axis = device.attributes.get("axis", -1) % device.whole[0].ndim
        length = device.local()[axis]
        size = length * device.ways
        index = np.where(device.operands[0] < 0, device.operands[0] + size, device.operands[0])
        classes = np.arange(length) + device.rank * length
        shape = [1] * device.whole[0].ndim
        shape[axis] = length
        hit = np.expand_dims(index, axis) == classes.reshape(shape)
        off, on = device.operands[2]
        made.append([np.where(hit, on, off)])
    return made


def borders(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device gets the rows around its shard that its windows reach; at the ends there is padding."""
    first = devices[0]
    dim = first.option.operands[0].dim
    whole = first.case.operands[0]
    space = whole.ndim - 2
    attributes = dict(first.attributes)
    pads = list(attributes.get("pads", [0] * 2 * space))
    kernel = attributes.get("kernel_shape", first.case.operands[1].shape[2:] if first.case.kind == "Conv" else None)
    strides = attributes.get("strides", [1] * space)
    reach = (kernel[dim - 2] - 1) * attributes.get("dilations", [1] * space)[dim - 2] + 1
    before = pads[dim - 2]
    made_rows = first.whole[0].shape[dim] // first.ways
    made = []
    for device in devices:
        start = device.rank * made_rows * strides[dim - 2] - before
        stop = start + (made_rows - 1) * strides[dim - 2] + reach
        chunk = np.take(whole, range(max(0, start), min(whole.shape[dim], stop)), axis=dim)
        local = whole.shape[dim] // device.ways
        held = range(device.rank * local, (device.rank + 1) * local)
        received = [row for row in range(max(0, start), min(whole.shape[dim], stop)) if row not in held]
        rows = whole.size // whole.shape[dim] * whole.itemsize
        assert all(c.payload_bytes >= len(received) * rows for c in device.option.inner if c.phase == "forward")
        assert bool(device.option.inner) or not received
        own = list(pads)
        own[dim - 2], own[dim - 2 + space] = max(0, -start), max(0, stop - whole.shape[dim])
        device.operands[0] = chunk
        device.attributes["pads"] = own
        made.append(device.run())
    return made


TOGETHER = {
    "com.microsoft.MoE": experts,
    "com.microsoft.GatherBlockQuantized": masked(inside_gather),
    "Softmax": softmax, "LogSoftmax": softmax, "LayerNormalization": normalise(from_axis),
    "RMSNormalization": normalise(from_axis, centre=False), "InstanceNormalization": normalise(over_space),
    "GroupNormalization": normalise(over_groups), "BatchNormalization": batch_norm,
    "ReduceL2": merged_reduction, "ReduceLogSum": merged_reduction, "ReduceLogSumExp": merged_reduction,
    "ArgMax": arg_max, "ArgMin": arg_max, "Attention": attention, "Gather": masked(inside_gather),
    "GatherElements": masked(lambda inside, *_: inside), "OneHot": one_hot,
    "Conv": borders, "MaxPool": borders, "AveragePool": borders, "LpPool": borders,
}  # fmt: skip
