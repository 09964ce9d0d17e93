"""Mutations of ONNX models that keep the format and break the meaning: arities, attributes, dims, types, operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import onnx
from onnx import defs, helper

from shardplan.rules import FAMILIES

NUMBERS = (-(1 << 63), -(1 << 31), -3, -2, -1, 0, 1, 2, 3, 5, 7, 31, 1 << 12, 1 << 31, (1 << 63) - 1)
VERSIONS = (-1, 0, 1, 5, 6, 7, 9, 10, 11, 13, 17, 18, 19, 21, 22, 23, 24, 99, 1 << 31, (1 << 63) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-40, 3e38, float("inf"), float("nan"))
TEXTS = ("", "SAME_UPPER", "é", "bij,bjk->bik", "linear")
PLAIN = sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""})
MICROSOFT = sorted(kind.removeprefix("com.microsoft.") for kind in FAMILIES["microsoft"])


def mutated(model: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """A copy of `model` with one to three mutations."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(random.randint(1, 3)):
        graph = random.choice(list(graphs(copy.graph)))
        random.choice(MUTATIONS)(copy, graph, random)
    return copy


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and those nested in it."""
    yield graph
    for node in graph.node:
        for entry in node.attribute:
            if entry.type == onnx.AttributeProto.GRAPH:
                yield from graphs(entry.g)


def _node(graph: onnx.GraphProto, random: Random) -> onnx.NodeProto:
    return graph.node[random.randrange(len(graph.node))] if graph.node else onnx.NodeProto()


def _changed(entries: list[Any], values: Sequence[Any], random: Random) -> list[Any]:
    """`entries` with one gone, one more, one that is another, or two exchanged."""
    at = random.randrange(max(1, len(entries)))
    what = random.choice(("drop", "add", "set", "swap", "clear"))
    if what == "add" or not entries:
        return [*entries[:at], random.choice(values), *entries[at:]]
    if what == "drop":
        return [*entries[:at], *entries[at + 1 :]]
    if what == "swap":
        return [*entries[1:], entries[0]]
    return [] if what == "clear" else [*entries[:at], random.choice(values), *entries[at + 1 :]]


def _arity(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    node = _node(graph, random)
    names = ["", "nowhere", *(name for entry in graph.node for name in entry.output)]
    if random.random() < 0.5:
        node.input[:] = _changed(list(node.input), names, random)
    else:
        node.output[:] = _changed(list(node.output), ["", "new"], random)


def _borders(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    """What a graph takes and gives: a body or a branch with more or less of it."""
    values = random.choice([graph.input, graph.output])
    kept = _changed(list(values), list(values) or [onnx.ValueInfoProto(name="more")], random)
    copies = [helper.make_value_info(value.name, value.type) for value in kept]
    del values[:]
    values.extend(copies)


def _kind(model: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    node = _node(graph, random)
    if random.random() < 0.5:
        node.op_type, node.domain = random.choice(PLAIN), ""
    else:
        node.op_type, node.domain = random.choice(MICROSOFT), "com.microsoft"
        if all(entry.domain != "com.microsoft" for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _attribute(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    node = _node(graph, random)
    if node.attribute and random.random() < 0.5:
        entry = node.attribute[random.randrange(len(node.attribute))]
        if entry.type == onnx.AttributeProto.INTS:
            entry.ints[:] = _changed(list(entry.ints), NUMBERS, random)
        elif entry.type == onnx.AttributeProto.INT:
            entry.i = random.choice(NUMBERS)
        elif entry.type == onnx.AttributeProto.TENSOR:
            entry.t.dims[:] = _changed(list(entry.t.dims), NUMBERS, random)
        elif random.random() < 0.5:
            node.attribute.remove(entry)
        else:
            entry.type = random.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 11])
        return
    try:
        known = sorted(defs.get_schema(node.op_type, domain=node.domain).attributes)
    except defs.SchemaError:
        known = []
    name = random.choice([*known, "axis", "axes", "nonsense"])
    values = (
        random.choice(NUMBERS),
        random.sample(NUMBERS, random.randrange(5)),
        random.choice(FLOATS),
        random.choice(TEXTS),
    )
    kept = [entry for entry in node.attribute if entry.name != name]
    value = random.choice(values)
    made = helper.make_attribute(name, value, attr_type=onnx.AttributeProto.INTS if value == [] else None)
    del node.attribute[:]
    node.attribute.extend([*kept, made])


def _dims(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    tensors = list(graph.initializer)
    if tensors and (not values or random.random() < 0.5):
        tensor = random.choice(tensors)
        tensor.dims[:] = _changed(list(tensor.dims), NUMBERS, random)
    elif values:
        shape = random.choice(values).type.tensor_type.shape
        sizes = _changed([dim.dim_value for dim in shape.dim], NUMBERS, random)
        del shape.dim[:]
        for size in sizes:
            shape.dim.add().dim_value = size


def _dtype(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    number = random.choice([*range(28), 99, -1, (1 << 31) - 1])
    values = [value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)]
    if graph.initializer and (not values or random.random() < 0.5):
        random.choice(list(graph.initializer)).data_type = number
    elif values:
        random.choice(values).elem_type = number


def _opset(model: onnx.ModelProto, _: onnx.GraphProto, random: Random) -> None:
    entry = model.opset_import[random.randrange(len(model.opset_import))]
    if random.random() < 0.5:
        entry.version = random.choice(VERSIONS)
    else:
        entry.domain = random.choice(["", "ai.onnx", "com.microsoft", "shardplan", "é"])


def _nodes(_: onnx.ModelProto, graph: onnx.GraphProto, random: Random) -> None:
    kept = _changed(list(graph.node), list(graph.node) or [helper.make_node("Relu", ["x"], ["y"])], random)
    copies = []
    for node in kept:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


MUTATIONS = (_arity, _arity, _attribute, _attribute, _borders, _dims, _dims, _dtype, _kind, _nodes, _opset)
