"""The ONNX graph under construction that the primitives of a jaxpr write into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """ONNX's number of a dtype of JAX; a key of random numbers counts as one number. Raises `TypeError` for a dtype
    that ONNX does not have."""
    if dtypes.issubdtype(dtype, dtypes.prng_key):
        return int(onnx.TensorProto.UINT32)
    name = np.dtype(dtype).name
    if name == "bfloat16":
        return int(onnx.TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def value_info(name: str, aval: Any) -> onnx.ValueInfoProto:
    """The ONNX value of this name, with the shape and dtype of an abstract value."""
    return helper.make_tensor_value_info(name, onnx_type(aval.dtype), list(aval.shape))


@dataclass
class Step:
    """What was written for one equation: the names that it reads and makes, and its nodes. `permuted`: by the name of
    an operand or result that differs from a value inside only in the order of dims, that value, and which of its dims
    each dim is. `inner`: the steps of the jaxpr that it calls; `bodies`: those of the bodies of a node, a loop or a
    choice: the body of a loop has the number 0, the condition under which it goes on 1; branches have their numbers.
    """

    reads: Sequence[str]
    makes: Sequence[str] = ()
    nodes: Sequence[str] = ()
    permuted: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    inner: list[Step] = field(default_factory=list)
    bodies: Mapping[int, Body] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """What was written for a jaxpr in the body of a node. `within`: what names inside have before them in a plan: the
    name of a loop, or of a choice and its branch. `takes`, `gives`: the names of its arguments and its results."""

    steps: Sequence[Step]
    within: str
    takes: Sequence[str] = ()
    gives: Sequence[str] = ()


@dataclass
class Graph:
    """The nodes and constants written so far, and the step of each equation. `scope`, `line`: the place in the program
    that new nodes come from. `drawn`: the names of random numbers, those inside bodies included. `imaginary`: the names
    of imaginary parts, by those of the complex values, which are those of their real parts. `counting`: by the result
    of a gather whose numbers for some dims only count the rows, those operand dims and the dim of the numbers that runs
    along with each. `taken`: names of arguments, which no new name is."""

    INT64: ClassVar[int] = int(onnx.TensorProto.INT64)

    scope: str = ""
    line: Mapping[str, Any] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    counted: list[int] = field(default_factory=lambda: [0])
    drawn: set[str] = field(default_factory=set)
    imaginary: dict[str, str] = field(default_factory=dict)
    counting: dict[str, Mapping[int, int]] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def body(self) -> Graph:
        """A graph inside this one; no name occurs in both."""
        return Graph(
            self.scope, self.line, counted=self.counted, drawn=self.drawn, imaginary=self.imaginary,
            counting=self.counting, taken=self.taken,
        )  # fmt: skip

    def name(self, kind: str) -> str:
        """A new name."""
        self.counted[0] += 1
        name = f"{kind}_{self.counted[0]}"
        return self.name(kind) if name in self.taken else name

    def add(self, kind: str, inputs: Sequence[str], results: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its result, or the names of several results."""
        made = [self.name(kind.lower()) for _ in range(results)]
        name = f"{self.scope}/{made[0]}" if self.scope else made[0]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made[0] if results == 1 else made

    def constant(self, value: Any) -> str:
        """Add a constant; returns its name."""
        is_key = dtypes.issubdtype(getattr(value, "dtype", np.float32), dtypes.prng_key)
        name, array = self.name("const"), np.zeros(value.shape, np.uint32) if is_key else np.asarray(value)
        if np.iscomplexobj(array):
            name = self.constant(array.real)
            if array.imag.any():
                self.imaginary[name] = self.constant(array.imag)
            return name
        if array.dtype.name == "bfloat16":
            made = helper.make_tensor(name, onnx.TensorProto.BFLOAT16, array.shape, array.astype(np.float32).flatten())
        else:
            made = numpy_helper.from_array(array, name)
        self.constants.append(made)
        return name

    def ints(self, *values: int) -> str:
        """A constant list of integers, as ONNX takes shapes and axes."""
        return self.constant(np.asarray(values, dtype=np.int64))

    def ints0(self, value: int) -> str:
        """A constant integer without dims."""
        return self.constant(np.asarray(value, dtype=np.int64))

    def permuted(self, name: str, perm: Sequence[int]) -> str:
        """A value with its dims permuted; the value itself where `perm` changes nothing."""
        dims = [int(dim) for dim in perm]
        return name if dims == list(range(len(dims))) else str(self.add("Transpose", [name], perm=dims))

    def permuted_inside(
        self, first: int, reads: Sequence[str], makes: Sequence[str]
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """`Step.permuted` of the nodes from `first` on, which read and make these names."""
        nodes = self.nodes[first:]
        inside = {made for node in nodes for made in node.output}
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for node in nodes:
            perm = next((tuple(each.ints) for each in node.attribute if each.name == "perm"), ())
            if node.op_type != "Transpose" or not perm:
                continue
            (value,), (made,) = node.input, node.output
            if made in makes and value in inside:
                found[made] = value, perm
            elif made not in makes and [*reads].count(value) == 1:
                found[value] = made, tuple(perm.index(dim) for dim in range(len(perm)))
        return found

    def parts(self, name: str) -> Sequence[str]:
        """The inputs of the concatenation that makes the value; the value itself where no concatenation makes it."""
        made = self._makers().get(name)
        return list(made.input) if made is not None and made.op_type == "Concat" else [name]

    def value(self, name: str) -> Any:
        """The value of a name that is computed from constants alone, and by no loop or branch; else None."""
        makers, constants = self._makers(), {one.name: one for one in self.constants}
        needed, waiting, leaves = {}, [name], {}
        while waiting:
            each = waiting.pop()
            if each in constants:
                leaves[each] = constants[each]
            elif each not in makers or any(attribute.HasField("g") for attribute in makers[each].attribute):
                return None
            elif each not in needed:
                needed[each] = makers[each]
                waiting.extend(makers[each].input)
        nodes = [node for node in self.nodes if any(each in needed for each in node.output)]
        result = helper.make_empty_tensor_value_info(name)
        whole = helper.make_graph(nodes, "constants", [], [result], initializer=list(leaves.values()))
        model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)])
        return ReferenceEvaluator(model).run(None, {})[0]

    def unread(self, names: Sequence[str], results: Sequence[str]) -> list[str]:
        """Which of `names` the results do not need."""
        needed, nodes = set(results), reversed(self.nodes)
        for node in nodes:
            if needed.intersection(node.output):
                needed.update(_read(node))
        return [name for name in names if name not in needed]

    def _makers(self) -> dict[str, onnx.NodeProto]:
        return {made: node for node in self.nodes for made in node.output}


Row = Callable[["Graph", Any, Sequence[str]], Any]
"""Writes the nodes of an equation for inputs of these names; the name of the result, or names of several."""


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those in its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        yield from (output.name for output in attribute.g.output)
        for inner in attribute.g.node:
            yield from _read(inner)


def weight(name: str, aval: Any) -> onnx.TensorProto:
    """A weight without values: they are declared to be in another file."""
    made = onnx.TensorProto(name=name, data_type=onnx_type(aval.dtype), dims=list(aval.shape))
    made.data_location = onnx.TensorProto.EXTERNAL
    made.external_data.add(key="location", value=_WEIGHTS)
    return made
