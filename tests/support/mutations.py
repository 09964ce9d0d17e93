"""Mutations of ONNX models that keep the format and break the meaning: arities, attributes, dims, types, operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
from hypothesis import strategies as st
from onnx import defs, helper

from shardplan.rules import FAMILIES

Draw = Callable[[st.SearchStrategy[Any]], Any]
NUMBERS = st.sampled_from((-(1 << 63), -(1 << 31), -3, -2, -1, 0, 1, 2, 3, 5, 7, 31, 1 << 12, 1 << 31, (1 << 63) - 1))
VERSIONS = st.sampled_from((-1, 0, 1, 5, 6, 7, 9, 10, 11, 13, 17, 18, 19, 21, 22, 23, 24, 99, 1 << 31, (1 << 63) - 1))
PLAIN = sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""})
MICROSOFT = sorted(kind.removeprefix("com.microsoft.") for kind in FAMILIES["microsoft"])


def mutated(model: onnx.ModelProto, draw: Draw) -> onnx.ModelProto:
    """A copy of `model` with one to three mutations."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(draw(st.integers(1, 3))):
        graph = draw(st.sampled_from(list(graphs(copy.graph))))
        draw(st.sampled_from(MUTATIONS))(copy, graph, draw)
    return copy


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and those nested in it."""
    yield graph
    for node in graph.node:
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.GRAPH:
                yield from graphs(entry.g)


def _node(graph: onnx.GraphProto, draw: Draw) -> onnx.NodeProto:
    return graph.node[draw(st.integers(0, len(graph.node) - 1))] if graph.node else onnx.NodeProto()


def _changed(entries: list[Any], values: st.SearchStrategy[Any], draw: Draw) -> list[Any]:
    """`entries` with one gone, one more, one that is another, or two exchanged."""
    at = draw(st.integers(0, max(0, len(entries) - 1)))
    what = draw(st.sampled_from(("drop", "add", "set", "swap", "clear")))
    if what == "add" or not entries:
        return [*entries[:at], draw(values), *entries[at:]]
    if what == "drop":
        return [*entries[:at], *entries[at + 1 :]]
    if what == "swap":
        return [*entries[1:], entries[0]]
    return [] if what == "clear" else [*entries[:at], draw(values), *entries[at + 1 :]]


def _arity(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    node = _node(graph, draw)
    names = st.sampled_from(["", "nowhere", *(name for entry in graph.node for name in entry.output)])
    if draw(st.booleans()):
        node.input[:] = _changed(list(node.input), names, draw)
    else:
        node.output[:] = _changed(list(node.output), st.sampled_from(["", "new"]), draw)


def _borders(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    """What a graph takes and gives: a body or a branch with more or less of it."""
    values = draw(st.sampled_from([graph.input, graph.output]))
    kept = _changed(list(values), st.sampled_from(list(values) or [onnx.ValueInfoProto(name="more")]), draw)
    copies = [helper.make_value_info(value.name, value.type) for value in kept]
    del values[:]
    values.extend(copies)


def _kind(model: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    node = _node(graph, draw)
    if draw(st.booleans()):
        node.op_type, node.domain = draw(st.sampled_from(PLAIN)), ""
    else:
        node.op_type, node.domain = draw(st.sampled_from(MICROSOFT)), "com.microsoft"
        if all(entry.domain != "com.microsoft" for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _attribute(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    node = _node(graph, draw)
    if node.attribute and draw(st.booleans()):
        entry = node.attribute[draw(st.integers(0, len(node.attribute) - 1))]
        if entry.type == onnx.AttributeProto.INTS:
            entry.ints[:] = _changed(list(entry.ints), NUMBERS, draw)
        elif entry.type == onnx.AttributeProto.INT:
            entry.i = draw(NUMBERS)
        elif entry.type == onnx.AttributeProto.TENSOR:
            entry.t.dims[:] = _changed(list(entry.t.dims), NUMBERS, draw)
        elif draw(st.booleans()):
            node.attribute.remove(entry)
        else:
            entry.type = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 11]))
        return
    try:
        known = sorted(defs.get_schema(node.op_type, domain=node.domain).attributes)
    except defs.SchemaError:
        known = []
    name = draw(st.sampled_from([*known, "axis", "axes", "nonsense"]))
    values = st.one_of(
        NUMBERS, st.lists(NUMBERS, max_size=4), st.floats(width=32), st.sampled_from(["", "SAME_UPPER", "é"])
    )
    kept = [entry for entry in node.attribute if entry.name != name]
    value = draw(values)
    made = helper.make_attribute(name, value, attr_type=onnx.AttributeProto.INTS if value == [] else None)
    del node.attribute[:]
    node.attribute.extend([*kept, made])


def _dims(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    tensors = list(graph.initializer)
    if tensors and (not values or draw(st.booleans())):
        tensor = draw(st.sampled_from(tensors))
        tensor.dims[:] = _changed(list(tensor.dims), NUMBERS, draw)
    elif values:
        shape = draw(st.sampled_from(values)).type.tensor_type.shape
        sizes = _changed([dim.dim_value for dim in shape.dim], NUMBERS, draw)
        del shape.dim[:]
        for size in sizes:
            shape.dim.add().dim_value = size


def _dtype(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    number = draw(st.sampled_from([*range(28), 99, -1, (1 << 31) - 1]))
    values = [value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)]
    if graph.initializer and (not values or draw(st.booleans())):
        draw(st.sampled_from(list(graph.initializer))).data_type = number
    elif values:
        draw(st.sampled_from(values)).elem_type = number


def _opset(model: onnx.ModelProto, _: onnx.GraphProto, draw: Draw) -> None:
    entry = model.opset_import[draw(st.integers(0, len(model.opset_import) - 1))]
    if draw(st.booleans()):
        entry.version = draw(VERSIONS)
    else:
        entry.domain = draw(st.sampled_from(["", "ai.onnx", "com.microsoft", "shardplan", "é"]))


def _nodes(_: onnx.ModelProto, graph: onnx.GraphProto, draw: Draw) -> None:
    kept = _changed(
        list(graph.node), st.sampled_from(list(graph.node) or [helper.make_node("Relu", ["x"], ["y"])]), draw
    )
    copies = []
    for node in kept:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


MUTATIONS = (_arity, _arity, _attribute, _attribute, _borders, _dims, _dims, _dtype, _kind, _nodes, _opset)
