"""Type and shape inference of one node: by ONNX's own functions, then by ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from shardplan.model.attributes import attributes_of
from shardplan.model.dims import is_static
from shardplan.model.draft import Draft, Node
from shardplan.model.shapes import Shape, shapes_of

_T = onnx.TensorProto
_FLOATING = frozenset({_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16})
_SHAPE_ERROR = "[ShapeInferenceError]"
_MISREAD_DEFAULTS = {"STFT": "onesided"}
"""Operator -> an attribute of which ONNX's shape function takes another default than the standard says."""

Problem = Literal["", "incompatible-dims", "invalid-node"]


@dataclass(frozen=True, slots=True)
class Typed:
    """Element type (TensorProto number, 0 unknown) and shape (None: rank unknown); `kind`: `tensor`, `sequence` ..."""

    elem_type: int
    shape: Shape | None
    kind: str = "tensor"

    @property
    def is_static(self) -> bool:
        return self.elem_type != 0 and is_static(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements, unknown sizes counted as one."""
        return math.prod(1 if size is None else size for size in self.shape or ())


UNKNOWN = Typed(0, None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a node: types of its outputs; why some are unknown; whether its inputs are contradictory."""

    types: tuple[Typed, ...]
    reason: str = ""
    problem: Problem = ""


class NodeTyper:
    """Infers nodes of one draft."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(draft.opsets.items())]

    def infer(self, node: Node, typed: Mapping[str, Typed], data: Mapping[str, np.ndarray[Any, Any]]) -> Outcome:
        """The outputs of `node`, given the types of all values so far and the contents of small ones."""
        outcome = self._by_onnx(node, typed, data)
        if outcome.problem or all(entry.shape is not None or entry.kind != "tensor" for entry in outcome.types):
            return _checked(node, typed, outcome)
        return self._by_us(node, typed) or outcome

    def _by_onnx(self, node: Node, typed: Mapping[str, Typed], data: Mapping[str, np.ndarray[Any, Any]]) -> Outcome:
        nothing = (UNKNOWN,) * len(node.outputs)
        version = self.draft.opsets[node.domain]
        try:
            schema = defs.get_schema(node.op_type, version, node.domain)
        except defs.SchemaError:
            where = node.domain or "ai.onnx"
            return Outcome(nothing, f"no operator '{node.op_type}' is known in operator set {where} {version}")
        if any(typed[name].elem_type == 0 for name in node.reads):
            return Outcome(nothing, "the type of one of its inputs is unknown")
        try:
            return Outcome(self._call_or_retry(schema, node, typed, data))
        except (
            shape_inference.InferenceError,
            checker.ValidationError,
            RuntimeError,
            ValueError,
            TypeError,
        ) as problem:
            return Outcome(nothing, _plain(str(problem)), _problem(problem))

    def _call_or_retry(
        self,
        schema: defs.OpSchema,
        node: Node,
        typed: Mapping[str, Typed],
        data: Mapping[str, np.ndarray[Any, Any]],
    ) -> tuple[Typed, ...]:
        types = {name: typed[name] for name in node.inputs if name}
        try:
            return self._call(schema, node, types, typed, data)
        except checker.ValidationError:
            if not any(entry.elem_type in _FLOATING - {_T.FLOAT} for entry in types.values()):
                raise
            return self._as_float(schema, node, types, typed, data)

    def _call(
        self,
        schema: defs.OpSchema,
        node: Node,
        types: Mapping[str, Typed],
        typed: Mapping[str, Typed],
        data: Mapping[str, np.ndarray[Any, Any]],
    ) -> tuple[Typed, ...]:
        tensors = {name: numpy_helper.from_array(data[name], name) for name in node.reads if name in data}
        if any(entry.type == onnx.AttributeProto.GRAPH for entry in node.proto.attribute):
            found = self._nested(node, typed, tensors)
        else:
            found = shape_inference.infer_node_outputs(
                schema,
                _explicit(node.proto, schema),
                {name: _type_proto(entry) for name, entry in types.items()},
                tensors,
                opset_imports=self.opsets,
                ir_version=self.draft.ir_version,
            )
        return tuple([_typed(found.get(name)) for name in node.outputs])

    def _as_float(
        self,
        schema: defs.OpSchema,
        node: Node,
        types: Mapping[str, Typed],
        typed: Mapping[str, Typed],
        data: Mapping[str, np.ndarray[Any, Any]],
    ) -> tuple[Typed, ...]:
        """Exporters use bfloat16 where the standard does not list it (Einsum); shapes do not depend on it."""
        actual = next(entry.elem_type for entry in types.values() if entry.elem_type in _FLOATING)
        plain = {
            name: Typed(_T.FLOAT, entry.shape) if entry.elem_type in _FLOATING else entry
            for name, entry in types.items()
        }
        numbers = {name: value for name, value in data.items() if name not in plain or plain[name] == types[name]}
        found = self._call(schema, node, plain, typed, numbers)
        return tuple([Typed(actual, entry.shape) if entry.elem_type == _T.FLOAT else entry for entry in found])

    def _nested(
        self, node: Node, typed: Mapping[str, Typed], tensors: Mapping[str, onnx.TensorProto]
    ) -> Mapping[str, onnx.TypeProto]:
        """Infers a node with nested graphs as a model of its own, with outer values as its inputs.

        Inside of a nested graph ONNX knows only the type of an outer value, so known values are moved inside.
        """
        graph = onnx.GraphProto(name="nested", node=[node.proto])
        inside = [tensors[name] for name in node.captured if name in tensors]
        for attribute in graph.node[0].attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                attribute.g.initializer.extend(inside)
        for name in dict.fromkeys(node.reads):
            if name in tensors and name in node.inputs:
                graph.initializer.append(tensors[name])
            elif name not in tensors:
                graph.input.append(onnx.ValueInfoProto(name=name, type=_type_proto(typed[name])))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs if name)
        model = onnx.ModelProto(ir_version=max(self.draft.ir_version, 4), opset_import=self.opsets, graph=graph)
        done = shape_inference.infer_shapes(model, strict_mode=False, data_prop=True).graph
        return {value.name: value.type for value in [*done.output, *done.value_info]}

    def _by_us(self, node: Node, typed: Mapping[str, Typed]) -> Outcome | None:
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        inputs = [typed[name] if name else None for name in node.inputs]
        shapes = shapes_of(
            kind, attributes_of(node.proto), [None if entry is None else entry.shape for entry in inputs]
        )
        if shapes is None:
            return None
        floats = [entry.elem_type for entry in inputs if entry is not None and entry.elem_type in _FLOATING]
        first = next((entry.elem_type for entry in inputs if entry is not None), 0)
        shapes += [None] * (len(node.outputs) - len(shapes))
        types = []
        for name, shape in zip(node.outputs, shapes, strict=False):
            stored = self.draft.stored.get(name)
            types.append(Typed(stored.elem_type if stored and stored.elem_type else (floats or [first])[0], shape))
        return Outcome(tuple(types))


def _explicit(node: onnx.NodeProto, schema: defs.OpSchema) -> onnx.NodeProto:
    """The node with the default of the standard written out where ONNX's shape function takes another one."""
    name = _MISREAD_DEFAULTS.get(node.op_type, "")
    if name not in schema.attributes or any(entry.name == name for entry in node.attribute):
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.attribute.append(schema.attributes[name].default_value)
    return made


def is_optional_output(node: onnx.NodeProto, opset: int, place: int) -> bool:
    """Whether ONNX lets `node` leave its output at `place` away."""
    try:
        outputs = defs.get_schema(node.op_type, opset, node.domain).outputs
    except defs.SchemaError:
        return False
    return place < len(outputs) and outputs[place].option == defs.OpSchema.FormalParameterOption.Optional


def show(shape: Shape | None) -> str:
    """A shape for messages: `[8, ?, 64]`, `unknown`."""
    return "unknown" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _problem(found: Exception) -> Problem:
    if isinstance(found, checker.ValidationError):
        return "invalid-node"
    return "incompatible-dims" if _SHAPE_ERROR in str(found) else ""


def _checked(node: Node, typed: Mapping[str, Typed], outcome: Outcome) -> Outcome:
    """Checks the number of elements before and after a Reshape, which ONNX does not."""
    if node.op_type != "Reshape" or node.domain or not outcome.types[0].is_static:
        return outcome
    before, after = typed[node.inputs[0]], outcome.types[0]
    if not before.is_static or before.elements == after.elements:
        return outcome
    text = f"{before.elements} elements cannot be reshaped to {show(after.shape)}"
    return Outcome(outcome.types, text, "incompatible-dims")


def _type_proto(typed: Typed) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    tensor = proto.tensor_type
    tensor.elem_type = typed.elem_type
    if typed.shape is not None:
        tensor.shape.SetInParent()
        for size in typed.shape:
            dim = tensor.shape.dim.add()
            if size is not None:
                dim.dim_value = size
    return proto


def _typed(proto: onnx.TypeProto | None) -> Typed:
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    kind = str(proto.WhichOneof("value")).removesuffix("_type")
    if kind != "tensor":
        return Typed(0, None, kind)
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return Typed(tensor.elem_type, None)
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return Typed(tensor.elem_type, tuple(sizes))


def _plain(text: str) -> str:
    """ONNX's message without its bracketed tags."""
    lines = [line.split("] ", 1)[-1] if line.startswith("[") else line for line in text.strip().splitlines()]
    return " ".join(line.strip() for line in lines if line.strip())[:500]
