"""The program of one device as a graph: ONNX operators on local values, collectives between devices.

Every device runs the same graph (SPMD) and learns who it is from its coordinates. The machine of numpy runs the nodes,
the ONNX export writes them. Only operators whose form has not changed since opset 9 are used without asking for the
opset, so the same code serves models of every age.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from shardplan.layout.mesh import Mesh

Array = NDArray[Any]
Operands = list[Array | None]
Coordinates = tuple[int, ...]
Kernel = Callable[[Operands, Coordinates], list[Array]]
"""What one device computes in numpy where ONNX has no operators for it: operands, its coordinates -> results."""
DOMAIN, DOMAIN_VERSION = "shardplan.spmd", 1
"""The domain of the collectives; docs/export.md describes them."""
COORDINATES = "shardplan.coordinates"
"""The one initializer that tells a device who it is: its coordinates on the mesh, int64, one per axis."""
_AXES_ARE_OPERANDS_SINCE = {"ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18, "ReduceMin": 18}


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of ONNX, or in `DOMAIN` a collective; `""` among inputs and outputs where one is absent.

    `version`: opset version of `domain`. `body`: what a `Scan` runs for each entry. `kernel`: what runs in place of an
    operator that has no form in ONNX on shards.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str
    domain: str = ""
    version: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    body: Body | None = None
    kernel: Kernel | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """One step of a `Scan`: (states, entry) -> (states, result of the step). It may read values around it."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """Element type (lower-case ONNX name) and shape of a local value."""

    dtype: str
    shape: tuple[int, ...]


class Graph:
    """What has been described so far. `opset`: version of the default domain. `taken`: names that others use."""

    def __init__(self, mesh: Mesh, opset: int, taken: Iterable[str] = ()) -> None:
        self.mesh, self.opset = mesh, opset
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.described: dict[str, Described] = {}
        self.operators: set[str] = set()
        self._taken = {COORDINATES, *taken}
        self._names_of: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._numbers: dict[tuple[int, ...], str] = {}

    def inner(self) -> Graph:
        """The body of a loop: nodes of its own, constants and names of this graph, whose values it may read."""
        body = Graph(self.mesh, self.opset)
        body.constants, body.operators = self.constants, self.operators
        body._taken, body._names_of, body._numbers = self._taken, self._names_of, dict(self._numbers)
        return body

    def name(self, hint: str) -> str:
        """`hint`, or the first of `hint.1`, `hint.2` ... that is free."""
        for name in itertools.chain([hint], (f"{hint}.{number}" for number in itertools.count(1))):
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """The one result of an operator of the default domain. `to`: its name, if that is given."""
        made = to or self.name(f"{next((name for name in inputs if name), 'shardplan')}/{kind}")
        name = self.name(f"shardplan/{made}")
        self.nodes.append(Node(kind, inputs, (made,), name, version=self.opset, attributes=attributes))
        return made

    def cast(self, value: str, dtype: str, to: str = "") -> str:
        """`value` in another element type."""
        made = to or self.name(f"{value}/Cast")
        attributes = {"to": int(TensorProto.DataType.Value(dtype.upper()))}
        node = Node(
            "Cast", (value,), (made,), self.name(f"shardplan/{made}"), version=self.opset, attributes=attributes
        )
        self.nodes.append(node)
        return made

    def constant(self, value: object, dtype: str = "int64") -> str:
        """The name of a constant with this value; `dtype`: lower-case ONNX name."""
        kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper()))
        return self.array(np.asarray(value).astype(kind))

    def array(self, array: Array) -> str:
        """The name of a constant with the values of `array`, the same for equal content."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._names_of:
            name = self._names_of[key] = self.name(f"shardplan.constant.{len(self._names_of)}")
            self.constants[name] = array
        return self._names_of[key]

    def describe(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        """Record element type and shape of a value; returns its name."""
        self.described[name] = Described(dtype, tuple(shape))
        return name

    def alike(self, name: str, other: str) -> str:
        """Record that a value has the type of another; returns its name."""
        self.described[name] = self.described[other]
        return name

    def dtype(self, name: str) -> str:
        """Element type of a described value."""
        return self.described[name].dtype

    def number(self, axes: Sequence[int], dtype: str = "int64") -> str:
        """A scalar: which of the devices along `axes` (major first) this one is."""
        key = tuple(axes)
        if key not in self._numbers:
            weights = [0] * len(self.mesh)
            for place, axis in enumerate(axes):
                weights[axis] = self.mesh.ways(axes[place + 1 :])
            label = ",".join(self.mesh.names[axis] for axis in axes)
            name = self.name(f"shardplan.number.{label}")
            self._numbers[key] = self.op("MatMul", COORDINATES, self.constant(weights), to=name)
        return self._numbers[key] if dtype == "int64" else self.cast(self._numbers[key], dtype)

    def reshape(self, value: str, shape: Sequence[int], to: str = "") -> str:
        """`value` in a shape without zeros."""
        return self.op("Reshape", value, self.constant(list(shape)), to=to)

    def transpose(self, value: str, perm: Sequence[int], to: str = "") -> str:
        """`value` with its dims in another order; itself where that is the order it has."""
        if not to and list(perm) == list(range(len(perm))):
            return value
        return self.op("Transpose", value, to=to, perm=tuple(perm))

    def take(self, value: str, indices: Sequence[int], dim: int) -> str:
        """The entries of one dim at these places."""
        return self.op("Gather", value, self.constant(list(indices)), axis=dim)

    def reduce(self, kind: str, value: str, dims: Sequence[int], *, keepdims: int = 1) -> str:
        """`ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over some dims."""
        if self.opset >= _AXES_ARE_OPERANDS_SINCE[kind]:
            return self.op(kind, value, self.constant(list(dims)), keepdims=keepdims)
        return self.op(kind, value, axes=tuple(dims), keepdims=keepdims)

    def collective(self, kind: str, value: str, axes: Sequence[int], to: str = "", **settings: Any) -> str:
        """A collective over devices that differ only along `axes`, each group in the order of `axes`, major first."""
        groups = ordered_groups(self.mesh, axes)
        flat = [rank for group in groups for rank in group]
        return self._collective(kind, value, axes, to, groups=flat, group_size=self.mesh.ways(axes), **settings)

    def permute(self, value: str, pairs: Sequence[tuple[int, int]], axes: Sequence[int], to: str = "") -> str:
        """A collective of `pairs`, (source rank, target rank); a device that gets nothing has zeros."""
        flat = [rank for pair in pairs for rank in pair]
        return self._collective("Permute", value, axes, to, source_target_pairs=flat)

    def _collective(self, kind: str, value: str, axes: Sequence[int], to: str, **settings: Any) -> str:
        made = to or self.name(f"{value}/{kind}")
        attributes = {"axis": [self.mesh.names[axis] for axis in axes], **settings}
        name = self.name(f"shardplan/{made}")
        self.nodes.append(Node(kind, (value,), (made,), name, DOMAIN, DOMAIN_VERSION, attributes))
        return made

    def all_reduce(self, value: str, axes: Sequence[int], reduction: str = "sum") -> str:
        """The combined values of all devices along `axes`; `value` itself where there are no axes."""
        return self.collective("AllReduce", value, axes, reduction=reduction) if axes else value

    def scan(self, states: Sequence[str], entries: str, ends: Sequence[str], made: str, body: Body) -> None:
        """Run `body` for each entry of the first dim of `entries`: last states `ends`, results joined as `made`."""
        name = self.name(f"shardplan/{made}")
        inputs, outputs = (*states, entries), (*ends, made)
        self.nodes.append(
            Node("Scan", inputs, outputs, name, version=self.opset, attributes={"num_scan_inputs": 1}, body=body)
        )


def ordered_groups(mesh: Mesh, axes: Sequence[int]) -> list[list[int]]:
    """Ranks that differ only along `axes`, each group in the order of `axes`, major first."""
    places = tuple(mesh.coordinates())
    return [sorted(group, key=lambda rank: mesh.number(axes, places[rank])) for group in mesh.groups(axes)]
