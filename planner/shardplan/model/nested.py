"""Inlining of nested graphs: a node's inner graph moves into the graph around it, with new names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from shardplan.model.draft import Draft, Node, draft_nodes, stored_type

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_SEQUENCE_KINDS = frozenset({"SequenceMap", "SplitToSequence", "ConcatFromSequence"})


def graph_of(node: onnx.NodeProto, attribute: str) -> onnx.GraphProto | None:
    """The graph in an attribute of `node`."""
    return next((entry.g for entry in node.attribute if entry.name == attribute), None)


def nested_graphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The name and the graph of all attributes of `node` that are graphs, those inside them not included."""
    for entry in node.attribute:
        if entry.type in _GRAPHS:
            yield from ((entry.name, graph) for graph in ([entry.g] if entry.HasField("g") else entry.graphs))


def is_plain(graph: onnx.GraphProto) -> bool:
    """Whether everything in `graph`, at any depth, is a dense tensor: no sequences, optional values, sparse tensors."""
    values = [*graph.input, *graph.output, *graph.value_info]
    if graph.sparse_initializer or any(v.type.WhichOneof("value") not in {None, "tensor_type"} for v in values):
        return False
    for node in graph.node:
        if node.op_type.startswith(("Sequence", "Optional")) or node.op_type in _SEQUENCE_KINDS:
            return False
        if not all(is_plain(inner) for _, inner in nested_graphs(node)):
            return False
    return True


def inner_name(outer: str, node: onnx.NodeProto, index: int) -> str:
    """The name of the node at place `index` of a graph nested in the node called `outer`."""
    return f"{outer}/{node.name or f'{node.op_type}_{index}'}"


def inner_values(graph: onnx.GraphProto) -> list[str]:
    """The names of the values that `graph` defines: inputs, initializers, results of its nodes."""
    made = (name for node in graph.node for name in node.output)
    names = (*(v.name for v in graph.input), *(t.name for t in graph.initializer), *made)
    return [name for name in dict.fromkeys(names) if name]


def moved_out(
    draft: Draft, node: Node, graph: onnx.GraphProto, names: Mapping[str, str], *, under: str = ""
) -> list[Node]:
    """The nodes of `graph`, nested in `node`, as nodes of `draft`; `names`: the new name of each inner value.

    Initializers, and the types that the graph stores, are added to `draft`. The new node names are `under` (by default
    the name of `node`) and the name in `graph`.
    """
    for tensor in graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        draft.initializers[copy.name] = copy
    for value in graph.value_info:
        if value.name in names and value.type.HasField("tensor_type"):
            draft.stored[names[value.name]] = stored_type(value.type.tensor_type)
    protos = []
    for index, entry in enumerate(graph.node):
        proto = _renamed(entry, names)
        proto.name = inner_name(under or node.name, entry, index)
        protos.append(proto)
    return fresh_nodes(node, protos)


def fresh_nodes(node: Node, protos: Iterable[onnx.NodeProto]) -> list[Node]:
    """Nodes made of `protos`, at the place of `node`."""
    made = draft_nodes(protos)
    for entry in made:
        entry.module = node.module
        entry.loops = node.loops
    return made


def _renamed(entry: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node that reads and makes values under other names, in the graphs inside it as well."""
    proto = onnx.NodeProto()
    proto.CopyFrom(entry)
    proto.input[:] = [names.get(name, name) for name in entry.input]
    proto.output[:] = [names.get(name, name) for name in entry.output]
    for _, graph in nested_graphs(proto):
        own = set(inner_values(graph))
        outer = {name: new for name, new in names.items() if name not in own}
        inner = [_renamed(node, outer) for node in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return proto
