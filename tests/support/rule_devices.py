"""What a device runs where that is not the plain operator on its shards.

`LOCAL` adapts shape operands, bounds and counts of heads and groups.
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
        local = device.local()
        axes = device.attributes.get("axes", range(len(local)))
        device.operands[3] = np.array([local[axis] for axis in axes], dtype=np.int64)


def centre(device: Device) -> None:
    local = device.local()
    axes = device.attributes.get("axes", range(len(local)))
    device.operands[1] = np.array([local[axis] for axis in axes], dtype=np.int64)


def n_bits(device: Device) -> None:
    device.attributes["N"] = device.operands[1].shape[0]
    device.attributes["K"] = device.operands[0].shape[-1]


LOCAL = {
    "com.microsoft.MatMulNBits": n_bits,
    "com.microsoft.GroupQueryAttention": counts("h", "num_heads", "kv_num_heads"),
    "com.microsoft.MultiHeadAttention": counts("h", "num_heads"),
    "com.microsoft.Attention": counts("h", "num_heads"),
    "com.microsoft.RotaryEmbedding": counts("h", "num_heads"),
    "CenterCropPad": centre,
    "Reshape": reshape, "Expand": reshape, "Split": split, "Slice": slice_, "Tile": tile, "Resize": resize,
    "Attention": heads("q_num_heads", "kv_num_heads"), "RotaryEmbedding": heads("num_heads"),
    "LinearAttention": heads("q_num_heads", "kv_num_heads"), "GroupNormalization": counts("g", "num_groups"),
    "Conv": counts("g", "group"), "ConvTranspose": counts("g", "group"),
}  # fmt: skip
