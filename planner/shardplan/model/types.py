"""The model as the planner sees it: plain values without protobuf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import Diagnostic
from shardplan.units import counted

Role = Literal["input", "parameter", "constant", "activation"]
Bytes = TypeVar("Bytes", int, NDArray[np.int64])
AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | np.ndarray


@dataclass(frozen=True, slots=True)
class Tensor:
    """One value of the graph. `dtype` is the lower-case ONNX name: `float`, `bfloat16`, `int64`, `bool`, `int4` ..."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor; sub-byte types are packed."""
        return -(-self.elements * DTYPE_BITS[self.dtype] // 8)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight: its graph value and its identity in the checkpoint.

    `name`: checkpoint name; `tensor`: value name in the planned graph; `onnx`: initializer name in the file;
    `perm`: checkpoint dims in graph order, i.e. graph tensor = checkpoint tensor transposed by `perm` (identity when
    empty); `aliases`: other names of the same data, in the checkpoint or the file; `trainable`: takes a gradient in
    training; `onnx_perm`: as `perm`, for the initializer, which is stored in the checkpoint's or the graph's order.
    """

    name: str
    tensor: str
    onnx: str
    perm: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    trainable: bool = True
    onnx_perm: tuple[int, ...] = ()


CONTROL: Final = "shardplan"
"""The domain of operators that stand where control flow was."""


class Border:
    """Operators of the domain `CONTROL`: the border of a loop, and the choice between two branches."""

    ENTER: Final = "Enter"
    EACH: Final = "Each"
    COUNT: Final = "Count"
    LEAVE: Final = "Leave"
    STACK: Final = "Stack"
    CHOOSE: Final = "Choose"


_INTO: Final = frozenset({Border.ENTER, Border.EACH, Border.COUNT})
_OUT_OF: Final = frozenset({Border.LEAVE, Border.STACK})


@dataclass(frozen=True, slots=True)
class Operator:
    """One node: inputs and outputs are value names, `""` where an optional one is absent.

    `version`: opset version of `domain` that the file imports. `module`: dotted module path from export metadata
    (`model.layers.0.self_attn.q_proj`), `""` when unknown. `loops`: names of the loops that it runs in, outermost
    first; operators at a loop's border are inside. A node with nested graphs that could not be taken apart is one
    operator:
    its last inputs are the outer values that those graphs read, as many as its attribute `captured` says.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    domain: str = ""
    version: int = 1
    module: str = ""
    loops: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`MatMul`, or `com.microsoft.MatMulNBits` outside the default domain."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    @property
    def reads_in(self) -> tuple[str, ...]:
        """The loops in which it reads its operands: the outer loops, if it brings values into a loop."""
        return self.loops[:-1] if self.domain == CONTROL and self.op_type in _INTO else self.loops

    @property
    def makes_in(self) -> tuple[str, ...]:
        """The loops in which its results exist: the outer loops, if it brings values out of a loop."""
        return self.loops[:-1] if self.domain == CONTROL and self.op_type in _OUT_OF else self.loops


@dataclass(frozen=True, slots=True)
class Block:
    """Identical consecutive pieces of the graph (decoder layers): `copies[i]` lists operator indices of copy i,
    all copies in corresponding order; `names` are their module paths (`model.layers.0`), or `block 0` ..."""

    names: tuple[str, ...]
    copies: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Padding:
    """`of`: the unpadded model; `real`: by tensor and padded dim, the positions with entries of the model. Elsewhere
    parameters and inputs are zero."""

    of: Model
    real: Mapping[tuple[str, int], np.ndarray]


@dataclass(frozen=True)
class Model:
    """A graph with static shapes. `operators` are in execution order; `constants` holds the small known values (shapes,
    axes, scalars) that rules need; large constant tensors have role `constant` and no value here. `dims`: the given
    sizes, of symbolic dims, as `trip:NAME` of loops, and as `pad:NAME` of padded dims; `trips`: the iterations of each
    loop. `warnings`: about reading the file."""

    name: str
    operators: tuple[Operator, ...]
    tensors: Mapping[str, Tensor]
    parameters: tuple[Parameter, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    blocks: tuple[Block, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    opset: int = 0
    producer: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    trips: Mapping[str, int] = field(default_factory=dict)
    fed: Mapping[str, int] = field(default_factory=dict)
    """Inputs that are results of another part of a larger model, with the dim that is their batch: they take a
    gradient."""
    padding: Padding | None = None
    """What it is the larger form of, where a size is held as a larger one."""
    depth: Mapping[str, Fraction] = field(default_factory=dict)
    """By tensor of a copy of a repeated block, how many copies of a deeper model it stands for, if it is not one."""

    def __repr__(self) -> str:
        """`<Model gpt2_small: 410 operators, 148 parameters, 2 inputs, 1 output>`."""
        amounts = {
            "operator": self.operators,
            "parameter": self.parameters,
            "input": self.inputs,
            "output": self.outputs,
        }
        said = ", ".join(counted(len(these), what) for what, these in amounts.items())
        return f"<Model {self.name}: {said}>"

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def in_all_copies(self, name: str, size_bytes: Bytes) -> Bytes:
        """The bytes in all the copies of a deeper model that a tensor stands for, of its bytes in one."""
        each = self.depth.get(name)
        return size_bytes if each is None else -(-size_bytes * each.numerator // each.denominator)

    def iterations(self, loops: tuple[str, ...]) -> int:
        """How often per step an operator inside of all `loops` runs."""
        return math.prod(self.trips[name] for name in loops)


DTYPE_BITS: dict[str, int] = {
    "float": 32, "double": 64, "float16": 16, "bfloat16": 16,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8, "float4e2m1": 4,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64, "int4": 4, "int2": 2,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "uint4": 4, "uint2": 2,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 64,
}  # fmt: skip
FLOAT_DTYPES: frozenset[str] = frozenset(name for name in DTYPE_BITS if name.startswith(("float", "bfloat", "double")))
