"""Optimizer recipes: what every parameter costs in memory besides its activations, and in traffic at the end of a step.

| recipe       | weights      | gradient | state                          | 16-bit weights   | fp32 weights    |
|--------------|--------------|----------|--------------------------------|------------------|-----------------|
| `adam-mixed` | as in graph  | as graph | two fp32 moments, fp32 master* | 2 + 2 + 12 = 16  | 4 + 4 + 8 = 16  |
| `adam-fp32`  | as in graph  | fp32     | two fp32 moments               | 2 + 4 + 8 = 14   | 4 + 4 + 8 = 16  |
| `sgd`        | as in graph  | as graph | momentum, as graph             | 2 + 2 + 2 = 6    | 4 + 4 + 4 = 12  |
| `none`       | as in graph  | as graph | nothing, and no step           | 2 + 2 = 4        | 4 + 4 = 8       |

*The master copy is kept only of weights narrower than fp32: fp32 weights are their own. `adam-mixed` on 16-bit weights
is the "mixed precision Adam" of the ZeRO paper, 16 bytes per parameter. Gradients travel in the type they are kept in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shardplan.cluster.types import Device
from shardplan.cost.types import Floats
from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.model.types import DTYPE_BITS


@dataclass(frozen=True, slots=True)
class Recipe:
    """`gradient`: ONNX type of gradients, `""` for the weight's own. `moments`: number of optimizer state tensors of
    the weight's shape, of type `moment` (`""`: the weight's own). `master`: whether narrower weights have an fp32
    master copy."""

    name: str
    gradient: str
    moments: int
    moment: str
    master: bool
    steps: bool = True


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter element; `step_traffic`: bytes read and written by the optimizer step."""

    parameter: float
    gradient: float
    state: float
    step_traffic: float

    @property
    def total(self) -> float:
        return self.parameter + self.gradient + self.state


RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe("adam-mixed", gradient="", moments=2, moment="float", master=True),
        Recipe("adam-fp32", gradient="float", moments=2, moment="float", master=False),
        Recipe("sgd", gradient="", moments=1, moment="", master=False),
        Recipe("none", gradient="", moments=0, moment="", master=False, steps=False),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name. Raises `ShardplanError` for an unknown name, with the nearest one."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or f"recipes: {', '.join(RECIPES)}"
        raise ShardplanError(error("unknown-optimizer", f"unknown optimizer '{name}'", hint=hint))
    return RECIPES[name]


def gradient_dtype(optimizer: str, dtype: str) -> str:
    """ONNX type in which the gradient of a value of type `dtype` is kept and sent."""
    return recipe(optimizer).gradient or dtype


def state_bytes(optimizer: str, dtype: str) -> StateBytes:
    """Bytes per element of a trained parameter of ONNX type `dtype`.

    Step traffic: the gradient is read, the state read and written; the weight is written, and read if there is no
    master copy to start from. 28 bytes for Adam in both its usual forms.
    """
    chosen = recipe(optimizer)
    weight = DTYPE_BITS[dtype] / 8
    gradient = DTYPE_BITS[gradient_dtype(optimizer, dtype)] / 8
    moment = DTYPE_BITS[chosen.moment or dtype] / 8
    master = 4.0 if chosen.master and weight < 4 else 0.0
    state = chosen.moments * moment + master
    traffic = gradient + 2 * state + (weight if master else 2 * weight) if chosen.steps else 0.0
    return StateBytes(weight, gradient, state, traffic)


def optimizer_seconds(optimizer: str, elements: Floats, device: Device, dtype: str) -> Floats:
    """Seconds of the optimizer step on so many local elements of a weight of type `dtype`, from its memory traffic."""
    per_element = state_bytes(optimizer, dtype).step_traffic
    return np.asarray(elements) * per_element / (device.hbm_bytes_per_s * device.memory_efficiency)
