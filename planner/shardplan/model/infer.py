"""One pass over the graph in execution order: the shape of every value, and the values of shape arithmetic.

Each node is inferred by ONNX's own function from the shapes and known values of its inputs, then by `shapes`, then from
what the file stores for the value; nodes whose inputs are all known are computed (`evaluate`). A node is inferred once
per distinct signature, so repeated layers cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from shardplan.errors import Diagnostic, error, warning
from shardplan.model.attributes import array_of, attributes_of, has_data
from shardplan.model.dims import Binding, is_static
from shardplan.model.draft import Draft, Node
from shardplan.model.evaluate import LIMIT_ELEMENTS, NEVER, value_of
from shardplan.model.shapes import shapes_of
from shardplan.model.weights import Weights

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
_DATA_LIMIT_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class Typed:
    """Element type (TensorProto number, 0 unknown) and shape (None: rank unknown); `kind`: `tensor`, `sequence` ..."""

    elem_type: int
    shape: Shape | None
    kind: str = "tensor"

    @property
    def is_static(self) -> bool:
        return self.elem_type != 0 and is_static(self.shape)


@dataclass(slots=True)
class Inferred:
    """`typed`: every value. `known`: values of small constants, weights excluded. `reasons`: node name -> why ONNX could
    not infer it. `problems`, `warnings`: contradictions, and stored shapes that no longer hold."""

    typed: dict[str, Typed]
    known: dict[str, Array]
    reasons: dict[str, str] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)


def infer(draft: Draft, binding: Binding, weights: Weights) -> Inferred:
    """Infer every value of `draft` under `binding`."""
    inferred = Inferred({}, {})
    for name, stored in draft.inputs.items():
        inferred.typed[name] = Typed(stored.elem_type, binding.shape_of(name, stored))
    _Pass(draft, binding, weights, inferred).run()
    return inferred


class _Pass:
    """The state of one pass: what is known so far, and results by signature."""

    def __init__(self, draft: Draft, binding: Binding, weights: Weights, inferred: Inferred) -> None:
        self.draft = draft
        self.binding = binding
        self.weights = weights
        self.out = inferred
        self.opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(draft.opsets.items())]
        self.by_signature: dict[Hashable, tuple[list[Typed] | None, str]] = {}
        self.data_keys: dict[str, Hashable] = {}
        self.stale = 0

    def run(self) -> None:
        for name, tensor in self.draft.initializers.items():
            self.out.typed[name] = Typed(tensor.data_type, tuple(tensor.dims))
            if name not in self.weights.trained:
                self._read_constant(name, tensor)
        for node in self.draft.nodes:
            self._visit(node)

    def _read_constant(self, name: str, tensor: onnx.TensorProto) -> None:
        if math.prod(tensor.dims) > LIMIT_ELEMENTS or not has_data(tensor):
            return
        try:
            self.out.known[name] = array_of(tensor)
        except (ValueError, TypeError, RuntimeError) as problem:
            text = f"constant '{name}' is stored with dims {list(tensor.dims)}, which its data does not fill"
            self.out.problems.append(error("bad-tensor", text, detail=str(problem)))

    def _visit(self, node: Node) -> None:
        results, reason = self._types(node)
        for place, name in enumerate(node.outputs):
            if name:
                found = results[place] if results and place < len(results) else Typed(0, None)
                self.out.typed[name] = self._with_stored(node, name, found)
        if reason and not all(self.out.typed[name].is_static for name in node.outputs if name):
            self.out.reasons[node.name] = reason
        if node.name not in self.weights.made_by:
            self._compute(node)

    def _types(self, node: Node) -> tuple[list[Typed] | None, str]:
        attributes = tuple([entry.SerializeToString() for entry in node.proto.attribute])
        inputs = tuple([self.out.typed[name] if name else None for name in node.inputs])
        data = tuple([self._data_key(name) for name in node.inputs])
        signature = (node.op_type, node.domain, attributes, inputs, data, len(node.outputs), tuple(node.captured))
        if signature not in self.by_signature:
            self.by_signature[signature] = self._infer(node)
        results, reason = self.by_signature[signature]
        if reason.startswith("!"):
            reason = reason[1:]
            if self.binding.sizes or not self._stored_are_static(node):
                self.out.problems.append(self._contradiction(node, reason))
        return results, reason

    def _data_key(self, name: str) -> Hashable:
        """The content of a small known value, as a key; None when unknown."""
        value = self.out.known.get(name)
        if value is None or value.size > _DATA_LIMIT_ELEMENTS:
            return None
        if name not in self.data_keys:
            content = tuple(value.tolist()) if value.dtype == object else value.tobytes()
            self.data_keys[name] = (value.shape, str(value.dtype), content)
        return self.data_keys[name]

    def _infer(self, node: Node) -> tuple[list[Typed] | None, str]:
        """Types of the outputs and, where ONNX fails, why; a reason that starts with `!` is a contradiction."""
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        results, reason = self._by_onnx(node)
        if results is not None and all(entry.shape is not None for entry in results) and results:
            return results, reason
        inputs = [self.out.typed[name] if name else None for name in node.inputs]
        own = shapes_of(kind, attributes_of(node.proto), [None if entry is None else entry.shape for entry in inputs])
        if own is None:
            return results, reason
        elem_type = next((entry.elem_type for entry in inputs if entry is not None), 0)
        own += [None] * (len(node.outputs) - len(own))
        return [Typed(self._elem_type(node, place, elem_type), own[place]) for place in range(len(node.outputs))], ""

    def _elem_type(self, node: Node, place: int, first: int) -> int:
        """The stored element type, else that of the first input; embedding-like operators take that of their tables."""
        stored = self.draft.stored.get(node.outputs[place])
        if stored is not None and stored.elem_type:
            return stored.elem_type
        floats = [
            self.out.typed[name].elem_type
            for name in node.inputs
            if name and self.out.typed[name].elem_type in _FLOATING
        ]
        return first if first in _FLOATING or not floats else floats[-1]

    def _by_onnx(self, node: Node) -> tuple[list[Typed] | None, str]:
        version = self.draft.opsets[node.domain]
        try:
            schema = defs.get_schema(node.op_type, version, node.domain)
        except defs.SchemaError:
            return (
                None,
                f"operator set {node.domain or 'ai.onnx'} {version} has no operator '{node.op_type}' known here",
            )
        try:
            if node.captured or any(entry.type == onnx.AttributeProto.GRAPH for entry in node.proto.attribute):
                found = self._nested(node)
            else:
                found = shape_inference.infer_node_outputs(
                    schema,
                    node.proto,
                    {name: _type_proto(self.out.typed[name]) for name in node.inputs if name},
                    {name: self._tensor(name) for name in node.inputs if self.data_keys.get(name) is not None},
                    opset_imports=self.opsets,
                    ir_version=self.draft.ir_version,
                )
        except Exception as problem:  # noqa: BLE001 - onnx raises several C++ types for one thing: this node cannot be
            return None, "!" + _plain(str(problem))
        return [_typed(found.get(name)) for name in node.outputs], ""

    def _tensor(self, name: str) -> onnx.TensorProto:
        return numpy_helper.from_array(self.out.known[name], name)

    def _nested(self, node: Node) -> Mapping[str, onnx.TypeProto]:
        """Infer a node with nested graphs as a model of its own, outer values as its inputs."""
        graph = onnx.GraphProto(name="nested", node=[node.proto])
        for name in dict.fromkeys(node.reads):
            if name in self.out.known:
                graph.initializer.append(self._tensor(name))
            else:
                graph.input.append(onnx.ValueInfoProto(name=name, type=_type_proto(self.out.typed[name])))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs if name)
        model = onnx.ModelProto(ir_version=max(self.draft.ir_version, 4), opset_import=self.opsets, graph=graph)
        done = shape_inference.infer_shapes(model, strict_mode=False, data_prop=True).graph
        return {value.name: value.type for value in [*done.output, *done.value_info]}

    def _stored_are_static(self, node: Node) -> bool:
        return all(
            name in self.draft.stored and is_static(self.binding.shape_of(name, self.draft.stored[name]))
            for name in node.outputs
            if name
        )

    def _with_stored(self, node: Node, name: str, found: Typed) -> Typed:
        """What was inferred, completed by what the file stores."""
        stored = self.draft.stored.get(name)
        if stored is None or found.kind != "tensor":
            return found
        shape = self.binding.shape_of(name, stored)
        elem_type = found.elem_type or stored.elem_type
        if found.shape is None:
            return Typed(elem_type, shape)
        if shape is None or shape == found.shape:
            return found if found.elem_type else Typed(elem_type, found.shape)
        if len(shape) == len(found.shape):
            merged = tuple(size if size is not None else kept for size, kept in zip(found.shape, shape, strict=True))
            if all(kept is None or kept == size for size, kept in zip(merged, shape, strict=True)):
                return Typed(elem_type, merged)
            shape_now: Shape = merged
        else:
            shape_now = found.shape
        self._note_stale(node, name, shape, shape_now)
        return Typed(elem_type, shape_now)

    def _note_stale(self, node: Node, name: str, stored: Shape, found: Shape) -> None:
        """One warning for all: a file whose input sizes were edited disagrees everywhere."""
        self.stale += 1
        summary = f"the file stores shapes that do not follow from its inputs ({self.stale} values); they are ignored"
        if self.stale == 1:
            self._stale_detail = f"'{name}' of {node.label}: stored {_show(stored)}, inferred {_show(found)}"
            self.out.warnings.append(warning("stale-shape", summary))
        self.out.warnings[-1] = warning("stale-shape", summary, detail=self._stale_detail)

    def _contradiction(self, node: Node, reason: str) -> Diagnostic:
        shapes = [f"{name}: {_show(self.out.typed[name].shape)}" for name in dict.fromkeys(filter(None, node.inputs))]
        flags = " ".join(f"--dim {name}={size}" for name, size in sorted(self.binding.sizes.items()))
        return error(
            "incompatible-dims",
            f"Incompatible dimensions at {node.label}",
            detail="\n".join([*shapes, reason]),
            hint=f"check {flags}" if flags else "",
        )

    def _compute(self, node: Node) -> None:
        outputs = [self.out.typed[name] for name in node.outputs if name]
        if node.op_type in ("Shape", "Size") and not node.domain:
            self._compute_shape(node)
            return
        known = self.out.known
        if node.op_type in NEVER or not all(name in known for name in node.reads) or node.captured:
            return
        if node.op_type == "Constant" and any(
            entry.type == onnx.AttributeProto.TENSOR for entry in node.proto.attribute
        ):
            for entry in node.proto.attribute:
                if entry.name == "value":
                    self._read_constant(node.outputs[0], entry.t)
            return
        if any(not typed.is_static or _elements(typed) > LIMIT_ELEMENTS for typed in outputs):
            return
        inputs = [known[name] if name else None for name in node.inputs]
        values = value_of(node.proto, attributes_of(node.proto), inputs, self.draft.opsets[node.domain])
        for name, value in zip(node.outputs, values or (), strict=False):
            if name and value.shape == self.out.typed[name].shape:
                known[name] = value

    def _compute_shape(self, node: Node) -> None:
        shape = self.out.typed[node.inputs[0]].shape
        if shape is None:
            return
        attributes = attributes_of(node.proto)
        part = shape[attributes.get("start", 0) : attributes.get("end")]  # type: ignore[misc]
        if None in part or (node.op_type == "Size" and None in shape):
            return
        value = np.array(part if node.op_type == "Shape" else math.prod(entry or 0 for entry in shape), np.int64)
        value.flags.writeable = False
        self.out.known[node.outputs[0]] = value


def is_optional_output(node: onnx.NodeProto, opset: int, place: int) -> bool:
    """Whether ONNX lets `node` leave its output at `place` away."""
    try:
        outputs = defs.get_schema(node.op_type, opset, node.domain).outputs
    except defs.SchemaError:
        return False
    return place < len(outputs) and outputs[place].option == defs.OpSchema.FormalParameterOption.Optional


def _elements(typed: Typed) -> int:
    return math.prod(size or 0 for size in typed.shape or ())


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
        return Typed(0, None)
    kind = str(proto.WhichOneof("value")).removesuffix("_type")
    if kind != "tensor":
        return Typed(0, None, kind)
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return Typed(tensor.elem_type, None)
    return Typed(
        tensor.elem_type, tuple([dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim])
    )


def _plain(text: str) -> str:
    """ONNX's message without its bracketed tags and source positions."""
    lines = [line.split("] ", 1)[-1] if line.startswith("[") else line for line in text.strip().splitlines()]
    return " ".join(line.strip() for line in lines if line.strip())[:500]


def _show(shape: Shape | None) -> str:
    return "unknown" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


_FLOATING = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)
