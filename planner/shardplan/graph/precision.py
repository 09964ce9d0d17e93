"""Matrix products in narrower types than the graph's, as trainers have them: FP8, MXFP8, NVFP4.

The graph stays as it is: weights, activations and what is sent keep their type. Products of activations with weights
inside of layers run in the narrow type; the embedding, the output matrix, attention and routers do not
(Transformer Engine's recipes, `--fp8-format` of Megatron-LM). What is to be multiplied is cast first, which is memory
traffic: the activation in forward, the gradient of the result in backward, the weight once a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shardplan.cluster.types import Cluster
from shardplan.cost.compute import profile_dtype
from shardplan.errors import ShardplanError, error
from shardplan.model.types import Model
from shardplan.rules.types import Rule

PrecisionName = Literal["", "fp8", "mxfp8", "nvfp4"]


@dataclass(frozen=True, slots=True)
class Precision:
    """`dtype`: ONNX type of the operands; `cast_bytes`: traffic of casting one 16-bit element for both of its uses, as
    rows and as columns; `saved`: bytes of an element that is saved for backward as columns, block scales included;
    `block_scales`: products take operands with a scale for every few elements."""

    dtype: str
    cast_bytes: float
    saved: float
    block_scales: bool = False


@dataclass(frozen=True, slots=True)
class Cast:
    """The casts of one product: `bytes`, traffic per element; `operands`: their positions."""

    bytes: float
    operands: tuple[int, ...]


PRECISIONS: Final[dict[str, Precision]] = {
    # a pass for the maximum reads 2, another reads 2 and writes 1 + 1
    "fp8": Precision("float8e4m3fn", 6.0, 1.0),
    # a scale for every 32 elements: one pass, reads 2, writes 1 + 1
    "mxfp8": Precision("float8e4m3fn", 4.0, 1 + 1 / 32, block_scales=True),
    # rows and, turned by a Hadamard matrix, columns: of each a pass for the maximum and one that writes 1/2
    "nvfp4": Precision("float4e2m1", 9.0, 0.5 + 1 / 16, block_scales=True),
}
_BLOCK_SCALED = "fp4"
"""The type whose peak says that devices multiply with block scales: they came together, with Blackwell and MI350."""
_LEAST_COLUMNS = 512
"""Narrower products choose experts, or are gates, and keep their type."""


def check_peak(precision: str, cluster: Cluster) -> None:
    """Raise `ShardplanError` (`missing-peak`) for a type in which the cluster's devices multiply nothing, or not with
    its block scales."""
    if not precision:
        return
    asked, peaks = PRECISIONS[precision], cluster.device.peak_flops
    missing, said = profile_dtype(asked.dtype), ""
    if missing in peaks and asked.block_scales:
        missing, said = _BLOCK_SCALED, f" with block scales, which come with {_BLOCK_SCALED}"
    if missing not in peaks:
        takes = f"{precision} takes products in {profile_dtype(asked.dtype)}{said}"
        summary = f"{takes}, for which profile '{cluster.name}' has no peak"
        hint = f"it has {', '.join(peaks)}; leave out --precision, or add {missing} to device.peak_tflops of a profile"
        raise ShardplanError(error("missing-peak", summary, hint=hint))


def narrowed(model: Model, rules: Sequence[Rule], precision: str) -> Mapping[int, tuple[int, ...]]:
    """The operators whose products run in the type of `precision` (none if it is empty), with the positions of the
    operands that are cast for them; an operand with several readers is cast for the first."""
    if not precision:
        return {}
    inside = _inside_layers(model)
    weights = {parameter.tensor for parameter in model.parameters}
    found, cast = dict[int, tuple[int, ...]](), set[str]()
    for index in sorted(inside):
        operator, rule = model.operators[index], rules[index]
        if rule.cost == "gemm" and any(name in weights for name in operator.inputs):
            wide = model.tensor(operator.outputs[0]).shape[-1]
            if wide >= _LEAST_COLUMNS:
                found[index] = tuple(at for at, name in enumerate(operator.inputs) if name and name not in cast)
                cast.update(operator.inputs)
    return found


def _inside_layers(model: Model) -> set[int]:
    """The operators of repeated blocks, and of modules beside theirs: a layer like no other, such as the only dense one
    of a mixture of experts, is trained in the same types."""
    inside = {index for block in model.blocks for copy in block.copies for index in copy}
    stacks = {_stack(model.operators[index].module) for index in inside} - {""}
    return inside | {index for index, operator in enumerate(model.operators) if _stack(operator.module) in stacks}


def _stack(module: str) -> str:
    """`model.layers` of `model.layers.7.mlp`; nothing without a number."""
    parts = module.split(".")
    before = list(itertools.takewhile(lambda part: not part.isdecimal(), parts))
    return ".".join(before) if len(before) < len(parts) else ""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Tensors that trainers gather in 8 bits: `read`, those that only products in a narrow type read; and `make`, the
    results of such products, whose gradients they read."""

    read: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()


def narrow_tensors(model: Model, rules: Sequence[Rule], precision: str) -> Narrow:
    """The tensors that only products in the type of `precision` read or make. Weights count as read whoever else reads
    them."""
    products = narrowed(model, rules, precision)
    weights = {parameter.tensor for parameter in model.parameters}
    others = (operator for index, operator in enumerate(model.operators) if index not in products)
    wide = {name for operator in others for name in operator.inputs} - weights
    read = {name for index in products for name in model.operators[index].inputs if name}
    made = {name for index in products for name in model.operators[index].outputs if name}
    return Narrow(frozenset(read - wide), frozenset(made))
