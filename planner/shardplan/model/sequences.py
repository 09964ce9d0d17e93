"""Sequence operators that an exporter uses for a split, as one `Split`.

`torch.chunk`, `split` and `unbind` are exported as `SplitToSequence` and a `SequenceAt` for every piece that is used. A
plan knows tensors alone, so both are rewritten while a file is read, where sizes and places are constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_AXES_ARE_INPUTS = 13
"""From this operator set on, `Split` and `Squeeze` take sizes and axes as inputs."""


@dataclass(frozen=True)
class _Lookup:
    """What the rewriting looks up: `makers` by value, `dims` that the file stores, `opset`."""

    proto: onnx.GraphProto
    makers: Mapping[str, onnx.NodeProto]
    initializers: Mapping[str, onnx.TensorProto]
    dims: Mapping[str, tuple[int, ...]]
    opset: int

    def constant(self, name: str) -> NDArray[np.int64] | None:
        """The integers of a constant value."""
        if name in self.initializers:
            return np.asarray(numpy_helper.to_array(self.initializers[name]))
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "Constant":
            return None
        attribute = maker.attribute[0]
        value = helper.get_attribute_value(attribute)
        return np.asarray(numpy_helper.to_array(value) if attribute.name == "value" else value)


def without_sequences(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every `SplitToSequence` of known sizes, whose pieces are taken out at known places, as a `Split`.

    Others stay, and the model with them if there is nothing to rewrite.
    """
    kinds = {node.op_type for node in proto.graph.node}
    opset = next((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    if not kinds >= {"SplitToSequence", "SequenceAt"} or not opset:
        return proto
    graph = _graph(proto.graph, opset)
    made = {
        node.output[0]: pieces
        for node in proto.graph.node
        if node.op_type == "SplitToSequence" and (pieces := _pieces(graph, node)) is not None
    }
    if not made:
        return proto
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    del found.graph.node[:]
    for node in proto.graph.node:
        if node.op_type == "SplitToSequence" and node.output[0] in made:
            found.graph.node.extend(_split(graph, node, *made[node.output[0]], found.graph.initializer))
        elif node.op_type != "SequenceAt" or node.input[0] not in made:
            found.graph.node.append(node)
    return found


def _graph(proto: onnx.GraphProto, opset: int) -> _Lookup:
    values = [*proto.value_info, *proto.input]
    dims = {
        value.name: tuple(each.dim_value if each.HasField("dim_value") else -1 for each in shape.dim)
        for value in values
        if value.type.tensor_type.HasField("shape") and (shape := value.type.tensor_type.shape)
    }
    tensors = {tensor.name: tensor for tensor in proto.initializer}
    makers = {name: node for node in proto.node for name in node.output}
    return _Lookup(proto, makers, tensors, dims | {name: tuple(tensor.dims) for name, tensor in tensors.items()}, opset)


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(entry.i) for entry in node.attribute if entry.name == name), default)


def _pieces(graph: _Lookup, node: onnx.NodeProto) -> tuple[list[int], dict[int, list[str]]] | None:
    """Sizes of the pieces and, by place, the values that they are called; None where that is not known."""
    sizes = _sizes(graph, node)
    if not sizes:
        return None
    names: dict[int, list[str]] = {}
    for reader in _readers(graph.proto, node.output[0]):
        place = graph.constant(reader.input[1]) if reader is not None and reader.op_type == "SequenceAt" else None
        if reader is None or place is None or not -len(sizes) <= int(place) < len(sizes):
            return None
        names.setdefault(int(place) % len(sizes), []).append(reader.output[0])
    return sizes, names


def _sizes(graph: _Lookup, node: onnx.NodeProto) -> list[int]:
    """Of a dim that the file knows: all given, or pieces of one size with a smaller one in the end."""
    dims, axis = graph.dims.get(node.input[0], ()), _attribute(node, "axis", 0)
    size = dims[axis] if -len(dims) <= axis < len(dims) else -1
    given = graph.constant(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(1)
    if given is None:
        return []
    if given.ndim:
        return [int(each) for each in given]
    step = int(given)
    return [min(step, size - start) for start in range(0, size, step)] if size > 0 and step > 0 else []


def _readers(graph: onnx.GraphProto, name: str) -> Iterator[onnx.NodeProto | None]:
    """The nodes that read a value; None where a nested graph does, or it is a result."""
    if any(value.name == name for value in graph.output):
        yield None
    for node in graph.node:
        if name in node.input:
            yield node
        if any(_is_read(inner, name) for inner in _nested(node)):
            yield None


def _nested(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    return [graph for entry in node.attribute for graph in ([entry.g] if entry.HasField("g") else entry.graphs)]


def _is_read(graph: onnx.GraphProto, name: str) -> bool:
    return any(True for _ in _readers(graph, name))


def _split(
    graph: _Lookup,
    node: onnx.NodeProto,
    sizes: list[int],
    names: dict[int, list[str]],
    initializers: list[onnx.TensorProto],
) -> list[onnx.NodeProto]:
    """The nodes that stand for `node` and those that take its pieces."""
    name, squeezed = node.output[0], not _attribute(node, "keepdims", 1) and len(node.input) < 2
    apart = {place: wanted[0] for place, wanted in names.items() if not squeezed}
    first = [apart.get(place, f"{name}_piece_{place}") for place in range(len(sizes))]
    axis = _attribute(node, "axis", 0)
    made = [_with_list(graph, "Split", node.input[0], first, f"{name}_sizes", sizes, initializers, axis=axis)]
    made[0].name = node.name
    made[0].metadata_props.extend(node.metadata_props)
    for place, wanted in sorted(names.items()):
        if squeezed:
            given = f"{name}_axis_{place}"
            made.append(_with_list(graph, "Squeeze", first[place], wanted[:1], given, [axis], initializers))
        made += [helper.make_node("Identity", wanted[:1], [other], f"{name}_{other}") for other in wanted[1:]]
    return made


def _with_list(
    graph: _Lookup,
    kind: str,
    source: str,
    results: list[str],
    name: str,
    integers: list[int],
    initializers: list[onnx.TensorProto],
    **attributes: int,
) -> onnx.NodeProto:
    """A node with a list of integers, which is its second input called `name`, before that an attribute."""
    if graph.opset < _AXES_ARE_INPUTS:
        listed = {"split" if kind == "Split" else "axes": integers}
        return helper.make_node(kind, [source], results, name, **listed, **attributes)
    initializers.append(numpy_helper.from_array(np.array(integers, dtype=np.int64), name))
    return helper.make_node(kind, [source, name], results, name, **attributes)
