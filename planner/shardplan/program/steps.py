"""A small writer of ONNX graphs: nodes, constants of equal content once, names that are never used twice.

Only operators whose form has not changed since opset 9 are used without asking for the opset, so the same code serves
models of every age.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from shardplan.layout.mesh import Mesh

Array = NDArray[Any]
DOMAIN, DOMAIN_VERSION = "shardplan.spmd", 1
"""The domain of the collectives; docs/export.md describes them."""
COORDINATES = "shardplan.coordinates"
"""The one initializer that tells a device who it is: its coordinates on the mesh, int64, one per axis."""
_AXES_ARE_OPERANDS_SINCE = {"ReduceSum": 13, "ReduceMean": 18, "ReduceMax": 18, "ReduceMin": 18}


class Graph:
    """What has been written so far. `opset`: version of the default domain. `taken`: names that others use."""

    def __init__(self, mesh: Mesh, opset: int, taken: Iterable[str] = ()) -> None:
        self.mesh, self.opset = mesh, opset
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.infos: dict[str, ValueInfoProto] = {}
        self.operators: set[str] = set()
        self._taken = {COORDINATES, *taken}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._numbers: dict[tuple[int, ...], str] = {}

    def inner(self) -> Graph:
        """The body of a loop: nodes of its own, constants and names of this graph, whose values it may read."""
        body = Graph(self.mesh, self.opset)
        body.constants, body.operators = self.constants, self.operators
        body._taken, body._constants, body._numbers = self._taken, self._constants, dict(self._numbers)
        return body

    def name(self, hint: str) -> str:
        """`hint`, or the first of `hint.1`, `hint.2` ... that is free."""
        for name in itertools.chain([hint], (f"{hint}.{number}" for number in itertools.count(1))):
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> NodeProto:
        """Append a node."""
        made: NodeProto = helper.make_node(kind, list(inputs), list(outputs), name=name, domain=domain, **attributes)
        self.nodes.append(made)
        return made

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """The one result of a node of the default domain. `to`: its name, if that is given; `to_type`: of a cast."""
        made = to or self.name(f"{next((name for name in inputs if name), 'shardplan')}/{kind}")
        if "to_type" in attributes:
            attributes["to"] = attributes.pop("to_type")
        self.node(kind, inputs, [made], name=self.name(f"shardplan/{made}"), **attributes)
        return made

    def constant(self, value: object, dtype: str = "int64") -> str:
        """The name of a constant with this value; `dtype`: lower-case ONNX name."""
        kind = helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper()))
        array = np.asarray(value).astype(kind)
        return self.array(array)

    def array(self, array: Array) -> str:
        """The name of a constant with the values of `array`."""
        key = (str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())
        if key not in self._constants:
            name = self.name(f"shardplan.constant.{len(self._constants)}")
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
            self._constants[key] = name
        return self._constants[key]

    def describe(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        """Record element type and shape of a value; returns its name."""
        kind = TensorProto.DataType.Value(dtype.upper())
        self.infos[name] = helper.make_tensor_value_info(name, kind, list(shape))
        return name

    def alike(self, name: str, other: str) -> str:
        """Record that a value has the type of another; returns its name."""
        self.infos[name] = ValueInfoProto()
        self.infos[name].CopyFrom(self.infos[other])
        self.infos[name].name = name
        return name

    def dtype(self, name: str) -> str:
        """Element type of a described value."""
        return str(TensorProto.DataType.Name(self.infos[name].type.tensor_type.elem_type)).lower()

    def number(self, axes: Sequence[int]) -> str:
        """An int64 scalar: which of the devices along `axes` (major first) this one is."""
        key = tuple(axes)
        if key not in self._numbers:
            weights = [0] * len(self.mesh)
            for place, axis in enumerate(axes):
                weights[axis] = self.mesh.ways(axes[place + 1 :])
            label = ",".join(self.mesh.names[axis] for axis in axes)
            name = self.name(f"shardplan.number.{label}")
            self._numbers[key] = self.op("MatMul", COORDINATES, self.constant(weights), to=name)
        return self._numbers[key]

    def reshape(self, value: str, shape: Sequence[int], to: str = "") -> str:
        """`value` in a shape without zeros."""
        return self.op("Reshape", value, self.constant(list(shape)), to=to)

    def transpose(self, value: str, perm: Sequence[int], to: str = "") -> str:
        """`value` with its dims in another order; itself where that is the order it has."""
        if not to and list(perm) == list(range(len(perm))):
            return value
        return self.op("Transpose", value, to=to, perm=list(perm))

    def take(self, value: str, indices: Sequence[int], dim: int) -> str:
        """The entries of one dim at these places."""
        return self.op("Gather", value, self.constant(list(indices)), axis=dim)

    def reduce(self, kind: str, value: str, dims: Sequence[int], *, keepdims: int = 1) -> str:
        """`ReduceSum`, `ReduceMean`, `ReduceMax` or `ReduceMin` over some dims."""
        if self.opset >= _AXES_ARE_OPERANDS_SINCE[kind]:
            return self.op(kind, value, self.constant(list(dims)), keepdims=keepdims)
        return self.op(kind, value, axes=list(dims), keepdims=keepdims)

    def collective(self, kind: str, value: str, axes: Sequence[int], to: str = "", **attributes: Any) -> str:
        """A collective over devices that differ only along `axes`, each group in the order of `axes`, major first."""
        groups = ordered_groups(self.mesh, axes)
        made = to or self.name(f"{value}/{kind}")
        names = [self.mesh.names[axis] for axis in axes]
        flat = [rank for group in groups for rank in group]
        size = self.mesh.ways(axes)
        self.node(
            kind, [value], [made], domain=DOMAIN, name=self.name(f"shardplan/{made}"), axis=names, groups=flat,
            group_size=size, **attributes,
        )  # fmt: skip
        return made

    def all_reduce(self, value: str, axes: Sequence[int], reduction: str = "sum") -> str:
        """The combined values of all devices along `axes`."""
        return self.collective("AllReduce", value, axes, reduction=reduction)


def ordered_groups(mesh: Mesh, axes: Sequence[int]) -> list[list[int]]:
    """Ranks that differ only along `axes`, each group in the order of `axes`, major first."""
    places = tuple(mesh.coordinates())
    return [sorted(group, key=lambda rank: mesh.number(axes, places[rank])) for group in mesh.groups(axes)]
