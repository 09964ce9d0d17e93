"""The ONNX graph under construction that the primitives of a jaxpr write into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx
from jax import dtypes
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 21
_WEIGHTS = "weights"
"""The file in which the weights would be; it is never opened."""


def onnx_type(dtype: Any) -> int:
    """ONNX's number of a dtype of JAX; a key of random numbers is one number. Raises `TypeError` for one that ONNX does
    not have."""
    if dtypes.issubdtype(dtype, dtypes.prng_key):
        return int(onnx.TensorProto.UINT32)
    name = np.dtype(dtype).name
    if name == "bfloat16":
        return int(onnx.TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def value_info(name: str, aval: Any) -> onnx.ValueInfoProto:
    """A value of the shape and dtype of an abstract one."""
    return helper.make_tensor_value_info(name, onnx_type(aval.dtype), list(aval.shape))


@dataclass
class Step:
    """What an equation has become: names of what it reads and makes, and the nodes that it is; `inner`: the steps of
    what it calls; `loop`: the name of the node, if that is a scan."""

    reads: Sequence[str]
    makes: Sequence[str] = ()
    nodes: Sequence[str] = ()
    inner: list[Step] = field(default_factory=list)
    loop: str = ""


@dataclass
class Graph:
    """Nodes and constants so far, and what each equation has become. `scope`, `line`: where in the
    program nodes come from; `drawn`: values that are random numbers, of bodies too."""

    INT64: ClassVar[int] = int(onnx.TensorProto.INT64)

    scope: str = ""
    line: Mapping[str, Any] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    counted: list[int] = field(default_factory=lambda: [0])
    drawn: set[str] = field(default_factory=set)

    def body(self) -> Graph:
        """A graph inside this one; no name is in both."""
        return Graph(self.scope, self.line, counted=self.counted, drawn=self.drawn)

    def name(self, kind: str) -> str:
        """A new name."""
        self.counted[0] += 1
        return f"{kind}_{self.counted[0]}"

    def add(self, kind: str, inputs: Sequence[str], results: int = 1, **attributes: Any) -> Any:
        """A node; the name of its result, or of all of several."""
        made = [self.name(kind.lower()) for _ in range(results)]
        name = f"{self.scope}/{made[0]}" if self.scope else made[0]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made[0] if results == 1 else made

    def constant(self, value: Any) -> str:
        """The name of a known value."""
        is_key = dtypes.issubdtype(getattr(value, "dtype", np.float32), dtypes.prng_key)
        name, array = self.name("const"), np.zeros(value.shape, np.uint32) if is_key else np.asarray(value)
        if array.dtype.name == "bfloat16":
            made = helper.make_tensor(name, onnx.TensorProto.BFLOAT16, array.shape, array.astype(np.float32).flatten())
        else:
            made = numpy_helper.from_array(array, name)
        self.constants.append(made)
        return name

    def ints(self, *values: int) -> str:
        """A list of numbers, as shapes and axes are given."""
        return self.constant(np.asarray(values, dtype=np.int64))

    def ints0(self, value: int) -> str:
        """A number of no dim."""
        return self.constant(np.asarray(value, dtype=np.int64))

    def permuted(self, name: str, perm: Sequence[int]) -> str:
        """A value with its dims in another order; itself where that is the order they have."""
        dims = [int(dim) for dim in perm]
        return name if dims == list(range(len(dims))) else str(self.add("Transpose", [name], perm=dims))

    def parts(self, name: str) -> Sequence[str]:
        """What a value is the concatenation of; itself where it is none."""
        made = self._makers().get(name)
        return list(made.input) if made is not None and made.op_type == "Concat" else [name]

    def value(self, name: str) -> Any:
        """The value of a name that is made of constants alone, else None."""
        makers, constants = self._makers(), {one.name: one for one in self.constants}
        needed, waiting, leaves = {}, [name], {}
        while waiting:
            each = waiting.pop()
            if each in constants:
                leaves[each] = constants[each]
            elif each not in makers:
                return None
            elif each not in needed:
                needed[each] = makers[each]
                waiting.extend(makers[each].input)
        nodes = [node for node in self.nodes if any(each in needed for each in node.output)]
        result = helper.make_empty_tensor_value_info(name)
        whole = helper.make_graph(nodes, "constants", [], [result], initializer=list(leaves.values()))
        model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)])
        return ReferenceEvaluator(model).run(None, {})[0]

    def _makers(self) -> dict[str, onnx.NodeProto]:
        return {made: node for node in self.nodes for made in node.output}


Row = Callable[["Graph", Any, Sequence[str]], Any]
"""Writes the nodes of an equation for inputs of these names; the name of the result, or names of several."""


def weight(name: str, aval: Any) -> onnx.TensorProto:
    """A weight of which the values are elsewhere."""
    made = onnx.TensorProto(name=name, data_type=onnx_type(aval.dtype), dims=list(aval.shape))
    made.data_location = onnx.TensorProto.EXTERNAL
    made.external_data.add(key="location", value=_WEIGHTS)
    return made
